"""Tables as hospitals hand them out: CSV, TSV, gzip and xlsx; every cell an exact string, every fault with its row."""

from __future__ import annotations

import csv
import difflib
import gzip
import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from fdamed.core.errors import FdamedError

LARGEST = 4 << 30
"""Bytes that a table may have after unpacking: a bomb is refused, MIMIC-IV's largest table is not."""
TABLES = {".csv", ".tsv", ".txt", ".xlsx"}
FIRST_ROW = 2
"""Row of a table's first record, as a spreadsheet counts; a frame's index holds these numbers."""


def read_table(path: Path, columns: Sequence[str] | None = None, optional: Sequence[str] = ()) -> pd.DataFrame:
    """The columns of a table as exact strings, indexed by row number; `columns` must be there, `optional` may be.

    With neither named, all columns come.
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
    """The names of a table's columns for a message, if its first row is a header: else it is a patient's."""
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


def by_value(
    column: pd.Series, convert: Callable[[str], Any], dtype: str = "object"
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(`convert` of each cell, where it gave None), called once for each distinct value."""
    codes, distinct = pd.factorize(column)
    values = [convert(value) for value in distinct]
    bad = np.array([v is None for v in values], dtype=bool)
    out = np.empty(len(values), dtype=dtype)
    for i, value in enumerate(values):
        out[i] = np.nan if value is None else value
    return out[codes], bad[codes]


def label_value(text: str) -> float | None:
    """1, 0, -1, NaN for blank, None for anything else."""
    text = text.strip()
    if text == "":
        return float("nan")
    match = re.fullmatch(r"([+-]?[01])(\.0*)?", text)
    return float(match[1]) if match else None


def age_value(text: str) -> float | None:
    """Years from `62`, `62.0`, `062Y`, `006M`; NaN for blank, None for nonsense and for ages over 120."""
    text = text.strip()
    if text == "":
        return float("nan")
    match = re.fullmatch(r"(\d{1,6})(?:\.(\d{1,9}))?([YMWD]?)", text)
    if not match:
        return None
    years = float(f"{match[1]}.{match[2] or 0}") / {"": 1, "Y": 1, "M": 12, "W": 52, "D": 365}[match[3]]
    return float(np.floor(years)) if years <= 120 else None


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
        raise FdamedError(f"the table is {reason}", str(path), "Download it again or mend its permissions.") from None
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
    # By number: without a header the first row is a patient's.
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
            f"a quotation mark after row {row} is never closed or stands inside a value",
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


def content_hash(frame: pd.DataFrame) -> str:
    """`manifest.content_hash`, digit for digit, at the speed that a quarter of a million rows needs."""
    columns = sorted(frame.columns)
    texts = [_texts(frame[c]) for c in columns]
    rows = pc.binary_join_element_wise(*texts, pa.scalar("\x1f", pa.large_string()))
    rows = rows.take(pc.array_sort_indices(rows)).to_pylist()
    h = hashlib.sha256("\x1e".join(columns).encode())
    h.update("".join("\x1d" + row for row in rows).encode())
    return h.hexdigest()[:16]


def column_hash(frame: pd.DataFrame, key: str) -> str:
    """Sixteen hex digits of a large frame, column by column in the order of its unique `key`."""
    order = np.asarray(frame[key].argsort(), dtype="int64")
    h = hashlib.sha256()
    for name in sorted(frame.columns):
        column = frame[name]
        h.update(f"\x1e{name}\x1f".encode())
        if pd.api.types.is_float_dtype(column):
            values = column.to_numpy()[order].astype("<f4")
            h.update(np.where(np.isnan(values), np.float32(np.nan), values).astype("<f4").tobytes())
        else:
            h.update("\x1d".join(column.astype("str").fillna("").to_numpy(dtype=object)[order]).encode())
    return h.hexdigest()[:16]


def _texts(column: pd.Series) -> pa.Array:
    codes, distinct = pd.factorize(column)
    values = [str(v) for v in pd.Series(distinct).astype(object)] + [""]
    taken = np.where(codes < 0, len(distinct), codes)
    return pa.array(values, pa.large_string()).take(pa.array(taken))
