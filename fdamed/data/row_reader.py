"""Rows of tables on their way into the index: each check takes out the rows that fail it and lists them."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fdamed.config.privacy import CELL
from fdamed.core.disclosure import cell_safe
from fdamed.core.errors import FdamedError, no_folder
from fdamed.data.manifest import COLUMNS, LABEL, as_index, pseudonyms
from fdamed.data.table_reader import existing, read_table
from fdamed.data.vocabulary import ACCEPTED, CONTRACT, parse_label, parse_view

NO_FAULT = ("DUPLICATE_ROW", "RACE_CONTRADICTS", "OTHER_LABELER")
"""Reasons that are listed but are no fault of the data."""
UNSAFE_PATH = r"(?:^|/)\.\.(?:/|$)|^/|^~|^[A-Za-z]:|\\|\x00|^\s*$"
"""A cell that is no path below the data root: climbing, absolute, of another system, NUL, empty."""
OUTSIDE = (
    "Paths of images may not be empty, begin with /, ~ or a drive (C:), or climb with .. out of data.root: write them "
    "relative to data.root, or set data.root to a folder above all images."
)
Parser = Callable[[str], Any]
Array = np.ndarray[Any, Any]


@dataclass
class Rejects:
    """Every rejected row and file, with its reason."""

    lines: list[tuple[str, str, str, str]] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    """How to fix columns with values that are not allowed."""

    def add(self, file: str, row: int | None, reason: str, detail: str) -> None:
        self.lines.append((file, "" if row is None else str(row), reason, detail))

    def explain(self, column: str, cells: pd.Series, kind: str, key: str) -> None:
        """Remember which cells of a column are not allowed, what is, and the key that maps them (if there is one).

        Only values of many rows are quoted: a rarer text could be about a person.
        """
        found = cells.value_counts()
        common = [f"`{str(value)[:30]}`" for value, n in found.items() if n >= CELL][:5]
        quoted = ", ".join(common + ["rarer values"] * (len(common) < len(found)))
        allowed = f"; allowed: {ACCEPTED[kind]}" if kind in ACCEPTED else ""
        mapping = f"; map them in {key}: {{VALUE: one that is allowed}}" if key else ""
        self.hints.append(f"Column `{column}` holds {quoted}{allowed}{mapping}.")

    def counts(self) -> dict[str, int]:
        return dict(sorted(Counter(reason for _, _, reason, _ in self.lines).items()))

    def faults(self) -> int:
        """How many lines are faults of the data."""
        return sum(n for reason, n in self.counts().items() if reason not in NO_FAULT)

    def as_csv(self) -> str:
        """The content of rejects.csv; no cell can start a formula in a spreadsheet."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("file", "row", "reason", "detail"))
        writer.writerows([cell_safe(cell) for cell in line] for line in self.lines)
        return out.getvalue()


@dataclass(frozen=True)
class RowReader:
    """What a data set's `rows` works with."""

    salt: str
    rejects: Rejects

    def table(self, path: Path, columns: Sequence[str] | None = None, optional: Sequence[str] = ()) -> TableRows:
        """The rows of a table, all cells as text; `columns` must be there, `optional` may be; None: all columns."""
        return TableRows(path, read_table(path, columns, optional), self)

    def find(self, folder: Path, *names: str, key: str = "data.root") -> Path:
        """The first of `names` in the folder, plain or gzipped."""
        found = existing(folder, *names)
        if found is None:
            what = f"there is no {' or '.join(names)}" if folder.is_dir() else no_folder(folder)
            raise FdamedError(what, str(folder), f"Set {key} to the folder that holds {names[0]}.")
        return found

    def index(self, frame: pd.DataFrame, patient: pd.Series, study: pd.Series) -> pd.DataFrame:
        """The contract's columns of `frame`, with pseudonyms for the identifiers; a study belongs to its patient."""
        patient = patient.astype("str")
        kept = frame[[c for c in frame.columns if c in COLUMNS or c.startswith(LABEL)]]
        studies = pseudonyms(self.salt, patient + "/" + study.astype("str"))
        return as_index(kept.assign(patient=pseudonyms(self.salt, patient), study=studies))


