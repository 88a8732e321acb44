"""MIDRC: the Gen3 export (case, imaging_study, cr_/dx_series_file nodes as TSV or JSON) and DICOM series -> rows."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pandas as pd

from fdamed.config.datasets import Midrc
from fdamed.core.errors import FdamedError
from fdamed.data.datasets.gen3 import Record, first, nodes, whole_numbers
from fdamed.data.intake import WICKED, Rejects, capped_age, sex_value, view_of
from fdamed.data.manifest import OLDEST, as_index, pseudonyms
from fdamed.data.race import race_of
from fdamed.data.safe_paths import inside, real_roots

LABEL = "label.COVID-19"
COVID = {"yes": 1.0, "no": 0.0, "indeterminate": -1.0, "positive": 1.0, "negative": 0.0}
STATES: dict[str, tuple[str, ...]] = {
    "IL": ("600-629",),
    "NC": ("270-289",),
    "CA": ("900-961",),
    "IN": ("460-479",),
    "TX": ("750-799", "733", "885"),
}
"""State -> three-digit zip codes; the five of the healthcare paper's Table 1."""
DICOM = (".dcm", ".dicom", "")


def rows(data: Midrc, salt: str, tables_only: bool, rejects: Rejects) -> pd.DataFrame:
    """One row a DICOM file of a CR or DX series, with what its study and case say."""
    root = Path(data.root)
    tables = nodes(root)
    cases = {first(c, "submitter_id"): c for c in tables["case"]}
    studies = {first(s, "submitter_id"): s for s in tables["imaging_study"]}
    zips = _zips(data.states or STATES)
    files = (
        {} if tables_only else _files(root, {uid for s in tables["series"] for uid in _names(s)}, data.allowed_roots)
    )
    out: list[dict[str, object]] = []
    seen: dict[str, dict[str, object]] = {}
    for series in tables["series"]:
        table, row = first(series, "_table"), int(first(series, "_row"))
        study = studies.get(first(series, "imaging_studies.submitter_id"), {})
        case = cases.get(_case_of(series, study), {})
        patient = first(case, "submitter_id")
        if not patient:
            rejects.add(table, row, "NO_CASE", "the series leads to no case")
            continue
        try:
            known = _known(case, study, series, zips, data.test_window)
        except ValueError as error:
            rejects.add(table, row, str(error), "a value of the case, study or series is outside what the field allows")
            continue
        key = first(study, "submitter_id") or first(series, "study_uid") or first(series, "series_uid")
        images = _images(series, files, tables_only, table, row, rejects)
        for image in images:
            record = {"image": image, "patient": patient, "study": f"{patient}/{key}", **known}
            if seen.setdefault(image, record) is not record:
                if seen[image] != record:
                    raise FdamedError(
                        f"row {row} gives an image that an earlier series gave with other values",
                        table,
                        "A series must belong to one case and study; keep the right row.",
                    )
                rejects.add(table, row, "DUPLICATE_ROW", "the same series stands above")
                continue
            out.append(record)
    frame = pd.DataFrame(out, columns=["image", "patient", "study", *_KNOWN])
    frame["patient"] = pseudonyms(salt, frame["patient"])
    frame["study"] = pseudonyms(salt, frame["study"])
    return as_index(frame)


_KNOWN = ("view", "projection", "sex", "age", "race", "site", "scanner", LABEL)


def _known(
    case: Record, study: Record, series: Record, zips: dict[str, str], window: tuple[int, int] | None
) -> dict[str, object]:
    sex = sex_value(first(case, "sex"))
    if sex is None:
        raise ValueError("BAD_SEX")
    view, projection = next(
        (v for v in map(view_of, series.get("view_position", ())) if v != (None, None)), (None, None)
    )
    scanner = " ".join(w for w in (first(series, "manufacturer"), first(series, "manufacturer_model_name")) if w)
    return {
        "view": view,
        "projection": projection,
        "sex": sex,
        "age": _age(case, study),
        "race": _race(case),
        "site": zips.get(first(case, "zip").zfill(3)) if first(case, "zip") else None,
        "scanner": scanner or None,
        LABEL: _covid(case, study, window),
    }


