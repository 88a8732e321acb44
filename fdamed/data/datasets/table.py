"""Any CSV or TSV with a column mapping in the configuration -> rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from fdamed.config.datasets import Table
from fdamed.core.errors import FdamedError
from fdamed.data.intake import (
    Rejects,
    capped_age,
    converted,
    distinct_rows,
    refuse_paths,
    sex_value,
    view_of,
    with_labels,
)
from fdamed.data.manifest import COLUMNS, VIEWS, as_index, pseudonyms
from fdamed.data.table_reader import label_value, read_table

NEEDED = ("image", "patient")
Values = dict[str, str | float | None]
Reader = Callable[[str], Any]


def rows(data: Table, salt: str, tables_only: bool, rejects: Rejects) -> pd.DataFrame:
    """One row a row of the table, read through the mapping `data.columns`, `data.labels` and `data.values`."""
    _check_mapping(data)
    path = Path(data.table) if Path(data.table).is_absolute() else Path(data.root) / data.table
    raw = read_table(path, list(dict.fromkeys([*data.columns.values(), *data.labels.values()])))
    raw = distinct_rows(raw, [data.columns["image"]], path, rejects)
    raw = refuse_paths(raw, data.columns["image"], path.name, rejects)
    readers = {name: _through(data.values.get(name), label_value) for name in data.labels}
    out = with_labels(raw, data.labels, path.name, rejects, readers)
    for column, source in data.columns.items():
        refusal = (path.name, f"BAD_{column.upper()}", f"{source} holds a value that `{column}` cannot take")
        read = _through(data.values.get(column), READERS.get(column, _text))
        out = converted(out, source, f"contract.{column}", read, refusal, rejects, _dtype(column))
    for column in NEEDED:
        detail = f"{data.columns[column]} is blank"
        out = rejects.refuse(out, pd.isna(out[f"contract.{column}"]), path.name, "BLANK_ID", detail)
    out = out.drop(columns=list(raw.columns)).rename(columns=lambda c: c.removeprefix("contract."))
    study = out["study"].fillna(out["image"]) if "study" in out else out["image"]
    out["study"] = pseudonyms(salt, out["patient"].astype("str") + "/" + study.astype("str"))
    out["patient"] = pseudonyms(salt, out["patient"])
    return as_index(out)


def _check_mapping(data: Table) -> None:
    where = "data.columns"
    absent = [c for c in NEEDED if c not in data.columns]
    if absent:
        raise FdamedError(f"{' and '.join(absent)} must be mapped", where, "Name the table's column of each.")
    stray = [c for c in data.columns if c not in COLUMNS]
    if stray:
        raise FdamedError(f"unknown: {', '.join(stray)}", where, f"The row contract has: {', '.join(COLUMNS)}.")
    stray = [c for c in data.values if c not in data.columns and c not in data.labels]
    if stray:
        raise FdamedError(f"unknown: {', '.join(stray)}", "data.values", "Map it in data.columns or data.labels first.")
    if not data.labels:
        raise FdamedError("no label is mapped", "data.labels", "Name at least one label and its column.")


def _through(values: Values | None, read: Reader) -> Reader:
    """`read` after the configured replacement; a replacement by null means unknown."""
    if not values:
        return read
    table = {key.strip(): value for key, value in values.items()}

    def replaced(text: str) -> Any:
        text = text.strip()
        if text not in table:
            return read(text)
        value = table[text]
        return float("nan") if value is None else read(f"{value:g}" if isinstance(value, float) else str(value))

    return replaced


def _text(text: str) -> str | float:
    return text.strip() or float("nan")


def _view(text: str) -> str | float | None:
    word = text.strip().lower()
    if word in VIEWS or not word:
        return word or float("nan")
    return view_of(text)[0]


def _flag(text: str) -> bool | float | None:
    word = text.strip().lower()
    if word in ("", "unknown"):
        return float("nan")
    return {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}.get(word)


def _dtype(column: str) -> str:
    return "float32" if column == "age" else "object"


READERS: dict[str, Reader] = {"age": capped_age, "sex": sex_value, "view": _view, "burned_in": _flag}
"""Columns of the row contract that are not just text."""
