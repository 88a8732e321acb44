"""MIDRC: the Gen3 export (case, imaging_study, cr_/dx_series_file nodes as TSV or JSON) and DICOM series."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from fdamed.config.datasets import DataSet
from fdamed.core.errors import FdamedError
from fdamed.data.datasets.gen3 import Record, first, nodes, whole_numbers
from fdamed.data.vocabulary import OLDEST, UNKNOWN, parse_age, parse_race, parse_sex, parse_view

if TYPE_CHECKING:
    import pandas as pd

    from fdamed.data.row_reader import Rejects, RowReader

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
COLUMNS = ["image", "patient", "study", "view", "projection", "sex", "age", "race", "site", "scanner", LABEL]


class Midrc(DataSet):
    paper_split: ClassVar[str] = "site"

    layout: Literal["midrc"]
    states: dict[str, tuple[str, ...]] = Field(default={}, examples=[{"IL": ["600-629"]}])
    """Site -> ranges of three-digit zip codes such as "600-629"; empty: the five states of the healthcare paper."""
    test_window: tuple[int, int] | None = Field(None, examples=[[-14, 14]])
    """Count a case as positive only if a positive test lies within these days of the study, e.g. [-14, 14]."""

    def rows(self, reader: RowReader) -> pd.DataFrame:
        """One row per DICOM file of a CR or DX series, with the values of its study and case."""
        import pandas as pd

        rejects, tables, sites = reader.rejects, nodes(Path(self.root)), _sites(self.states or STATES)
        cases = {first(c, "submitter_id"): c for c in tables["case"]}
        studies = {first(s, "submitter_id"): s for s in tables["imaging_study"]}
        files = self._files({n for s in tables["series"] for n in _names(s)})
        seen: dict[str, dict[str, object]] = {}
        for series in tables["series"]:
            table, row = first(series, "_table"), int(first(series, "_row"))
            study = studies.get(first(series, "imaging_studies.submitter_id"), {})
            case = cases.get(first(study, "cases.submitter_id") or first(study, "case_ids"))
            if case is None:
                rejects.add(table, row, "NO_CASE", "the series belongs to no case of the export")
                continue
            try:
                known = self._values(case, study, series, sites)
            except ValueError as error:
                rejects.add(table, row, str(error), "a value of the case, study or series is not allowed there")
                continue
            for image in _images(series, files, table, row, rejects):
                record = {"image": image, **known}
                earlier = seen.setdefault(image, record)
                if earlier != record:
                    what = f"row {row} lists an image that an earlier series has with other values"
                    raise FdamedError(what, table, "A series belongs to one case and study; keep the right row.")
                if earlier is not record:
                    rejects.add(table, row, "DUPLICATE_ROW", "the row repeats an earlier series")
        frame = pd.DataFrame(list(seen.values()), columns=COLUMNS)
        return reader.index(frame, frame["patient"], frame["study"])

    def _values(self, case: Record, study: Record, series: Record, sites: dict[str, str]) -> dict[str, object]:
        """The contract's columns; raises ValueError with the reason of rejection."""
        views = map(parse_view, series.get("view_position", ()))
        view, projection = next((v for v in views if v != (None, None)), (None, None))
        scanner = " ".join(filter(None, (first(series, "manufacturer"), first(series, "manufacturer_model_name"))))
        races = {r for r in map(parse_race, case.get("race_ethnicity", ())) if r}
        return {
            "patient": first(case, "submitter_id"),
            "study": first(study, "submitter_id"),
            "view": view,
            "projection": projection,
            "sex": _reason("BAD_SEX", parse_sex, first(case, "sex")),
            "age": _reason("BAD_AGE", _age, case, study),
            "race": parse_race(first(case, "race")) or (races.pop() if len(races) == 1 else None),
            "site": sites.get(first(case, "zip").zfill(3)) if first(case, "zip") else None,
            "scanner": scanner or None,
            LABEL: _reason("BAD_LABEL", self._covid, case, study),
        }

    def _covid(self, case: Record, study: Record) -> float | None:
        """The case's result; with a window, a positive case counts only if a positive test lies within it."""
        text = first(case, "covid19_positive").lower()
        if text in UNKNOWN:
            return None
        if text not in COVID:
            raise ValueError("not a test result")
        if COVID[text] != 1.0 or self.test_window is None:
            return COVID[text]
        low, high = self.test_window
        days = whole_numbers(study.get("days_from_study_to_pos_covid_test", ()))
        return 1.0 if any(low <= day <= high for day in days) else None

    def _files(self, wanted: set[str]) -> dict[str, list[str]]:
        """Series name -> its DICOM files below the root: in a folder of that name at any depth, or a file of that name.

        Links to folders are followed only where the configuration allows folders outside the root.
        """
        from fdamed.data.safe_paths import Roots

        out: dict[str, list[str]] = {}
        roots, seen = Roots.of(self.root, self.allowed_roots), set()
        for folder, below, names in os.walk(self.root, followlinks=bool(self.allowed_roots)):
            below.sort()
            real = os.path.realpath(folder) + "/"
            if real in seen or not roots.contain(real):
                below.clear()
                continue
            seen.add(real)
            parts = Path(folder).relative_to(self.root).parts
            owner = next((part for part in reversed(parts) if part in wanted), None)
            for name in sorted(names):
                stem, suffix = os.path.splitext(name)  # noqa: PTH122
                path = "/".join((*parts, name))
                if suffix.lower() == ".zip" and stem in wanted:
                    out.setdefault(f"{stem}.zip", []).append(path)
                elif (owner or stem in wanted) and (suffix.lower() in DICOM or suffix[1:].isdigit()):
                    out.setdefault(owner or stem, []).append(path)
        return out


