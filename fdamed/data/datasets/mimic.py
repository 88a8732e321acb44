"""MIMIC-CXR and MIMIC-CXR-JPG (Johnson et al., 2019), with sex, age at the study and race from MIMIC-IV."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from fdamed.config.datasets import DataSet
from fdamed.core.errors import FdamedError, no_folder
from fdamed.data.vocabulary import MAX_AGE, OLDEST, parse_age, parse_race, parse_sex, parse_year

if TYPE_CHECKING:
    import pandas as pd

    from fdamed.data.row_reader import RowReader, TableRows

RACES = ("White", "Black", "Asian", "Hispanic/Latino")
"""The races that count; OTHER, UNKNOWN, AMERICAN INDIAN, ... are no known race."""
LABELS = [
    "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Enlarged Cardiomediastinum", "Fracture", "Lung Lesion",
    "Lung Opacity", "No Finding", "Pleural Effusion", "Pleural Other", "Pneumonia", "Pneumothorax", "Support Devices",
]  # fmt: skip
PROBES = 20
"""Files that are looked for to find out whether the images are JPG or DICOM."""

log = logging.getLogger(__name__)


class Mimic(DataSet, local=("mimic_iv",)):
    labels_from_reports: ClassVar[bool] = True
    paper_split: ClassVar[str] = "race"

    layout: Literal["mimic"]
    labels: Literal["chexpert", "negbio"] = "chexpert"
    """Which labeler's table is read."""
    mimic_iv: str | None = None
    """Folder of MIMIC-IV (patients.csv.gz and admissions.csv.gz below it, hosp/ or core/); default: the data root."""

    def rows(self, reader: RowReader) -> pd.DataFrame:
        """One row per image of the metadata table, with its study's labels and its patient's race."""
        root = Path(self.root)
        ids = ["dicom_id", "subject_id", "study_id"]
        table = reader.table(_needed_table(root, "metadata"), [*ids, "ViewPosition", "StudyDate"])
        table.strip_spaces(*ids)
        table.check_unique("dicom_id")
        subject, study = table.frame["subject_id"], table.frame["study_id"]
        odd = ~subject.str.fullmatch(r"\d{4,12}") | ~study.str.fullmatch(r"\d{4,12}")
        folder = "files/p" + subject.str[:2] + "/p" + subject + "/s" + study + "/"
        table.set(below=folder + table.frame["dicom_id"])
        table.reject(odd, "BAD_ID", "subject_id or study_id is not a number")
        table.check_paths("below")
        table.set(image=table.frame["below"] + _extension(root, table.frame["below"]))
        table.parse("StudyDate", "year", parse_year, "BAD_DATE")
        table.parse_view("ViewPosition")
        self._add_labels(table, _needed_table(root, self.labels))
        split = _newest_table(root, "split")
        if split:
            known = reader.table(split, ["dicom_id", "split"]).frame.drop_duplicates("dicom_id")
            table.set(release_split=table.frame["dicom_id"].map(known.set_index("dicom_id")["split"]))
        self._add_patients(table, root)
        return reader.index(table.frame, table.frame["subject_id"], table.frame["study_id"])

    def _add_labels(self, table: TableRows, path: Path) -> None:
        """Labels belong to a study, not to an image: join on both ids."""
        key = ["subject_id", "study_id"]
        labels = table.reader.table(path, [*key, *LABELS])
        labels.strip_spaces(*key)
        labels.check_unique(*key)
        labels.parse_labels({c: c for c in LABELS})
        table.frame = _joined(table.frame, labels.frame.drop(columns=LABELS).assign(labeled=True), key)
        table.reject(table.frame["labeled"].isna(), "NO_LABELS", f"the study has no usable row in {path.name}")

    def _add_patients(self, table: TableRows, root: Path) -> None:
        """Sex, age at the study and race."""
        from fdamed.data.table_reader import existing

        base = Path(self.mimic_iv) if self.mimic_iv else root
        places = {name: [f"{f}{name}.csv" for f in ("hosp/", "core/", "")] for name in ("patients", "admissions")}
        if not self.mimic_iv and not all(existing(base, *names) for names in places.values()):
            log.warning("no MIMIC-IV patients and admissions at %s: sex, age and race stay unknown", base)
            return
        patients, admissions = (table.reader.find(base, *names, key="data.mimic_iv") for names in places.values())
        people = table.reader.table(patients, ["subject_id", "gender", "anchor_age", "anchor_year"])
        people.strip_spaces("subject_id")
        people.check_unique("subject_id")
        people.parse("gender", "sex", parse_sex)
        people.parse("anchor_age", "anchor_age", parse_age, "BAD_AGE")
        people.parse("anchor_year", "anchor_year", parse_year, "BAD_AGE")
        known = _joined(table.frame[["subject_id", "year"]], people.frame, ["subject_id"])
        ages = known["anchor_age"] + (known["year"] - known["anchor_year"])
        ages = ages.where(known["anchor_age"] < OLDEST, OLDEST).where(known["anchor_age"].notna())
        race = table.frame["subject_id"].map(_races(table.reader, admissions))
        table.set(sex=known["sex"], age=ages.clip(upper=OLDEST), race=race)
        table.reject((ages < 0) | (ages > MAX_AGE + OLDEST), "BAD_AGE", "the age at the study is not possible")


def _races(reader: RowReader, path: Path) -> pd.Series:
    """Patient -> race, for the patients whose admissions name one of RACES and no other of them."""
    table = reader.table(path, ["subject_id"], ["race", "ethnicity"])
    column = next((c for c in ("race", "ethnicity") if c in table.frame), None)
    if column is None:
        what = "missing column `race` (before MIMIC-IV 2.0: `ethnicity`)"
        raise FdamedError(what, str(path), "Is this the table of admissions?")
    table.strip_spaces("subject_id")
    table.parse(column, "known", parse_race)
    known = table.frame.loc[table.frame["known"].isin(RACES), ["subject_id", "known"]].drop_duplicates()
    return known.drop_duplicates("subject_id", keep=False).set_index("subject_id")["known"]


def _extension(root: Path, below: pd.Series) -> str:
    """Whether the release has JPG or DICOM files, by a few of them."""
    probes = below.iloc[:: max(1, len(below) // PROBES)]
    # Not Path.is_file, which raises where a cell is too long for a name.
    dcm, jpg = (sum(os.path.isfile(root / f"{p}{kind}") for p in probes) for kind in (".dcm", ".jpg"))  # noqa: PTH113
    return ".dcm" if dcm > jpg else ".jpg"


def _needed_table(root: Path, what: str) -> Path:
    found = _newest_table(root, what)
    if found is None:
        missing = f"there is no mimic-cxr-2.0.0-{what}.csv.gz nor one of another release"
        fix = "Set data.root to the MIMIC-CXR folder, which holds the tables and files/."
        raise FdamedError(missing if root.is_dir() else no_folder(root), str(root), fix)
    return found


def _newest_table(root: Path, what: str) -> Path | None:
    """`mimic-cxr-VERSION-WHAT.csv(.gz)` of the newest release in the folder."""
    found = root.glob(f"mimic-cxr-*-{what}.csv*")
    return max((p for p in found if p.name.endswith((".csv", ".csv.gz"))), default=None)


def _joined(left: pd.DataFrame, right: pd.DataFrame, on: list[str]) -> pd.DataFrame:
    """A left join that keeps the row numbers."""
    out = left.merge(right, on=on, how="left", validate="many_to_one")
    out.index = left.index
    return out
