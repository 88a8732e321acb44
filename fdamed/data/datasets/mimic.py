"""MIMIC-CXR and MIMIC-CXR-JPG (Johnson et al., 2019) with sex, age at the study and race from MIMIC-IV -> rows."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from fdamed.config.datasets import Mimic
from fdamed.core.errors import FdamedError
from fdamed.data.intake import (
    Rejects,
    converted,
    distinct_rows,
    refuse_paths,
    sex_value,
    view_of,
    with_labels,
)
from fdamed.data.manifest import LABEL, OLDEST, as_index, pseudonyms
from fdamed.data.table_reader import by_value, existing, read_table

RACES: dict[str, tuple[str, ...]] = {
    "White": (
        "WHITE",
        "WHITE - RUSSIAN",
        "WHITE - OTHER EUROPEAN",
        "WHITE - BRAZILIAN",
        "WHITE - EASTERN EUROPEAN",
        "PORTUGUESE",
    ),
    "Black": ("BLACK/AFRICAN AMERICAN", "BLACK/CAPE VERDEAN", "BLACK/AFRICAN", "BLACK/CARIBBEAN ISLAND"),
    "Asian": ("ASIAN", "ASIAN - CHINESE", "ASIAN - SOUTH EAST ASIAN", "ASIAN - ASIAN INDIAN", "ASIAN - KOREAN"),
    "Hispanic/Latino": (
        "HISPANIC OR LATINO",
        "HISPANIC/LATINO",
        "HISPANIC/LATINO - PUERTO RICAN",
        "HISPANIC/LATINO - DOMINICAN",
        "HISPANIC/LATINO - SALVADORAN",
        "HISPANIC/LATINO - GUATEMALAN",
        "HISPANIC/LATINO - MEXICAN",
        "HISPANIC/LATINO - CUBAN",
        "HISPANIC/LATINO - HONDURAN",
        "HISPANIC/LATINO - COLUMBIAN",
        "HISPANIC/LATINO - CENTRAL AMERICAN",
        "SOUTH AMERICAN",
    ),
}
"""Race -> the values of admissions.csv that mean it; every other value (OTHER, UNKNOWN, ...) means no known race."""
LABELS = (
    "Atelectasis",
    "Cardiomegaly",
    "Consolidation",
    "Edema",
    "Enlarged Cardiomediastinum",
    "Fracture",
    "Lung Lesion",
    "Lung Opacity",
    "No Finding",
    "Pleural Effusion",
    "Pleural Other",
    "Pneumonia",
    "Pneumothorax",
    "Support Devices",
)
PROBES = 20


def rows(data: Mimic, salt: str, tables_only: bool, rejects: Rejects) -> pd.DataFrame:
    """One row an image of the metadata table, with its study's labels and its patient's race."""
    root = Path(data.root)
    path = release_table(root, "metadata")
    frame = read_table(path, ["dicom_id", "subject_id", "study_id", "ViewPosition", "StudyDate"])
    for column in ("dicom_id", "subject_id", "study_id"):
        frame[column] = frame[column].str.strip()
    frame = distinct_rows(frame, ["dicom_id"], path, rejects)
    odd = ~frame["subject_id"].str.fullmatch(r"\d{4,12}") | ~frame["study_id"].str.fullmatch(r"\d{4,12}")
    frame = rejects.refuse(frame, odd, path.name, "BAD_ID", "subject_id or study_id is not a number")
    frame = frame.assign(
        below="files/p"
        + frame["subject_id"].str[:2]
        + "/p"
        + frame["subject_id"]
        + "/s"
        + frame["study_id"]
        + "/"
        + frame["dicom_id"]
    )
    frame = refuse_paths(frame, "below", path.name, rejects)
    frame = frame.assign(image=frame["below"] + "." + _extension(data, root, frame["below"]))
    frame = converted(
        frame, "StudyDate", "year", _year, (path.name, "BAD_DATE", "StudyDate is not yyyymmdd"), rejects, "float32"
    )
    frame = frame.assign(
        view=by_value(frame["ViewPosition"], lambda t: view_of(t)[0] or np.nan)[0],
        projection=by_value(frame["ViewPosition"], lambda t: view_of(t)[1] or np.nan)[0],
    )
    frame = _with_study_labels(frame, data, root, path, rejects)
    frame = _with_release_split(frame, root)
    frame = _with_patients(frame, data, root, path, rejects)
    frame["study"] = pseudonyms(salt, frame["subject_id"] + "/" + frame["study_id"])
    frame["patient"] = pseudonyms(salt, frame["subject_id"])
    keep = ["image", "patient", "study", "view", "projection", "sex", "age", "race", "release_split"]
    return as_index(frame[keep + [c for c in frame.columns if c.startswith(LABEL)]])


def release_table(root: Path, what: str) -> Path:
    """`mimic-cxr-VERSION-WHAT.csv(.gz)` of the newest release in the folder."""
    found = optional_table(root, what)
    if found is None:
        if not root.is_dir():
            raise FdamedError("there is no such folder", str(root), "Set data.root to the MIMIC-CXR folder.")
        raise FdamedError(
            f"there is no mimic-cxr-2.0.0-{what}.csv.gz nor one of another release",
            str(root),
            "Set data.root to the folder that holds the tables and files/.",
        )
    return found


def optional_table(root: Path, what: str) -> Path | None:
    pattern = re.compile(rf"mimic-cxr-(\d+)\.(\d+)\.(\d+)-{what}\.csv(\.gz)?")
    found = [(m, p) for p in root.glob(f"mimic-cxr-*-{what}.csv*") if (m := pattern.fullmatch(p.name))]
    ranked = sorted(found, key=lambda f: (int(f[0][1]), int(f[0][2]), int(f[0][3]), bool(f[0][4])))
    return ranked[-1][1] if ranked else None


def _extension(data: Mimic, root: Path, below: pd.Series) -> str:
    if data.images != "auto":
        return data.images
    probes = below.iloc[:: max(1, len(below) // PROBES)] if len(below) else below
    # Not Path.is_file, which raises where a cell is too long for a name.
    there = {kind: sum(os.path.isfile(root / f"{p}.{kind}") for p in probes) for kind in ("dcm", "jpg")}  # noqa: PTH113
    return "dcm" if there["dcm"] > there["jpg"] else "jpg"


def _year(text: str) -> float | None:
    text = text.strip().removesuffix(".0")
    if text == "":
        return float("nan")
    return float(text[:4]) if re.fullmatch(r"\d{4}(0[1-9]|1[0-2])([0-2]\d|3[01])", text) else None


def _with_study_labels(frame: pd.DataFrame, data: Mimic, root: Path, table: Path, rejects: Rejects) -> pd.DataFrame:
    """Labels belong to a study, not to an image: join on both ids."""
    path = release_table(root, data.labels)
    labels = read_table(path, ["subject_id", "study_id", *LABELS])
    for column in ("subject_id", "study_id"):
        labels[column] = labels[column].str.strip()
    labels = distinct_rows(labels, ["subject_id", "study_id"], path, rejects)
    labels = with_labels(labels, {c: c for c in LABELS}, path.name, rejects).drop(columns=list(LABELS))
    joined = _joined(frame, labels.assign(labeled=True), ["subject_id", "study_id"])
    absent = joined.pop("labeled").isna()
    return rejects.refuse(joined, absent, table.name, "NO_LABELS", f"the study has no usable row in {path.name}")


def _with_release_split(frame: pd.DataFrame, root: Path) -> pd.DataFrame:
    path = optional_table(root, "split")
    if path is None:
        return frame.assign(release_split=np.nan)
    split = read_table(path, ["dicom_id", "split"])
    known = split.drop_duplicates("dicom_id").set_index("dicom_id")["split"]
    return frame.assign(release_split=frame["dicom_id"].map(known))


def _with_patients(frame: pd.DataFrame, data: Mimic, root: Path, table: Path, rejects: Rejects) -> pd.DataFrame:
    patients, admissions = _mimic_iv(data, root, "patients.csv"), _mimic_iv(data, root, "admissions.csv")
    frame = frame.assign(sex=np.nan, age=np.nan, race=np.nan)
    if patients is None or admissions is None:
        print(f"no MIMIC-IV patients and admissions at {root}: sex, age and race stay unknown", file=sys.stderr)
        return frame
    people = read_table(patients, ["subject_id", "gender", "anchor_age", "anchor_year"])
    people["subject_id"] = people["subject_id"].str.strip()
    people = distinct_rows(people, ["subject_id"], patients, rejects)
    people = converted(people, "gender", "sex", sex_value, (patients.name, "BAD_SEX", "gender is not M or F"), rejects)
    for column in ("anchor_age", "anchor_year"):
        refusal = (patients.name, "BAD_AGE", f"{column} is not a number")
        people = converted(people, column, column, _whole, refusal, rejects, "float32")
    known = _joined(frame[["subject_id", "year"]], people, ["subject_id"])
    ages = known["anchor_age"] + (known["year"] - known["anchor_year"])
    ages = ages.where(known["anchor_age"] < OLDEST, OLDEST).where(known["anchor_age"].notna())
    frame = frame.assign(sex=known["sex"], age=ages.clip(upper=OLDEST))
    frame = frame.assign(race=frame["subject_id"].map(races(admissions, data)))
    return rejects.refuse(frame, (ages < 0) | (ages > 120 + OLDEST), table.name, "BAD_AGE", "the age is below 0")


def _whole(text: str) -> float | None:
    text = text.strip()
    return float("nan") if text == "" else float(text) if re.fullmatch(r"\d{1,4}", text) else None


def _mimic_iv(data: Mimic, root: Path, name: str) -> Path | None:
    base = Path(data.mimic_iv) if data.mimic_iv else root
    for folder in (base / "hosp", base / "core", base):
        found = existing(folder, name)
        if found:
            return found
    if data.mimic_iv:
        raise FdamedError(f"there is no {name}(.gz)", str(base), "data.mimic_iv is the folder with hosp/ (or core/).")
    return None


def races(path: Path, data: Mimic) -> pd.Series:
    """Patient -> race by the configured table and rule for contradictions; unknown values do not count."""
    frame = read_table(path, ["subject_id"], ["race", "ethnicity", "admittime"])
    column = "race" if "race" in frame else "ethnicity"
    if column not in frame:
        raise FdamedError("missing column `race` (before MIMIC-IV 2.0: `ethnicity`)", str(path), "Is this admissions?")
    meaning = {value.upper(): race for race, values in (data.races or RACES).items() for value in values}
    frame = frame.assign(
        subject_id=frame["subject_id"].str.strip(),
        mapped=by_value(frame[column], lambda t: meaning.get(t.strip().upper(), np.nan))[0],
    ).dropna(subset=["mapped"])
    order = ["subject_id", "admittime"] if "admittime" in frame else ["subject_id"]
    frame = frame.sort_values(order, kind="stable")
    if data.contradiction == "first":
        return frame.drop_duplicates("subject_id").set_index("subject_id")["mapped"]
    counts = frame.groupby(["subject_id", "mapped"]).size().rename("n").reset_index()
    if data.contradiction == "majority":
        most = counts.groupby("subject_id")["n"].transform("max")
        counts = counts[counts["n"] == most]
    single = ~counts["subject_id"].duplicated(keep=False)
    return counts[single].set_index("subject_id")["mapped"]


def _joined(left: pd.DataFrame, right: pd.DataFrame, on: list[str]) -> pd.DataFrame:
    """A left join that keeps the row numbers."""
    out = left.merge(right, on=on, how="left", validate="many_to_one")
    out.index = left.index
    return out