def _reason(reason: str, parser: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return parser(*arguments)
    except ValueError:
        raise ValueError(reason) from None


def _age(case: Record, study: Record) -> float | None:
    """Age at the study, else at the index event; the flags `gt89` stand for 90 and over."""
    for record, field in ((study, "age_at_imaging"), (case, "age_at_index")):
        if first(record, f"{field}_gt89").lower() == "yes":
            return float(OLDEST)
        age = parse_age(first(record, field))
        if age is not None:
            return age
    return None


def _sites(states: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """Three-digit zip code -> state."""
    out: dict[str, str] = {}
    for state, text in ((state, text) for state, ranges in states.items() for text in ranges):
        if not re.fullmatch(r"\d{3}(-\d{3})?", text):
            raise FdamedError(f"`{text}` is no range of three-digit zip codes", "data.states", 'Write "600-629".')
        low, _, high = text.partition("-")
        for code in range(int(low), int(high or low) + 1):
            if out.setdefault(f"{code:03d}", state) != state:
                raise FdamedError(f"zip code {code:03d} has two states", "data.states", "Fix the ranges.")
    return out


def _names(series: Record) -> list[str]:
    """The names under which a series can lie on disk: its UID, its file's stem."""
    stems = [Path(name).name.removesuffix(".zip").removesuffix(".dcm") for name in series.get("file_name", ())]
    return [n for n in dict.fromkeys([*series.get("series_uid", ())[:1], *stems]) if n]


def _images(series: Record, files: dict[str, list[str]], table: str, row: int, rejects: Rejects) -> list[str]:
    """The series' DICOM files."""
    from fdamed.data.row_reader import UNSAFE_PATH

    names = _names(series)
    if not names or any(re.search(UNSAFE_PATH, name) for name in (*names, *series.get("file_name", ()))):
        rejects.add(table, row, "PATH_OUTSIDE_ROOT", "the series has no name, or its file_name leaves the data root")
        return []
    found = next((files[name] for name in names if name in files), [])
    if not found:
        packed = any(f"{name}.zip" in files for name in names)
        detail = "the series is still a zip; unpack it" if packed else "no DICOM file of this series below the root"
        rejects.add(table, row, "ZIP_NOT_UNPACKED" if packed else "MISSING", detail)
    return found