@dataclass
class TableRows:
    """One table's rows that passed all checks so far, in `frame`, indexed by row number."""

    path: Path
    frame: pd.DataFrame
    reader: RowReader

    def reject(self, bad: Any, reason: str, detail: str, column: str = "") -> None:
        """Take out the rows where `bad` holds; `column`: the list, which stays with the client, quotes its cells."""
        bad = np.asarray(bad, dtype=bool)
        if bad.any():
            cells = (f": {str(cell)[:60]}" for cell in self.frame.loc[bad, column]) if column else repeat("")
            found = zip(self.frame.index[bad], cells, strict=False)
            listed = ((self.path.name, str(row), reason, f"{detail}{cell}") for row, cell in found)
            self.reader.rejects.lines.extend(listed)
            self.frame = self.frame.loc[~bad]

    def set(self, **columns: Any) -> None:
        """Add or replace columns."""
        self.frame = self.frame.assign(**columns)

    def strip_spaces(self, *columns: str) -> None:
        """Identifiers without the spaces around them."""
        self.set(**{column: self.frame[column].str.strip() for column in columns})

    def check_unique(self, *key: str) -> None:
        """Take out exact duplicates; two different rows with the same key are an error."""
        self.reject(self.frame.duplicated(), "DUPLICATE_ROW", "the row repeats an earlier one")
        clash = self.frame.index[self.frame.duplicated(list(key), keep=False)]
        if len(clash):
            rows = ", ".join(map(str, clash[:6])) + (", ..." if len(clash) > 6 else "")
            varies = self.frame.loc[clash].groupby(list(key)).nunique(dropna=False).gt(1).any()
            others = ", ".join(varies.index[varies])
            same = " and ".join(key)
            what = f"rows contradict each other: they have the same {same}, but differ in {others} (rows {rows})"
            most = f"Most rows share their {same}: is it the right column? " if 2 * len(clash) > len(self.frame) else ""
            raise FdamedError(what, str(self.path), f"{most}Keep one row of each; only you can know which is right.")

    def relative_paths(self, column: str, root: str) -> None:
        """Make absolute paths below the root relative to it, and backslashes, as Windows writes them, to slashes."""
        paths = self.frame[column].str.replace("\\", "/", regex=False)
        for folder in dict.fromkeys((str(Path(root).absolute()), os.path.realpath(root))):
            paths = paths.str.removeprefix(folder.rstrip("/") + "/")
        self.set(**{column: paths})

    def check_paths(self, column: str) -> None:
        """Take out the rows whose path cannot lie below the data root."""
        outside = self.frame[column].str.contains(UNSAFE_PATH)
        if outside.any():
            self.reader.rejects.hints.append(OUTSIDE)
        self.reject(outside, "PATH_OUTSIDE_ROOT", f"the path in {column} is empty, absolute or leaves the data root")

    def parse(self, column: str, into: str, parser: Parser, reason: str = "") -> None:
        """Add the parsed column `into`; take out the rows where the parser raises ValueError."""
        values, bad = by_value(self.frame[column], parser)
        if bad.any():
            name = into.removeprefix(CONTRACT)
            key = f"data.values.{name}" if name != into else ""
            self.reader.rejects.explain(column, self.frame[column][bad], name, key)
        self.set(**{into: values})
        self.reject(bad, reason or f"BAD_{into.upper()}", f"{column} holds a value that is not allowed there", column)

    def parse_view(self, column: str) -> None:
        """Add `view` and `projection`."""
        self.parse(column, "view", lambda text: parse_view(text)[0])
        self.parse(column, "projection", lambda text: parse_view(text)[1])

    def parse_labels(self, labels: Mapping[str, str], parsers: Mapping[str, Parser] | None = None) -> None:
        """Add `label.NAME` of each {NAME: column}; a row with a value outside 1, 0, -1 and blank is taken out once."""
        values, bad, wrong_in = {}, np.zeros(len(self.frame), dtype=bool), []
        for name, column in labels.items():
            parser = (parsers or {}).get(name, parse_label)
            values[LABEL + name], wrong = by_value(self.frame[column], parser)
            if wrong.any():
                wrong_in.append(name)
                key = f"data.values.{name}" if parsers else ""
                self.reader.rejects.explain(column, self.frame[column][wrong], "label", key)
            bad |= wrong
        self.set(**values)
        self.reject(bad, "BAD_LABEL", f"a label is not 1, 0, -1 or blank; in this table: {', '.join(wrong_in)}")

    def named_labels(self, column: str, split: Callable[[str], list[str]], known: Sequence[str] | None = None) -> None:
        """Add `label.NAME`, 1 or 0, for each name in cells that list findings; a name outside `known` is rejected."""
        listed = self.frame[column].map({cell: set(split(cell)) for cell in self.frame[column].unique()})
        names = known or sorted(set().union(*listed))
        labels = {LABEL + name: np.array([name in found for found in listed], dtype="float32") for name in names}
        self.frame = pd.concat([self.frame, pd.DataFrame(labels, index=self.frame.index)], axis=1)
        bad = [not found <= set(names) for found in listed]
        self.reject(bad, "BAD_LABEL", f"{column} names a finding that the data set does not have")


def by_value(column: pd.Series, parser: Parser) -> tuple[Array, Array]:
    """(parsed cells with NaN for missing, where the parser raised ValueError); each distinct value is parsed once."""
    codes, distinct = pd.factorize(column)
    values, bad = [], np.zeros(len(distinct), dtype=bool)
    for i, text in enumerate(distinct):
        try:
            value = parser(text)
        except ValueError:
            bad[i], value = True, None
        values.append(np.nan if value is None else value)
    numbers = all(isinstance(value, float) for value in values)
    return np.array(values, dtype="float32" if numbers else "object")[codes], bad[codes]
