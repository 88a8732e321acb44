"""A paper's results beside ours: our curve and its last round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fdamed.core.run_record import Record
from fdamed.evaluation.intervals import Interval, over_seeds

if TYPE_CHECKING:
    from fdamed.config.study import Published

Curve = dict[int, float]
"""Round -> score in percent, for the evaluated rounds."""
CLOSE = 2.5
"""Points within which a result counts as reproduced."""


@dataclass(frozen=True)
class Cell:
    """One result of a paper and ours, in percent."""

    run: str
    target: str
    paper: float
    last: Interval
    curve: Curve
    """Mean over the seeds, for the rounds that all of them evaluated."""

    @property
    def apart(self) -> float | None:
        """Last round minus the paper, in points."""
        return None if self.last.mean is None else self.last.mean - self.paper


def cells(published: Published, targets: Iterable[str], records: Iterable[Record]) -> list[Cell]:
    """Every result of the paper, run here or not, in the order of the configuration."""
    curves: dict[tuple[str, str], list[Curve]] = {}
    for record in records:
        scores = {int(row["round"]): row.get(f"test/{published.metric}") for row in record.rounds}
        curve = {r: 100 * float(v) for r, v in scores.items() if v is not None}
        curves.setdefault((record.run, record.target), []).append(curve)
    out = []
    for run, value in published.values.items():
        each = value if isinstance(value, dict) else dict.fromkeys(targets, value)
        out += [_cell(run, target, paper, curves.get((run, target), [])) for target, paper in each.items()]
    return out


def _cell(run: str, target: str, paper: float, curves: list[Curve]) -> Cell:
    kept = [c for c in curves if c]
    shared = sorted(set.intersection(*(set(c) for c in kept))) if kept else []
    curve = {r: float(np.mean([c[r] for c in kept])) for r in shared}
    return Cell(run, target, paper, over_seeds(c[max(c)] for c in kept), curve)


def within(found: Iterable[Cell], points: float = CLOSE) -> tuple[int, int]:
    """How many of our results are that close to the paper, and how many there are."""
    ran = [abs(c.apart) for c in found if c.apart is not None]
    return sum(a <= points for a in ran), len(ran)


def table(found: list[Cell]) -> pd.DataFrame:
    """One row per result of the paper."""
    rows = [(c.run, c.target, c.paper, c.last.mean, c.last.half, c.last.n, c.apart) for c in found]
    return pd.DataFrame(rows, columns=["run", "target", "paper", "last", "last_half", "seeds", "apart"])
