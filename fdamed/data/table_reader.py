"""Reads CSV, TSV (plain or gzipped) and xlsx: every cell as an exact string, every error with its row."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import logging
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import pandas as pd
import pyarrow as pa

from fdamed.core.errors import FdamedError, no_folder

log = logging.getLogger(__name__)

LARGEST = 4 << 30
"""Bytes of an unpacked table at most: stops bombs, and lets MIMIC-IV's largest table through."""
TABLES = {".csv", ".tsv", ".txt", ".xlsx"}
LONGEST_HEADER = 1 << 20
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
FIRST_ROW = 2
"""Row of a table's first record, as a spreadsheet counts; a frame's index holds these numbers."""


def read_table(path: Path, columns: Sequence[str] | None = None, optional: Sequence[str] = ()) -> pd.DataFrame:
    """The columns of a table as strings, indexed by row number; `columns` must be there, `optional` may be.

    Without `columns`, all of them.
    """
    if not path.is_file():
        if not path.parent.is_dir():
            fix = "Set data.root to the folder of the data; a relative path begins where the command runs."
            raise FdamedError(no_folder(path.parent), str(path.parent), fix)
        raise FdamedError("there is no such table", str(path), _nearest_table(path))
    records = _xlsx_records(path) if path.suffix.lower() == ".xlsx" else _csv_records(path)
    header = [name.strip() for name in next(records, [])]
    _check_header(header, path)
    wanted = list(header) if columns is None else require(header, columns, path)
    wanted += [c for c in optional if c in header and c not in wanted]
    cells = list(chain.from_iterable(_complete(records, len(header), path)))  # faster than a list of rows
    by_column = {c: pa.array(cells[header.index(c) :: len(header)], pa.large_string()) for c in wanted}
    frame: pd.DataFrame = pa.table(by_column).to_pandas()
    return frame.set_axis(pd.RangeIndex(FIRST_ROW, FIRST_ROW + len(frame)))


def _nearest_table(path: Path) -> str:
    """The tables with the most similar names in the folder or in the one above, where images have their own."""
    # Only tables: an image may bear its patient's name.
    beside = {p.name: p.name for p in path.parent.glob("*") if TABLES.intersection(map(str.lower, p.suffixes))}
    above = {p.name: f"../{p.name}" for p in path.parent.parent.glob("*") if p.suffix.lower() in TABLES}
    names = dict([*above.items(), *beside.items()][-1000:])
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    folders = sorted(p for p in path.parent.iterdir() if p.is_dir())[:1000] if path.name not in near else []
    if below := [folder for folder in folders if (folder / path.name).is_file()]:
        return f"It is in a folder below: set data.root to {below[0]}."
    if near:
        return f"Nearest names there: {', '.join(names[name] for name in near)}."
    return (
        "There is no table of a similar name. A relative name is looked for below data.root; it may be absolute, too."
    )


def require(header: Sequence[str], columns: Sequence[str], path: Path) -> list[str]:
    """`columns` as a list, if the header has them all."""
    absent = [c for c in columns if c not in header]
    if not absent:
        return list(columns)
    if not set(header).intersection(columns):  # then the first row may be a patient's, and is not shown
        hints = ", ".join(f"`{c}`" for c in absent)
        fix = f"Is the first row the header? None of its {len(header)} cells is the name of a column asked for."
    else:
        near = {c: difflib.get_close_matches(c, [h for h in header if h], n=2, cutoff=0.5) for c in absent}
        hints = "; ".join(f"`{c}`" + (f" (nearest: {', '.join(near[c])})" if near[c] else "") for c in absent)
        fix = f"The table has: {', '.join(h for h in header if h)[:500]}."
    raise FdamedError(f"missing column {hints}", str(path), fix)


def existing(folder: Path, *names: str) -> Path | None:
    """The first of `names` that is a file in `folder`, as it is or gzipped."""
    candidates = (folder / variant for name in names for variant in (name, f"{name}.gz"))
    return next((path for path in candidates if path.is_file()), None)


def _check_header(header: list[str], path: Path) -> None:
    if not header:
        raise FdamedError("the table is empty", str(path), "A table begins with a header of column names.")
    # By number: if the header is missing, the first row holds a patient's values.
    twice = [str(place) for place, name in enumerate(header, start=1) if header.count(name) > 1]
    if twice:
        what = f"columns {', '.join(twice[:6])} of the first row share a name or have none"
        raise FdamedError(what, str(path), "Name every column once, in the first row.")


def _complete(records: Iterator[list[str]], fields: int, path: Path) -> Iterator[list[str]]:
    """The records, each with as many fields as the header."""
    for row, record in enumerate(records, start=FIRST_ROW):
        if len(record) != fields:
            what = f"row {row} has {len(record)} fields, the header has {fields}"
            fix = "Every row needs as many fields as the header; a value with a separator in it needs quotes."
            raise FdamedError(what, str(path), fix)
        yield record


def _csv_records(path: Path) -> Iterator[list[str]]:
    """All rows that are not blank, the header first."""
    text = _text(path)
    row = 0
    try:
        for record in _records(text, _separator(text, path)):
            if record:
                row += 1
                yield record
    except csv.Error:
        what = f"a quotation mark after row {row} is never closed or is inside a value"
        raise FdamedError(what, str(path), 'Write a quotation mark inside a value twice: "".') from None


def _records(text: str, separator: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)


def _separator(text: str, path: Path) -> str:
    """That of the file's suffix, unless only another one splits the header: spreadsheets write what a country uses."""
    usual = "\t" if {".tsv", ".txt"}.intersection(path.suffixes) else ","
    cells = {mark: _cells_of_header(text[:LONGEST_HEADER], mark) for mark in SEPARATORS}
    best = max(SEPARATORS, key=cells.__getitem__)
    if cells[usual] > 1 or cells[best] < 2:
        return usual
    log.info("%s: the columns are separated by %s", path.name, SEPARATORS[best])
    return best


def _cells_of_header(text: str, separator: str) -> int:
    try:
        return len(next(filter(None, _records(text, separator)), ()))
    except csv.Error:  # such as a cell in quotes before another separator
        return 0


def _text(path: Path) -> str:
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as f:
            data = f.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        reason = "a damaged gzip file" if path.suffix == ".gz" else f"not readable: {type(error).__name__}"
        raise FdamedError(f"the table is {reason}", str(path), "Download it again or fix its permissions.") from None
    if len(data) > LARGEST:
        raise FdamedError(f"the table is larger than {LARGEST >> 30} GiB", str(path), "Is this the right file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        fix = "Save the table as UTF-8 (in a spreadsheet: CSV UTF-8)."
        raise FdamedError(f"line {line} is not UTF-8", str(path), fix) from None


def _xlsx_records(path: Path) -> Iterator[list[str]]:
    """The rows of a workbook's first sheet, the header first."""
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > LARGEST // 4:
                raise FdamedError("the workbook unpacks to more than 1 GiB", str(path), "Save it as CSV.")
        sheet = pd.read_excel(path, header=None, dtype=str, na_filter=False)
    except (zipfile.BadZipFile, KeyError, ValueError, OSError, IndexError) as error:
        what = f"the workbook cannot be read: {type(error).__name__}"
        raise FdamedError(what, str(path), "Open it and save it as CSV.") from None
    named = sheet.loc[:, (sheet.iloc[:1] != "").all()]
    yield from named.to_numpy(dtype=object).tolist()
