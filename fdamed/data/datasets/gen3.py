"""Gen3 exports in all their shapes: node TSV or JSON, the Explorer's flattened lists, file manifests."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from fdamed.core.errors import FdamedError

Record = Mapping[str, Sequence[str]]
"""One node: field -> its values as text; a single value is a list of one."""

NODES = {"case": "case", "imaging_study": "imaging_study", "cr_series_file": "series", "dx_series_file": "series"}
NEEDED = {"case": ("submitter_id",), "imaging_study": ("submitter_id",), "series": ("file_name",)}
LARGEST = 1 << 30


def nodes(root: Path) -> dict[str, list[Record]]:
    """The records of case, imaging_study and series, from all tables in the root and the folders right below it."""
    if not root.is_dir():
        raise FdamedError("there is no such folder", str(root), "Set data.root to the folder of the Gen3 export.")
    out: dict[str, list[Record]] = {"case": [], "imaging_study": [], "series": []}
    listed: set[str] | None = None
    for path in sorted([*root.glob("*"), *root.glob("*/*")]):
        if path.suffix.lower() not in (".tsv", ".json") or not path.is_file():
            continue
        node = _node(path.stem)
        if node is None and "manifest" not in path.stem.lower():
            continue
        records = _records(path)
        if node is None:
            listed = (listed or set()) | {name for r in records for name in r.get("file_name", ())}
            continue
        _require(records, NEEDED[NODES[node]], path)
        out[NODES[node]] += records
    if not out["series"]:
        out["series"] = _flattened(out["case"])
    _check(out, root)
    if listed is not None:
        out["series"] = [s for s in out["series"] if listed.intersection(s.get("file_name", ()))]
    return out


def first(record: Record, field: str) -> str:
    """The first value of a field, empty where there is none."""
    values = record.get(field, ())
    return values[0] if values else ""


def whole_numbers(values: Iterable[str]) -> list[int]:
    return [int(float(v)) for v in values if re.fullmatch(r"[+-]?\d{1,6}(\.0+)?", v.strip())]


def _node(stem: str) -> str | None:
    """The node that a file's name contains: `case`, `Open-A1_case`, `imaging_study_Open-R1`."""
    words = f"_{re.sub(r'[^A-Za-z0-9]+', '_', stem).lower()}_"
    for node in ("cr_series_file", "dx_series_file", "imaging_study", "case"):
        if f"_{node}_" in words or f"_{node}s_" in words:
            return node
    return None


def _records(path: Path) -> list[Record]:
    from fdamed.data.table_reader import read_table

    if path.suffix.lower() == ".tsv":
        frame = read_table(path)
        names = [name.lstrip("*") for name in frame.columns]
        columns = [frame[c].tolist() for c in frame.columns]
        rows = [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]
        numbered = zip(frame.index, rows, strict=True)
    else:
        numbered = enumerate(_json(path), start=1)  # type: ignore[assignment]
    return [
        {**{k: _values(v) for k, v in row.items()}, "_table": (path.name,), "_row": (str(number),)}
        for number, row in numbered
    ]


def _json(path: Path) -> list[dict[str, Any]]:
    try:
        if path.stat().st_size > LARGEST:
            raise FdamedError("the table is larger than 1 GiB", str(path), "Export it as TSV.")
        content = json.loads(path.read_bytes())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise FdamedError("the table is not readable as JSON", str(path), "Export it again.") from None
    while isinstance(content, dict) and len(content) == 1:
        content = next(iter(content.values()))
    if not isinstance(content, list) or not all(isinstance(r, dict) for r in content):
        raise FdamedError("the JSON is not a list of records", str(path), "Export it again from Gen3.")
    return [_unnested(record) for record in content]


def _unnested(record: dict[str, Any]) -> dict[str, Any]:
    """Links of node JSON, `cases: [{submitter_id: X}]`, under the name that the TSV gives them."""
    out: dict[str, Any] = {}
    for key, value in record.items():
        inner = value if isinstance(value, list) else [value]
        if inner and all(isinstance(v, dict) for v in inner):
            for v in inner:
                for name, content in v.items():
                    out.setdefault(f"{key}.{name}", []).append(content)
        else:
            out[key.lstrip("*")] = value
    return out


def _values(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return _from_text(value)
    if isinstance(value, list | tuple):
        return tuple(v for item in value for v in _values(item))
    if value is None:
        return ()
    return (str(int(value)) if isinstance(value, float) and value.is_integer() else str(value),)


@lru_cache(maxsize=1 << 16)
def _from_text(text: str) -> tuple[str, ...]:
    """A list that was printed as text is a list again."""
    text = text.strip()
    if not text:
        return ()
    if text[0] != "[" or text[-1] != "]" or len(text) > 100_000:
        return (text,)
    try:
        content = ast.literal_eval(text.replace("null", "None"))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return tuple(w for w in (part.strip(" '\"") for part in text[1:-1].split(",")) if w)
    return tuple(v for item in content for v in _values(item)) if isinstance(content, list) else (text,)


def _flattened(cases: list[Record]) -> list[Record]:
    """Series of an Explorer export, where a case lists the files of all its series."""
    return [
        {**case, "file_name": (name,), "series_uid": (), "case_ids": (first(case, "submitter_id"),)}
        for case in cases
        for name in case.get("file_name", ())
    ]


def _require(records: list[Record], fields: Sequence[str], path: Path) -> None:
    known = {field for record in records[:1000] for field in record}
    absent = [f for f in fields if f not in known]
    if records and absent:
        from fdamed.data.table_reader import shown_header

        has = sorted(k for k in known if not k.startswith("_"))
        fix = shown_header(has, (*fields, "type", "project_id", "submitter_id"))
        raise FdamedError(f"missing column {', '.join(f'`{f}`' for f in absent)}", str(path), fix)


def _check(tables: dict[str, list[Record]], root: Path) -> None:
    for node in ("case", "series"):
        if not tables[node]:
            name = "case" if node == "case" else "cr_series_file or dx_series_file"
            raise FdamedError(
                f"there is no table of {name} (TSV or JSON), or it is empty",
                str(root),
                "Export the nodes case, imaging_study and cr_series_file from Gen3 into data.root.",
            )
    for node in ("case", "imaging_study"):
        by_id: dict[str, Record] = {}
        for record in tables[node]:
            key = first(record, "submitter_id")
            earlier = by_id.setdefault(key, record)
            if _content(earlier) != _content(record):
                raise FdamedError(
                    f"row {first(record, '_row')} contradicts an earlier row with the same submitter_id",
                    first(record, "_table"),
                    "Keep the right row.",
                )


def _content(record: Record) -> dict[str, Sequence[str]]:
    return {k: v for k, v in record.items() if not k.startswith("_")}