def _age(case: Record, study: Record) -> float:
    """Age at the study, else at the index event; the flags `gt89` stand for 90 and over."""
    for record, field in ((study, "age_at_imaging"), (case, "age_at_index")):
        if first(record, f"{field}_gt89").lower() == "yes":
            return float(OLDEST)
        age = capped_age(first(record, field))
        if age is None:
            raise ValueError("BAD_AGE")
        if not np.isnan(age):
            return age
    return float("nan")


def _race(case: Record) -> str | None:
    """`race`, else the one race that the newer list `race_ethnicity` names."""
    race = race_of(first(case, "race"))
    if race:
        return race
    named = {r for r in map(race_of, case.get("race_ethnicity", ())) if r}
    return named.pop() if len(named) == 1 else None


def _covid(case: Record, study: Record, window: tuple[int, int] | None) -> float:
    """The case's result; with a window, a positive case counts only if a positive test lies within it."""
    text = first(case, "covid19_positive").lower()
    if text in ("", "not reported", "unknown"):
        return float("nan")
    if text not in COVID:
        raise ValueError("BAD_LABEL")
    if COVID[text] != 1.0 or window is None:
        return COVID[text]
    days = whole_numbers(study.get("days_from_study_to_pos_covid_test", ()))
    return 1.0 if any(window[0] <= day <= window[1] for day in days) else float("nan")


def _case_of(series: Record, study: Record) -> str:
    """A series knows its case by its study, or in a flattened export by itself."""
    return first(study, "cases.submitter_id") or first(series, "case_ids") or first(study, "case_ids")


def _zips(states: dict[str, tuple[str, ...]]) -> dict[str, str]:
    out: dict[str, str] = {}
    for state, ranges in states.items():
        for text in ranges:
            low, _, high = text.partition("-")
            if not (low.isdigit() and (high or low).isdigit() and len(low) == len(high or low) == 3):
                raise FdamedError(f"`{text}` is no range of three-digit zip codes", "data.states", 'Write "600-629".')
            for code in range(int(low), int(high or low) + 1):
                if out.setdefault(f"{code:03d}", state) != state:
                    raise FdamedError(f"zip code {code:03d} has two states", "data.states", "Mend the ranges.")
    return out


def _names(series: Record) -> list[str]:
    """The names under which a series can lie on disk: its UID, its file's stem."""
    stems = [Path(name).name.removesuffix(".zip").removesuffix(".dcm") for name in series.get("file_name", ())]
    return [n for n in dict.fromkeys([first(series, "series_uid"), *stems]) if n]


def _files(root: Path, wanted: set[str], allowed: tuple[str, ...]) -> dict[str, list[str]]:
    """Series name -> its DICOM files below the root: in a folder of that name at any depth, or a file of that name.

    Links to folders are followed only where the configuration allows folders outside the root.
    """
    out: dict[str, list[str]] = {}
    roots, seen = real_roots(root, allowed), set()
    for folder, below, names in os.walk(root, followlinks=bool(allowed)):
        below.sort()
        if allowed:
            real = os.path.realpath(folder) + "/"
            if real in seen or not inside(real, roots):
                below.clear()
                continue
            seen.add(real)
        parts = Path(folder).relative_to(root).parts
        owner = next((part for part in reversed(parts) if part in wanted), None)
        for name in sorted(names):
            stem, suffix = os.path.splitext(name)  # noqa: PTH122
            path = "/".join((*parts, name))
            if suffix.lower() == ".zip" and stem in wanted:
                out.setdefault(f"{stem}.zip", []).append(path)
            elif (owner or stem in wanted) and (suffix.lower() in DICOM or suffix[1:].isdigit()):
                out.setdefault(owner or stem, []).append(path)
    return out


def _images(
    series: Record, files: dict[str, list[str]], tables_only: bool, table: str, row: int, rejects: Rejects
) -> list[str]:
    names = _names(series)
    if not names or any(re.search(WICKED, name) for name in (*names, *series.get("file_name", ()))):
        rejects.add(table, row, "PATH_OUTSIDE_ROOT", "the series has no name, or its file_name leaves the data root")
        return []
    if tables_only:
        return [f"{names[0]}.dcm"]
    found = next((files[name] for name in names if name in files), [])
    if not found:
        packed = any(f"{name}.zip" in files for name in names)
        detail = "the series is still a zip; unpack it" if packed else "no DICOM file of this series below the root"
        rejects.add(table, row, "ZIP_NOT_UNPACKED" if packed else "MISSING", detail)
    return found
