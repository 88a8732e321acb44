"""Reads CSV, TSV (plain or gzipped) and xlsx: every cell as an exact string, every error with its row."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv

from fdamed.core.errors import FdamedError

LARGEST = 4 << 30
"""Bytes of an unpacked table at most: stops bombs, and lets MIMIC-IV's largest table through."""
TABLES = {".csv", ".tsv", ".txt", ".xlsx"}
FIRST_ROW = 2
"""Row of a table's first record, as a spreadsheet counts; a frame's index holds these numbers."""


def read_table(path: Path, columns: Sequence[str] | None = None, optional: Sequence[str] = ()) -> pd.DataFrame:
    """The columns of a table as strings, indexed by row number; `columns` must be there, `optional` may be.

    Without `columns`, all of them.
    """
    if path.name.lower().endswith(".xlsx"):
        header, frame = _read_xlsx(path)
    else:
        data = _read_bytes(path)
        separator = "\t" if ".tsv" in path.suffixes or ".txt" in path.suffixes else ","
        header = _header(data, separator, path)
        frame = None
    _check_header(header, path)
    wanted = list(header) if columns is None else require(header, columns, path)
    wanted += [c for c in optional if c in header and c not in wanted]
    if frame is None:
        frame = _parse(data, separator, header, wanted, path)
    frame = frame[wanted]
    frame.index = pd.RangeIndex(FIRST_ROW, FIRST_ROW + len(frame))
    return frame


def require(header: Sequence[str], columns: Sequence[str], path: Path) -> list[str]:
    """`columns` as a list, if the header has them all."""
    absent = [c for c in columns if c not in header]
    if absent:
        near = {c: difflib.get_close_matches(c, [h for h in header if h], n=2, cutoff=0.5) for c in absent}
        hints = "; ".join(f"`{c}`" + (f" (nearest: {', '.join(near[c])})" if near[c] else "") for c in absent)
        if len(absent) == len(columns):
            hints = ", ".join(f"`{c}`" for c in absent)
        raise FdamedError(f"missing column {hints}", str(path), shown_header(header, columns))
    return list(columns)


def shown_header(header: Sequence[str], columns: Sequence[str]) -> str:
    """The names of a table's columns for a message, unless the first row may be a patient's."""
    if not set(header).intersection(columns):
        return f"Is the first row the header? None of its {len(header)} cells is the name of a column asked for."
    return f"The table has: {', '.join(h for h in header if h)[:500]}."


def existing(folder: Path, *names: str) -> Path | None:
    """The first of `names` that is a file in `folder`, as it is or gzipped."""
    for name in names:
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    return None


def _read_bytes(path: Path) -> bytes:
    if not path.is_file():
        # Only tables: an image may bear its patient's name.
        beside = [p.name for p in path.parent.glob("*") if TABLES.intersection(map(str.lower, p.suffixes))]
        near = difflib.get_close_matches(path.name, beside[:1000], n=3, cutoff=0.5)
        hint = f"Nearest names there: {', '.join(near)}." if near else "Check data.root and the names of the tables."
        raise FdamedError("there is no such table", str(path), hint)
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as f:
            data = f.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        reason = "a damaged gzip file" if path.suffix == ".gz" else f"not readable: {type(error).__name__}"
        raise FdamedError(f"the table is {reason}", str(path), "Download it again or fix its permissions.") from None
    if len(data) > LARGEST:
        raise FdamedError(f"the table is larger than {LARGEST >> 30} GiB", str(path), "Is this the right file?")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise FdamedError("the table is UTF-16", str(path), "Save it as UTF-8 (in a spreadsheet: CSV UTF-8).")
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise FdamedError(f"line {line} is not UTF-8", str(path), "Save the table as UTF-8.") from None
    return data


def _records(data: bytes, separator: str, strict: bool = False) -> Any:
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline="")
    return csv.reader(text, delimiter=separator, strict=strict)


