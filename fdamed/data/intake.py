"""What is refused on the way in: rows, paths that leave the data root, files that are not images."""

from __future__ import annotations

import csv
import io
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fdamed.core.disclosure import cell_safe
from fdamed.core.errors import FdamedError
from fdamed.core.progress import track
from fdamed.data.manifest import LABEL, OLDEST
from fdamed.data.safe_paths import inside, real_roots
from fdamed.data.table_reader import age_value, by_value, label_value

DROPPED = ("DUPLICATE_ROW", "RACE_CONTRADICTS")
"""Reasons that are listed but are no fault of the data."""
SEX = {"male": "M", "female": "F", "m": "M", "f": "F"}
UNKNOWN = ("", "unknown", "u", "o", "other", "not reported", "not available", "n/a", "na", "none")


@dataclass
class Rejects:
    """Every refused row and file, with its reason."""

    lines: list[tuple[str, str, str, str]] = field(default_factory=list)

    def add(self, file: str, row: int | None, reason: str, detail: str) -> None:
        self.lines.append((file, "" if row is None else str(row), reason, detail))

    def refuse(self, frame: pd.DataFrame, bad: Any, file: str, reason: str, detail: str) -> pd.DataFrame:
        """List the rows of `frame` where `bad` holds, by row number, and give the others back."""
        bad = np.asarray(bad, dtype=bool)
        if not bad.any():
            return frame
        self.lines.extend((file, str(row), reason, detail) for row in frame.index[bad])
        kept: pd.DataFrame = frame.loc[~bad]
        return kept

    def counts(self) -> dict[str, int]:
        tally: dict[str, int] = {}
        for _, _, reason, _ in self.lines:
            tally[reason] = tally.get(reason, 0) + 1
        return dict(sorted(tally.items()))

    def refused(self) -> int:
        return sum(n for reason, n in self.counts().items() if reason not in DROPPED)

    def as_csv(self) -> str:
        """The content of rejects.csv; no cell can start a formula in a spreadsheet."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("file", "row", "reason", "detail"))
        writer.writerows([cell_safe(cell) for cell in line] for line in self.lines)
        return out.getvalue()


WICKED = r"(^|/)\.\.(/|$)|^/|^~|^[A-Za-z]:|\\|\x00|^\s*$"
"""What makes a cell no path below the data root: climbing, absolute, of another system, NUL, empty."""


def leaves_root(paths: pd.Series) -> np.ndarray[Any, Any]:
    """Which cells cannot be a path below the data root."""
    found = pc.match_substring_regex(pa.array(paths.astype("str"), pa.large_string()), WICKED)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=bool)


def refuse_paths(frame: pd.DataFrame, column: str, table: str, rejects: Rejects) -> pd.DataFrame:
    detail = f"the path in {column} is empty, absolute or leaves the data root"
    return rejects.refuse(frame, leaves_root(frame[column]), table, "PATH_OUTSIDE_ROOT", detail)


def distinct_rows(frame: pd.DataFrame, key: Sequence[str], table: Path, rejects: Rejects) -> pd.DataFrame:
    """Drop exact duplicates, listing them; two different rows for one `key` are an error."""
    if not frame.duplicated(list(key)).any():
        return frame
    frame = rejects.refuse(frame, frame.duplicated(), table.name, "DUPLICATE_ROW", "the same row stands above")
    clash = frame.duplicated(list(key), keep=False)
    if clash.any():
        rows = ", ".join(str(r) for r in frame.index[clash][:6])
        raise FdamedError(
            f"{int(frame.duplicated(list(key)).sum())} rows contradict an earlier one with the same {' and '.join(key)}"
            f" (rows {rows}{', ...' if clash.sum() > 6 else ''})",
            str(table),
            "Keep the right row of each; nobody but you can know which labels are true.",
        )
    return frame


def converted(
    frame: pd.DataFrame,
    column: str,
    into: str,
    convert: Callable[[str], Any],
    refusal: tuple[str, str, str],
    rejects: Rejects,
    dtype: str = "object",
) -> pd.DataFrame:
    """Add `convert` of a column under another name; rows where it gives None are refused as (table, reason, detail)."""
    values, bad = by_value(frame[column], convert, dtype)
    frame = frame.assign(**{into: values})
    return rejects.refuse(frame, bad, *refusal)


def with_labels(
    frame: pd.DataFrame,
    labels: Mapping[str, str],
    table: str,
    rejects: Rejects,
    readers: Mapping[str, Callable[[str], Any]] | None = None,
) -> pd.DataFrame:
    """Add `label.NAME` of each {NAME: column}; a row with a value outside 1, 0, -1 and blank is refused once."""
    values, bad, guilty = {}, np.zeros(len(frame), dtype=bool), []
    for name, column in labels.items():
        convert = (readers or {}).get(name, label_value)
        values[LABEL + name], wrong = by_value(frame[column], convert, "float32")
        guilty += [name] if wrong.any() else []
        bad |= wrong
    detail = f"a label is none of 1, 0, -1 and blank; so in: {', '.join(guilty)}"
    return rejects.refuse(frame.assign(**values), bad, table, "BAD_LABEL", detail)


def sex_value(text: str) -> str | float | None:
    """F, M, NaN for unknown, None for what is no sex at all."""
    word = text.strip().lower()
    if word in SEX:
        return SEX[word]
    return float("nan") if word in UNKNOWN else None


def capped_age(text: str) -> float | None:
    """`age_value`, with everything from 90 on in one class."""
    age = age_value(text)
    return None if age is None else float(np.minimum(age, OLDEST))


# --- files -----------------------------------------------------------------------------------------------------------

FROM_HEADER = ("view", "projection", "sex", "age", "scanner", "burned_in")
"""What a DICOM header adds where the tables say nothing."""
CHUNK = 256
FEW = 4
"""Up to so many chunks of files a pool of processes costs more than it gives."""
Chunk = tuple[tuple[str, ...], int, list[str]]
"""`real_roots`, the place of the first image, paths below the first root."""
Finding = tuple[int, str, str, tuple[Any, ...] | None]


def inspect(frame: pd.DataFrame, root: Path, rejects: Rejects, allowed: Sequence[str] = ()) -> pd.DataFrame:
    """Keep the rows whose file is there, below the root (or, by a link, in an `allowed` folder) and readable.

    Gaps are filled from DICOM headers.
    """
    if not len(frame):
        return frame
    images = frame["image"].tolist()
    roots = real_roots(root, allowed)
    chunks = [(roots, start, images[start : start + CHUNK]) for start in range(0, len(images), CHUNK)]
    findings = [f for found in track(_examined(chunks), "checking files", len(chunks)) for f in found]
    bad = np.zeros(len(frame), dtype=bool)
    filled = {c: frame[c].astype(object).to_numpy(copy=True) for c in FROM_HEADER}
    for position, reason, detail, header in findings:
        if reason:
            bad[position] = True
            rejects.add(images[position], None, reason, detail)
        elif header:
            for column, value in zip(FROM_HEADER, header, strict=True):
                if value is not None and pd.isna(filled[column][position]):
                    filled[column][position] = value
    out = frame.copy()
    for column, values in filled.items():
        out[column] = pd.Series(values, index=frame.index).astype(frame[column].dtype)
    return out[~bad].reset_index(drop=True)


def _examined(chunks: list[Chunk]) -> Iterator[list[Finding]]:
    if len(chunks) <= FEW:
        yield from map(examine, chunks)
        return
    # A fork would copy Arrow's threads in whatever state they are.
    context = get_context("forkserver")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(chunks)), mp_context=context) as pool:
        yield from pool.map(examine, chunks)


def examine(chunk: Chunk) -> list[Finding]:
    """(position, reason, detail, header) for the files of one chunk about which there is something to say."""
    roots, start, images = chunk
    out: list[Finding] = []
    for position, image in enumerate(images, start=start):
        reason, detail, header = examine_file(roots, image)
        if reason or header:
            out.append((position, reason, detail, header))
    return out


def examine_file(roots: tuple[str, ...], image: str) -> tuple[str, str, tuple[Any, ...] | None]:
    """Reason of refusal (empty: none), its detail, and what a DICOM header says."""
    from fdamed.data.image import Unreadable, kind, sniff

    path = os.path.join(roots[0], image)  # noqa: PTH118
    try:
        mode = os.lstat(path).st_mode
        real = os.path.realpath(path) if stat.S_ISLNK(mode) else os.path.join(_real_folder(os.path.dirname(path)), "x")  # noqa: PTH118, PTH120
        if not inside(real, roots):
            return "PATH_OUTSIDE_ROOT", "a link leads out of the data root; see data.allowed_roots", None
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
            return "NOT_A_FILE", "this is a folder or a device", None
        if kind(Path(path)) == "dicom":
            return "", "", _header_of(Path(path))
        sniff(Path(path))
    except (FileNotFoundError, NotADirectoryError):
        return "MISSING", "the table names this file, but it is not there", None
    except Unreadable as error:
        return error.reason, error.detail, None
    except (OSError, ValueError) as error:
        return "UNREADABLE", type(error).__name__, None
    return "", "", None


@lru_cache(maxsize=65536)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def _header_of(path: Path) -> tuple[Any, ...]:
    from fdamed.data.dicom.reader import read_header

    header = read_header(path)
    scanner = " ".join(word for word in (header.manufacturer, header.model) if word) or None
    age = None if header.age is None else min(float(header.age), float(OLDEST))
    return (
        header.view,
        header.projection,
        header.sex if header.sex in ("F", "M") else None,
        age,
        scanner,
        header.burned_in,
    )


def view_of(text: str) -> tuple[str | None, str | None]:
    """(frontal or lateral or None, projection or None) of what tables and headers write."""
    word = text.strip().upper().replace("_", " ")
    names = {"POSTEROANTERIOR": "PA", "POSTERO ANTERIOR": "PA", "ANTEROPOSTERIOR": "AP", "ANTERO POSTERIOR": "AP"}
    word = names.get(word, word)
    if word in ("", "UNKNOWN", "NOT REPORTED"):
        return None, None
    if "LATERAL" in word or word in ("LL", "RL", "LLD LATERAL"):
        return "lateral", word if word in ("LL", "RL") else "LATERAL"
    if word.split()[0] in ("PA", "AP"):
        return "frontal", word.split()[0]
    return None, word[:16]
