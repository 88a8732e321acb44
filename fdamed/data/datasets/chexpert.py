"""CheXpert (Irvin et al., 2019), small and full size: train.csv, valid.csv and the demographics table -> rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fdamed.config.datasets import Chexpert
from fdamed.core.errors import FdamedError
from fdamed.data.intake import (
    Rejects,
    capped_age,
    converted,
    distinct_rows,
    refuse_paths,
    sex_value,
    view_of,
    with_labels,
)
from fdamed.data.manifest import VIEWS, as_index, pseudonyms
from fdamed.data.race import race_of
from fdamed.data.table_reader import by_value, existing, read_table

CONDITIONS = (
    "No Finding",
    "Enlarged Cardiomediastinum",
    "Cardiomegaly",
    "Lung Opacity",
    "Lung Lesion",
    "Edema",
    "Consolidation",
    "Pneumonia",
    "Atelectasis",
    "Pneumothorax",
    "Pleural Effusion",
    "Pleural Other",
    "Fracture",
    "Support Devices",
)
PATH = r"^(?:[^/]+/)?(?P<below>(?P<part>train|valid|test)/(?P<patient>patient[^/]+)/(?P<study>[^/]+)/[^/]+)$"
"""The release folder's name is optional: only what lies below it counts."""


def rows(data: Chexpert, salt: str, tables_only: bool, rejects: Rejects) -> pd.DataFrame:
    """The rows of all tables that the release has, with race where a demographics table is named."""
    root = Path(data.root)
    release = release_folder(root, data.tables)
    prefix = "" if release == root else release.name + "/"
    paths = [p for p in (existing(release, name) for name in data.tables) if p]
    frames = [_rows_of(path, prefix, rejects) for path in paths]
    frame = pd.concat(frames, ignore_index=True)
    again = frame["image"].duplicated()
    if again.any():
        raise FdamedError(
            f"{int(again.sum())} images stand in more than one table",
            ", ".join(str(p) for p in paths),
            "Name in data.tables only tables that do not overlap.",
        )
    if data.demographics:
        frame["race"] = frame["patient"].map(_races(Path(data.demographics), root, rejects))
    frame["study"] = pseudonyms(salt, frame["patient"] + "/" + frame["study"])
    frame["patient"] = pseudonyms(salt, frame["patient"])
    return as_index(frame)


def release_folder(root: Path, tables: tuple[str, ...]) -> Path:
    """The folder that holds the tables: the root itself, or the one release below it."""
    if not root.is_dir():
        raise FdamedError("there is no such folder", str(root), "Set data.root to the CheXpert folder.")
    if existing(root, *tables):
        return root
    below = sorted(p for p in root.iterdir() if p.is_dir() and existing(p, *tables))
    releases = [p for p in below if p.name.startswith("CheXpert")] or below
    if not releases:
        raise FdamedError(
            f"no {' or '.join(tables)} in the folder nor in a folder below it",
            str(root),
            "Set data.root to the CheXpert release folder, or to the folder that holds it.",
        )
    if len(releases) > 1:
        names = ", ".join(p.name for p in releases)
        raise FdamedError(f"several releases: {names}", str(root), "Set data.root to one of them.")
    return releases[0]


def _rows_of(path: Path, prefix: str, rejects: Rejects) -> pd.DataFrame:
    frame = read_table(path, ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *CONDITIONS])
    frame = refuse_paths(frame, "Path", path.name, rejects)
    found = pc.extract_regex(pa.array(frame["Path"], pa.large_string()), PATH)
    parts = {name: pd.Series(pc.struct_field(found, name), index=frame.index, dtype="str") for name in found.type.names}
    odd = parts["below"].isna()
    frame = frame.assign(**parts)
    frame = rejects.refuse(frame, odd, path.name, "PATH_UNKNOWN", "Path is not .../train/patientN/studyN/view.jpg")
    frame = distinct_rows(frame, ["below"], path, rejects)
    frame = converted(
        frame, "Age", "age", capped_age, (path.name, "BAD_AGE", "Age is no number from 0 to 120"), rejects, "float32"
    )
    frame = converted(
        frame, "Sex", "sex", sex_value, (path.name, "BAD_SEX", "Sex is not Male, Female, Unknown"), rejects
    )
    frame = converted(
        frame, "Frontal/Lateral", "view", _view, (path.name, "BAD_VIEW", "neither Frontal nor Lateral"), rejects
    )
    frame = frame.assign(projection=by_value(frame["AP/PA"], _projection)[0])
    frame = with_labels(frame, {c: c for c in CONDITIONS}, path.name, rejects)
    frame = frame.assign(image=prefix + frame["below"], release_split=frame["part"])
    return frame.drop(columns=["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", "below", "part", *CONDITIONS])


def _view(text: str) -> str | float | None:
    word = text.strip().lower()
    return word if word in VIEWS else None if word else float("nan")


def _projection(text: str) -> str | float:
    return view_of(text)[1] or float("nan")


def _races(path: Path, root: Path, rejects: Rejects) -> pd.Series:
    """Patient -> race, for the patients about whom the table does not contradict itself."""
    path = path if path.is_absolute() or path.is_file() else root / path
    frame = read_table(path, ["PATIENT", "PRIMARY_RACE"])
    known = pd.DataFrame(
        {
            "patient": frame["PATIENT"].str.strip(),
            "race": by_value(frame["PRIMARY_RACE"], lambda t: race_of(t) or np.nan)[0],
        }
    )
    known = known.dropna().drop_duplicates()
    twice = known["patient"].duplicated(keep=False)
    for row in known.index[twice]:
        rejects.add(path.name, int(row), "RACE_CONTRADICTS", "the patient has several races; the race stays unknown")
    return known[~twice].set_index("patient")["race"]
