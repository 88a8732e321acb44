"""Any CSV or TSV, with a column mapping in the configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from fdamed.config.datasets import Cell, DataSet
from fdamed.core.errors import FdamedError
from fdamed.data.vocabulary import (
    CONTRACT,
    parse_age,
    parse_flag,
    parse_known_view,
    parse_label,
    parse_race_or_text,
    parse_sex,
)

if TYPE_CHECKING:
    import pandas as pd

    from fdamed.data.row_reader import RowReader

REQUIRED = ("image", "patient")
Parser = Callable[[str], Any]


class Table(DataSet, local=("table",)):
    layout: Literal["table"]
    table: str
    """CSV, TSV or xlsx file, below the root or absolute; a CSV may be separated by commas, semicolons or tabs."""
    columns: dict[str, str]
    """Column of the row contract -> column of the table; `image` and `patient` are required."""
    labels: dict[str, str]
    """Name of a label -> column of the table."""
    values: dict[str, dict[Cell, str | float | None]] = Field(default={})
    """Column of the row contract or label -> {value in the table: value in the contract}."""

    def rows(self, reader: RowReader) -> pd.DataFrame:
        """The rows of the table, through the mapping `data.columns`, `data.labels` and `data.values`."""
        self._check_mapping()
        wanted = list(dict.fromkeys([*self.columns.values(), *self.labels.values()]))
        table = reader.table(Path(self.root) / self.table, wanted)
        table.relative_paths(self.columns["image"], self.root)
        table.check_paths(self.columns["image"])
        table.check_unique(self.columns["image"])
        table.parse_labels(self.labels, {name: self._replaced(name, parse_label) for name in self.labels})
        for column, source in self.columns.items():
            parser = self._replaced(column, PARSERS.get(column, _text))
            table.parse(source, f"{CONTRACT}{column}", parser, f"BAD_{column.upper()}")
        for column in REQUIRED:
            blank = table.frame[f"{CONTRACT}{column}"].isna()
            table.reject(blank, "BLANK_ID", f"{self.columns[column]} is blank")
        frame = table.frame.drop(columns=wanted).rename(columns=lambda c: c.removeprefix(CONTRACT))
        study = frame["study"].fillna(frame["image"]) if "study" in frame else frame["image"]
        return reader.index(frame, frame["patient"], study)

    def _check_mapping(self) -> None:
        from fdamed.data.manifest import COLUMNS

        mapped = [*self.columns, *self.labels]
        known = f"Columns are {', '.join(COLUMNS)}. A label belongs into data.labels."
        for where, what, wrong, fix in (
            ("columns", "not mapped", set(REQUIRED) - set(self.columns), "Name the table's column of each."),
            ("columns", "unknown", set(self.columns) - set(COLUMNS), known),
            ("values", "unknown", set(self.values) - set(mapped), "Map it in data.columns or data.labels first."),
            ("labels", "no label is mapped", set() if self.labels else {"any"}, "Name a label and its column."),
        ):
            if wrong:
                raise FdamedError(f"{what}: {', '.join(sorted(wrong))}", f"data.{where}", fix)

    def _replaced(self, name: str, parser: Parser) -> Parser:
        """`parser` after the configured replacement; a replacement by null means unknown."""
        table = {key.strip(): value for key, value in self.values.get(name, {}).items()}

        def parse(text: str) -> Any:
            text = text.strip()
            if text not in table:
                return parser(text)
            value = table[text]
            return None if value is None else parser(f"{value:g}" if isinstance(value, float) else str(value))

        return parse


def _text(text: str) -> str | None:
    return text.strip() or None


PARSERS: dict[str, Parser] = {
    "age": parse_age,
    "sex": parse_sex,
    "view": parse_known_view,
    "race": parse_race_or_text,
    "burned_in": parse_flag,
}
"""Columns of the row contract that are not just text."""
