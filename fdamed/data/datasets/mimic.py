"""MIMIC-CXR and MIMIC-CXR-JPG (Johnson et al., 2019), with sex, age at the study and race from MIMIC-IV."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from fdamed.config.datasets import DataSet
from fdamed.core.errors import FdamedError
from fdamed.data.vocabulary import MAX_AGE, OLDEST, parse_race, parse_sex

if TYPE_CHECKING:
    import pandas as pd

    from fdamed.data.row_reader import RowReader, TableRows

RACES = ("White", "Black", "Asian", "Hispanic/Latino")
"""The races of MIMIC-IV's values that count unless data.races says otherwise; OTHER, UNKNOWN, ... are no known race."""
LABELS = [
    "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Enlarged Cardiomediastinum", "Fracture", "Lung Lesion",
    "Lung Opacity", "No Finding", "Pleural Effusion", "Pleural Other", "Pneumonia", "Pneumothorax", "Support Devices",
]  # fmt: skip
PROBES = 20
"""Files that are looked for to find out whether the images are JPG or DICOM."""

log = logging.getLogger(__name__)


class Mimic(DataSet):
    labels_from_reports: ClassVar[bool] = True

    layout: Literal["mimic"]
    labels: Literal["chexpert", "negbio"] = "chexpert"
    images: Literal["auto", "jpg", "dcm"] = "auto"
    mimic_iv: str | None = None
    """Folder of MIMIC-IV (patients.csv.gz and admissions.csv.gz below it, hosp/ or core/); default: the data root."""
    races: dict[str, tuple[str, ...]] = Field(default={})
    """Race -> the values of admissions.csv that mean it; empty: White, Black, Asian, Hispanic/Latino by their names."""
    contradiction: Literal["drop", "majority", "first"] = "drop"
    """What happens to the race of a patient whose admissions name several of the mapped races."""

    def rows(self, reader: RowReader) -> pd.DataFrame:
        """One row per image of the metadata table, with its study's labels and its patient's race."""
        root = Path(self.root)
        table = reader.table(
            _release_table(root, "metadata"), ["dicom_id", "subject_id", "study_id", "ViewPosition", "StudyDate"]
        )
        table.strip_spaces("dicom_id", "subject_id", "study_id")
        table.check_unique("dicom_id")
        subject, study = table.frame["subject_id"], table.frame["study_id"]
        odd = ~subject.str.fullmatch(r"\d{4,12}") | ~study.str.fullmatch(r"\d{4,12}")
        folder = "files/p" + subject.str[:2] + "/p" + subject + "/s" + study + "/"
        table.set(below=folder + table.frame["dicom_id"])
        table.reject(odd, "BAD_ID", "subject_id or study_id is not a number")
        table.check_paths("below")
        table.set(image=table.frame["below"] + "." + self._extension(root, table.frame["below"]))
        table.parse("StudyDate", "year", _year, "BAD_DATE", "float32")
        table.parse_view("ViewPosition")
        self._add_labels(table, _release_table(root, self.labels))
        split = _optional_table(root, "split")
        if split:
            known = reader.table(split, ["dicom_id", "split"]).frame.drop_duplicates("dicom_id")
            table.set(release_split=table.frame["dicom_id"].map(known.set_index("dicom_id")["split"]))
        self._add_patients(table, root)
        return reader.index(table.frame, table.frame["subject_id"], table.frame["study_id"])

    def _extension(self, root: Path, below: pd.Series) -> str:
        if self.images != "auto":
            return self.images
        probes = below.iloc[:: max(1, len(below) // PROBES)]
        # Not Path.is_file, which raises where a cell is too long for a name.
        found = {kind: sum(os.path.isfile(root / f"{p}.{kind}") for p in probes) for kind in ("dcm", "jpg")}  # noqa: PTH113
        return "dcm" if found["dcm"] > found["jpg"] else "jpg"

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
        base = Path(self.mimic_iv) if self.mimic_iv else root
        paths = [self._find(base, name) for name in ("patients.csv", "admissions.csv")]
        if paths[0] is None or paths[1] is None:
            log.warning("no MIMIC-IV patients and admissions at %s: sex, age and race stay unknown", base)
            return
        people = table.reader.table(paths[0], ["subject_id", "gender", "anchor_age", "anchor_year"])
        people.strip_spaces("subject_id")
        people.check_unique("subject_id")
        people.parse("gender", "sex", parse_sex)
        for column in ("anchor_age", "anchor_year"):
            people.parse(column, column, _whole_number, "BAD_AGE", "float32")
        known = _joined(table.frame[["subject_id", "year"]], people.frame, ["subject_id"])
        ages = known["anchor_age"] + (known["year"] - known["anchor_year"])
        ages = ages.where(known["anchor_age"] < OLDEST, OLDEST).where(known["anchor_age"].notna())
        race = table.frame["subject_id"].map(self._races(table.reader, paths[1]))
        table.set(sex=known["sex"], age=ages.clip(upper=OLDEST), race=race)
        table.reject((ages < 0) | (ages > MAX_AGE + OLDEST), "BAD_AGE", "the age at the study is not possible")

    def _find(self, base: Path, name: str) -> Path | None:
        from fdamed.data.table_reader import existing

        found = next((f for f in (existing(d, name) for d in (base / "hosp", base / "core", base)) if f), None)
        if found is None and self.mimic_iv:
            fix = "Set data.mimic_iv to the folder with hosp/ (or core/)."
            raise FdamedError(f"there is no {name}(.gz)", str(base), fix)
        return found

    def _races(self, reader: RowReader, path: Path) -> pd.Series:
        """Patient -> race by the configured values and rule for contradictions; unknown values do not count."""
        table = reader.table(path, ["subject_id"], ["race", "ethnicity", "admittime"])
        column = next((c for c in ("race", "ethnicity") if c in table.frame), None)
        if column is None:
            what = "missing column `race` (before MIMIC-IV 2.0: `ethnicity`)"
            raise FdamedError(what, str(path), "Is this the table of admissions?")
        table.strip_spaces("subject_id")
        meaning = {value.upper(): race for race, values in self.races.items() for value in values}
        table.parse(column, "mapped", lambda text: meaning.get(text.strip().upper()) if meaning else _race(text))
        frame = table.frame.dropna(subset=["mapped"])
        frame = frame.sort_values([c for c in ("subject_id", "admittime") if c in frame], kind="stable")
        if self.contradiction == "first":
            return frame.drop_duplicates("subject_id").set_index("subject_id")["mapped"]
        counts = frame.groupby(["subject_id", "mapped"]).size().rename("n").reset_index()
        if self.contradiction == "majority":
            counts = counts[counts["n"] == counts.groupby("subject_id")["n"].transform("max")]
        single = ~counts["subject_id"].duplicated(keep=False)
        return counts[single].set_index("subject_id")["mapped"]


def _release_table(root: Path, what: str) -> Path:
    found = _optional_table(root, what)
    if found is None:
        missing = f"there is no mimic-cxr-2.0.0-{what}.csv.gz nor one of another release"
        fix = "Set data.root to the MIMIC-CXR folder, which holds the tables and files/."
        raise FdamedError(missing if root.is_dir() else "there is no such folder", str(root), fix)
    return found


def _optional_table(root: Path, what: str) -> Path | None:
    """`mimic-cxr-VERSION-WHAT.csv(.gz)` of the newest release in the folder."""
    pattern = re.compile(rf"mimic-cxr-(\d+)\.(\d+)\.(\d+)-{what}\.csv(\.gz)?")
    found = [(m, p) for p in root.glob(f"mimic-cxr-*-{what}.csv*") if (m := pattern.fullmatch(p.name))]
    ranked = sorted(found, key=lambda f: (int(f[0][1]), int(f[0][2]), int(f[0][3]), bool(f[0][4])))
    return ranked[-1][1] if ranked else None


def _race(text: str) -> str | None:
    race = parse_race(text)
    return race if race in RACES else None


def _year(text: str) -> float | None:
    text = text.strip().removesuffix(".0")
    if text and not re.fullmatch(r"\d{4}(0[1-9]|1[0-2])([0-2]\d|3[01])", text):
        raise ValueError("not yyyymmdd")
    return float(text[:4]) if text else None


def _whole_number(text: str) -> float | None:
    if text.strip() and not re.fullmatch(r"\d{1,4}", text.strip()):
        raise ValueError("not a number")
    return float(text) if text.strip() else None


def _joined(left: pd.DataFrame, right: pd.DataFrame, on: list[str]) -> pd.DataFrame:
    """A left join that keeps the row numbers."""
    out = left.merge(right, on=on, how="left", validate="many_to_one")
    out.index = left.index
    return out