def _header(data: bytes, separator: str, path: Path) -> list[str]:
    try:
        for record in _records(data, separator):
            if record:
                return [name.strip() for name in record]
    except csv.Error:
        raise FdamedError("the header cannot be read", str(path), "Is this a table?") from None
    raise FdamedError("the table is empty", str(path), "A table begins with a header of column names.")


def _check_header(header: list[str], path: Path) -> None:
    # By number: if the header is missing, the first row holds a patient's values.
    twice = [str(place) for place, name in enumerate(header, start=1) if header.count(name) > 1]
    if twice:
        what = f"columns {', '.join(twice[:6])} of the first row share a name or have none"
        raise FdamedError(what, str(path), "Name every column once, in the first row.")


def _parse(data: bytes, separator: str, header: list[str], wanted: list[str], path: Path) -> pd.DataFrame:
    # Arrow takes names as the file has them; the stripped ones are put in their place afterwards.
    quoted = b'"' in data
    if quoted and data.count(b'"') % 2:
        _find_open_quote(data, separator, path)
    raw = next(record for record in _records(data, separator) if record)
    names = {clean: written for clean, written in zip(header, raw, strict=True) if clean in wanted}
    try:
        table = pyarrow.csv.read_csv(
            pa.py_buffer(data),
            read_options=pyarrow.csv.ReadOptions(block_size=max(1 << 24, len(data)) if quoted else 1 << 22),
            parse_options=pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=quoted),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={name: pa.string() for name in raw},
                include_columns=[names[c] for c in wanted],
                strings_can_be_null=False,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid:
        _find_ragged_row(data, separator, len(header), path)
        raise FdamedError("the table cannot be parsed", str(path), "Save it again as plain CSV.") from None
    return pd.DataFrame({c: pd.Series(table.column(i), dtype="str") for i, c in enumerate(wanted)})


def _find_open_quote(data: bytes, separator: str, path: Path) -> None:
    row = 0
    records = _records(data, separator, strict=True)
    try:
        for row, _ in enumerate(records, start=1):  # noqa: B007
            pass
    except csv.Error:
        raise FdamedError(
            f"a quotation mark after row {row} is never closed or is inside a value",
            str(path),
            'Write a quotation mark inside a value twice: "".',
        ) from None


def _find_ragged_row(data: bytes, separator: str, expected: int, path: Path) -> None:
    records = (record for record in _records(data, separator) if record)
    try:
        for row, record in enumerate(records, start=1):
            if len(record) != expected:
                raise FdamedError(
                    f"row {row} has {len(record)} fields, the header has {expected}",
                    str(path),
                    "Every row needs as many fields as the header; a value with a separator in it needs quotes.",
                )
    except csv.Error:
        raise FdamedError("the table cannot be parsed", str(path), "Save it again as plain CSV.") from None


def _read_xlsx(path: Path) -> tuple[list[str], pd.DataFrame]:
    import openpyxl
    from openpyxl.utils.exceptions import InvalidFileException

    if not path.is_file():
        raise FdamedError("there is no such table", str(path), "Check the path.")
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > LARGEST // 4:
                raise FdamedError("the workbook unpacks to more than 1 GiB", str(path), "Save it as CSV.")
        sheet = openpyxl.load_workbook(path, read_only=True, data_only=True).worksheets[0]
        records = [[_cell(value) for value in row] for row in sheet.iter_rows(values_only=True)]
    except (zipfile.BadZipFile, InvalidFileException, KeyError, ValueError, OSError, IndexError) as error:
        raise FdamedError(
            f"the workbook cannot be read: {type(error).__name__}", str(path), "Open it and save it as CSV."
        ) from None
    if not records:
        raise FdamedError("the workbook's first sheet is empty", str(path), "Put the table on the first sheet.")
    header = [name.strip() for name in records[0]]
    while header and header[-1] == "":
        header.pop()
    _check_header(header, path)
    body = [(row + [""] * len(header))[: len(header)] for row in records[1:]]
    return header, pd.DataFrame(body, columns=header, dtype="str")


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
