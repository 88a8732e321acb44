"""PadChest (Bustos et al., 2020): one CSV with list-like labels, and 16-bit PNGs in the folders 0 to 54 or in one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from fdamed.config.datasets import DataSet
from fdamed.data.vocabulary import MAX_AGE, OLDEST, UNKNOWN, parse_sex, parse_year

if TYPE_CHECKING:
    import pandas as pd

    from fdamed.data.row_reader import RowReader

TABLES = ("PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv", "PADCHEST_chest_x_ray_images_labels_160K.csv")
COLUMNS = [
    "ImageID", "ImageDir", "StudyDate_DICOM", "StudyID", "PatientID", "PatientBirth", "PatientSex_DICOM",
    "Projection", "Manufacturer_DICOM", "MethodLabel", "Labels",
]  # fmt: skip
NORMAL, EXCLUDE, UNCHANGED = "normal", "exclude", "unchanged"


class Padchest(DataSet):
    labels_from_reports: ClassVar[bool] = True

    layout: Literal["padchest"]
    physicians_only: bool = False
    """Keep only the 27 % of the reports that physicians labeled; a neural network labeled the others."""

    def rows(self, reader: RowReader) -> pd.DataFrame:
        """One row per image. A label that `Labels` does not name is 0; `normal` is No Finding.

        Where the report only says `unchanged`, the labels that it does not name are unknown.
        """
        root = Path(self.root)
        table = reader.table(reader.find(root, *TABLES), COLUMNS)
        table.strip_spaces("ImageID", "ImageDir", "PatientID", "StudyID")
        table.check_unique("ImageID")
        table.check_paths("ImageID")
        if self.physicians_only:
            other = table.frame["MethodLabel"].str.strip() != "Physician"
            table.reject(other, "OTHER_LABELER", "data.physicians_only: a neural network labeled the report")
        table.reject(table.frame["Labels"].map(lambda cell: not names(cell)), "NO_LABELS", "Labels is blank")
        excluded = table.frame["Labels"].map(lambda cell: EXCLUDE in names(cell))
        excluded |= table.frame["Projection"].str.strip().str.upper() == "EXCLUDE"
        table.reject(excluded, "EXCLUDED", "the release marks the image as one to exclude")
        table.parse("PatientSex_DICOM", "sex", parse_sex)
        table.parse("StudyDate_DICOM", "year", parse_year, "BAD_DATE")
        table.parse("PatientBirth", "born", parse_year, "BAD_AGE")
        age = table.frame["year"] - table.frame["born"]
        table.set(age=age.clip(upper=OLDEST), scanner=table.frame["Manufacturer_DICOM"].str.strip().replace("", None))
        table.reject((age < 0) | (age > MAX_AGE), "BAD_AGE", "StudyDate_DICOM and PatientBirth give no possible age")
        table.parse_view("Projection")
        table.named_labels("Labels", lambda cell: [_title(n) for n in names(cell) if n != UNCHANGED])
        unchanged = table.frame["Labels"].map(lambda cell: UNCHANGED in names(cell))
        labels = [c for c in table.frame.columns if c.startswith("label.")]
        table.set(**{c: table.frame[c].where(~(unchanged & (table.frame[c] == 0))) for c in labels})
        folders, image = table.frame["ImageDir"], table.frame["ImageID"]
        in_folders = any((root / name).is_dir() for name in folders.unique())
        table.set(image=folders + "/" + image if in_folders else image)
        table.check_paths("image")
        return reader.index(table.frame, table.frame["PatientID"], table.frame["StudyID"])


def names(cell: str) -> list[str]:
    """The names in a printed list such as `['pleural effusion', 'normal']`; blank and `nan` have none."""
    found = [name.strip(" '\"").lower() for name in cell.strip().strip("[]").split(",")]
    return [name for name in found if name not in UNKNOWN]


def _title(name: str) -> str:
    return "No Finding" if name == NORMAL else name
