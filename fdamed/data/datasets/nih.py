"""NIH ChestX-ray14 (Wang et al., 2017): Data_Entry_2017_v2020.csv and images/ or images_0NN/images/ -> rows."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd

from fdamed.config.datasets import Nih
from fdamed.core.errors import FdamedError
from fdamed.data.intake import Rejects, capped_age, converted, distinct_rows, refuse_paths, sex_value, view_of
from fdamed.data.manifest import LABEL, as_index, pseudonyms
from fdamed.data.table_reader import by_value, existing, read_table

FINDINGS = (
    "Atelectasis",
    "Cardiomegaly",
    "Consolidation",
    "Edema",
    "Effusion",
    "Emphysema",
    "Fibrosis",
    "Hernia",
    "Infiltration",
    "Mass",
    "No Finding",
    "Nodule",
    "Pleural_Thickening",
    "Pneumonia",
    "Pneumothorax",
)
TABLES = ("Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv")


def rows(data: Nih, salt: str, tables_only: bool, rejects: Rejects) -> pd.DataFrame:
    """One row an image; a finding that `Finding Labels` does not name is 0, for that is how the set was labeled."""
    root = Path(data.root)
    path = existing(root, *TABLES)
    if path is None:
        raise FdamedError(f"there is no {' or '.join(TABLES)}", str(root), "Set data.root to the folder that holds it.")
    # `OriginalImage[Width,Height]` holds a comma and so is two fields, as are its values: the rows fit the header.
    wanted = ["Image Index", "Finding Labels", "Follow-up #", "Patient ID", "Patient Age", "Patient Gender"]
    frame = read_table(path, [*wanted, "View Position"])
    frame = distinct_rows(frame, ["Image Index"], path, rejects)
    frame = refuse_paths(frame, "Image Index", path.name, rejects)
    refusal = (path.name, "BAD_AGE", "Patient Age is no number from 0 to 120")
    frame = converted(frame, "Patient Age", "age", capped_age, refusal, rejects, "float32")
    refusal = (path.name, "BAD_SEX", "Patient Gender is not M or F")
    frame = converted(frame, "Patient Gender", "sex", sex_value, refusal, rejects)
    frame = frame.assign(
        view=by_value(frame["View Position"], lambda t: view_of(t)[0] or np.nan)[0],
        projection=by_value(frame["View Position"], lambda t: view_of(t)[1] or np.nan)[0],
    )
    frame = _with_findings(frame, path, rejects)
    frame = frame.assign(
        image=_images(root, frame["Image Index"], tables_only),
        release_split=frame["Image Index"].map(_release_split(root)),
        study=pseudonyms(salt, frame["Patient ID"].str.strip() + "/" + frame["Follow-up #"].str.strip()),
        patient=pseudonyms(salt, frame["Patient ID"].str.strip()),
    )
    return as_index(frame.drop(columns=[*wanted, "View Position"]))


def _with_findings(frame: pd.DataFrame, path: Path, rejects: Rejects) -> pd.DataFrame:
    codes, distinct = pd.factorize(frame["Finding Labels"])
    table = np.zeros((len(distinct), len(FINDINGS)), dtype="float32")
    bad = np.zeros(len(distinct), dtype=bool)
    for i, text in enumerate(distinct):
        names = [name.strip() for name in text.split("|")]
        bad[i] = not set(names) <= set(FINDINGS)
        table[i] = [name in names for name in FINDINGS]
    labels = pd.DataFrame(table[codes], columns=[LABEL + name for name in FINDINGS], index=frame.index)
    detail = "Finding Labels names something outside the fifteen labels"
    return rejects.refuse(pd.concat([frame, labels], axis=1), bad[codes], path.name, "BAD_LABEL", detail)


def _images(root: Path, names: pd.Series, tables_only: bool) -> pd.Series:
    """Path below the root of each image; where it is not on disk, where it would be."""
    folders = [root / "images", *sorted(root.glob("images_*/images")), *sorted(root.glob("images_*"))]
    where: dict[str, str] = {}
    if not tables_only:
        for folder in (f for f in folders if f.is_dir()):
            below = folder.relative_to(root).as_posix()
            with os.scandir(folder) as entries:
                for entry in entries:
                    where.setdefault(entry.name, f"{below}/{entry.name}")
    return names.map(lambda name: where.get(name, f"images/{name}"))


def _release_split(root: Path) -> dict[str, str]:
    out: dict[str, str] = {}
    for name, split in (("train_val_list.txt", "train_val"), ("test_list.txt", "test")):
        path = root / name
        if path.is_file():
            out |= dict.fromkeys(path.read_text(encoding="utf-8").split(), split)
    return out
