"""Runs that differ in the value of an option: grouped by what they go over, as tables of method x value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.run_tables import HEADLINE, clipped

if TYPE_CHECKING:
    from fdamed.config.runs import Swept

Value = float | int | str | bool
LOGARITHMIC = frozenset({"labeled"})
"""Options whose values are spread over orders of magnitude."""


@dataclass(frozen=True)
class Sweep:
    """All runs that go over the same options."""

    options: tuple[str, ...]
    runs: Mapping[str, Mapping[tuple[Value, ...], str]]
    """Run of the configuration -> values -> the run that was made of it."""

    @property
    def name(self) -> str:
        return " and ".join(self.options)

    @property
    def values(self) -> list[tuple[Value, ...]]:
        """Every value that some run has, ascending where they are numbers."""
        return sorted(dict.fromkeys(v for cells in self.runs.values() for v in cells), key=_order)

    def axis(self, place: int = 0) -> list[Value]:
        """The values of one of the options, in order."""
        return list(dict.fromkeys(v[place] for v in sorted(self.values, key=lambda v: _order(v[place : place + 1]))))

    @property
    def numeric(self) -> bool:
        return all(number(v) for values in self.values for v in values)

    @property
    def logarithmic(self) -> bool:
        return self.numeric and self.options[0] in LOGARITHMIC and all(float(v[0]) > 0 for v in self.values)


def number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _order(values: tuple[Value, ...]) -> tuple[tuple[bool, float, str], ...]:
    return tuple((not number(v), float(v) if number(v) else 0.0, str(v)) for v in values)


def grouped(swept: Mapping[str, Swept]) -> list[Sweep]:
    """The sweeps of a study: runs over the same options share one."""
    found: dict[tuple[str, ...], dict[str, dict[tuple[Value, ...], str]]] = {}
    for name, entry in swept.items():
        options = tuple(sorted(entry.values))
        cells = found.setdefault(options, {}).setdefault(entry.run, {})
        cells[tuple(entry.values[o] for o in options)] = name
    return [Sweep(options, runs) for options, runs in found.items()]


def table(
    sweeps: Sequence[Sweep],
    summary: Mapping[tuple[str, str, str], Interval],
    targets: Sequence[str],
    metrics: Sequence[str] = HEADLINE,
) -> pd.DataFrame:
    """One row a target, run, value and metric: mean, low, high, seeds over the runs of every sweep."""
    none = Interval(None, None, 0)
    rows = []
    for sweep in sweeps:
        for target in targets:
            for run, cells in sweep.runs.items():
                for values in sorted(cells, key=_order):
                    for metric in metrics:
                        score = summary.get((target, cells[values], metric), none)
                        value = "; ".join(str(v) for v in values)
                        head = ("; ".join(sweep.options), target, run, value, metric)
                        rows.append((*head, score.mean, *clipped(score), score.n))
    columns = ["option", "target", "run", "value", "metric", "mean", "low", "high", "seeds"]
    return pd.DataFrame(rows, columns=columns).astype({"mean": "float64", "low": "float64", "high": "float64"})
