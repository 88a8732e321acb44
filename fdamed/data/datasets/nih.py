"""NIH ChestX-ray14 (Wang et al., 2017): Data_Entry_2017_v2020.csv and images/ or images_0NN/images/."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from fdamed.config.datasets import DataSet
from fdamed.data.vocabulary import parse_age, parse_sex

if TYPE_CHECKING:
    import pandas as pd

    from fdamed.data.row_reader import RowReader

FINDINGS = [
    "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion", "Emphysema", "Fibrosis", "Hernia",
    "Infiltration", "Mass", "No Finding", "Nodule", "Pleural_Thickening", "Pneumonia", "Pneumothorax",
]  # fmt: skip
TABLES = ("Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv")
# `OriginalImage[Width,Height]` holds a comma and so is two fields, as are its values: the rows fit the header.
COLUMNS = [
    "Image Index", "Finding Labels", "Follow-up #", "Patient ID", "Patient Age", "Patient Gender", "View Position",
]  # fmt: skip


class Nih(DataSet):
    labels_from_reports: ClassVar[bool] = True

    layout: Literal["nih"]

    def rows(self, reader: RowReader) -> pd.DataFrame:
        """One row per image; a finding that `Finding Labels` does not name is 0, as the set was labeled."""
        root = Path(self.root)
        table = reader.table(reader.find(root, *TABLES), COLUMNS)
        table.check_unique("Image Index")
        table.check_paths("Image Index")
        table.parse("Patient Age", "age", parse_age)
        table.parse("Patient Gender", "sex", parse_sex)
        table.parse_view("View Position")
        table.named_labels("Finding Labels", lambda cell: [name.strip() for name in cell.split("|")], FINDINGS)
        table.strip_spaces("Patient ID", "Follow-up #")
        names, where = table.frame["Image Index"], _images(root)
        table.set(
            image=names.map(lambda name: where.get(name, f"images/{name}")),
            release_split=names.map(_release_split(root)),
        )
        return reader.index(table.frame, table.frame["Patient ID"], table.frame["Follow-up #"])


def _images(root: Path) -> dict[str, str]:
    """File name -> path below the root, from all folders of images that are there."""
    folders = [root / "images", *sorted(root.glob("images_*/images")), *sorted(root.glob("images_*"))]
    where: dict[str, str] = {}
    for folder in (f for f in folders if f.is_dir()):
        below = folder.relative_to(root).as_posix()
        with os.scandir(folder) as entries:
            for entry in entries:
                where.setdefault(entry.name, f"{below}/{entry.name}")
    return where


def _release_split(root: Path) -> dict[str, str]:
    out: dict[str, str] = {}
    for name, split in (("train_val_list.txt", "train_val"), ("test_list.txt", "test")):
        path = root / name
        if path.is_file():
            out |= dict.fromkeys(path.read_text(encoding="utf-8").split(), split)
    return out
