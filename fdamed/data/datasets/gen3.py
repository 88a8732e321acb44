"""Gen3 exports: nodes as TSV or JSON, with plain values, lists, or lists printed as text."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fdamed.core.errors import FdamedError, no_folder

Record = Mapping[str, Sequence[str]]
"""One node: field -> its values as text; a single value is a list of one."""

NODES = {"cr_series_file": "series", "dx_series_file": "series", "imaging_study": "imaging_study", "case": "case"}
"""Part of a file's name, such as `Open-A1_case` or `imaging_study_Open-R1` -> its node."""
NEEDED = {"case": ("submitter_id",), "imaging_study": ("submitter_id",), "series": ("submitter_id", "file_name")}


def nodes(root: Path) -> dict[str, list[Record]]:
    """The records of case, imaging_study and series, from all tables in the root and the folders right below it."""
    if not root.is_dir():
        raise FdamedError(no_folder(root), str(root), "Set data.root to the folder of the Gen3 export.")
    out: dict[str, list[Record]] = {"case": [], "imaging_study": [], "series": []}
    for path in sorted([*root.glob("*"), *root.glob("*/*")]):
        if path.suffix.lower() not in (".tsv", ".json") or not path.is_file():
            continue
        words = f"_{re.sub(r'[^a-z0-9]+', '_', path.stem.lower())}_"
        node = next((NODES[name] for name in NODES if re.search(f"_{name}s?_", words)), None)
        if node:
            out[node] += _records(path, NEEDED[node])
    _check(out, root)
    return out


def first(record: Record, field: str) -> str:
    """The first value of a field, empty where there is none."""
    values = record.get(field, ())
    return values[0] if values else ""


def whole_numbers(values: Iterable[str]) -> list[int]:
    return [int(float(v)) for v in values if re.fullmatch(r"[+-]?\d{1,6}(\.0+)?", v.strip())]


def _records(path: Path, needed: Sequence[str]) -> list[Record]:
    """The rows of a table, with its name in `_table` and their number in `_row`."""
    from fdamed.data.table_reader import FIRST_ROW, read_table, require

    tsv = path.suffix.lower() == ".tsv"
    rows: list[Any] = read_table(path).to_dict("records") if tsv else _json(path)
    rows = [{key.lstrip("*"): _values(value) for key, value in row.items()} for row in rows]
    if rows:
        require(sorted({field for row in rows[:1000] for field in row}), needed, path)
    return [{**row, "_table": (path.name,), "_row": (str(n),)} for n, row in enumerate(rows, FIRST_ROW if tsv else 1)]


def _json(path: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
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
        if not inner or not all(isinstance(v, dict) for v in inner):
            out[key] = value
            continue
        for name, content in (item for v in inner for item in v.items()):
            out.setdefault(f"{key}.{name}", []).append(content)
    return out


def _values(value: Any) -> tuple[str, ...]:
    """The values as text; a list that was printed as text is a list again."""
    if isinstance(value, list):
        return tuple(v for item in value for v in _values(item))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = "" if value is None else str(value).strip()
    if text[:1] != "[" or text[-1] != "]":
        return (text,) if text else ()
    try:
        return _values(list(ast.literal_eval(text.replace("null", "None"))))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return tuple(filter(None, (part.strip(" '\"") for part in text[1:-1].split(","))))


def _check(tables: dict[str, list[Record]], root: Path) -> None:
    """Raise if a node is missing, or if two records with one submitter_id contradict each other."""
    for node, name in (("case", "case"), ("series", "cr_series_file or dx_series_file")):
        if not tables[node]:
            fix = "Export the nodes case, imaging_study and cr_series_file from Gen3 into data.root."
            raise FdamedError(f"there is no table of {name} (TSV or JSON), or it is empty", str(root), fix)
    for node in ("case", "imaging_study"):
        seen: dict[str, Record] = {}
        for record in tables[node]:
            content = {k: v for k, v in record.items() if not k.startswith("_")}
            if seen.setdefault(first(record, "submitter_id"), content) != content:
                what = f"row {first(record, '_row')} contradicts an earlier row with the same submitter_id"
                raise FdamedError(what, first(record, "_table"), "Keep the right row.")
