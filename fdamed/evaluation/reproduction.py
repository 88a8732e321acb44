"""A paper's results beside ours, which are those of the last evaluated round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from fdamed.core.run_record import Record
from fdamed.evaluation.intervals import Interval, over_seeds

if TYPE_CHECKING:
    from fdamed.config.study import Published

CLOSE = 2.5
"""Points within which a result counts as reproduced."""


@dataclass(frozen=True)
class Cell:
    """One result of a paper and ours, in percent."""

    run: str
    target: str
    paper: float
    last: Interval

    @property
    def apart(self) -> float | None:
        """Last round minus the paper, in points."""
        return None if self.last.mean is None else self.last.mean - self.paper


def cells(published: Published, targets: Iterable[str], records: Iterable[Record]) -> list[Cell]:
    """Every result of the paper, run here or not, in the order of the configuration."""
    ours: dict[tuple[str, str], list[float]] = {}
    for record in records:
        scores = [row.get("test/acc") for row in record.rounds]
        last = [100 * float(score) for score in scores if score is not None][-1:]
        ours.setdefault((record.run, record.target), []).extend(last)
    out = []
    for run, value in published.values.items():
        each = value if isinstance(value, dict) else dict.fromkeys(targets, value)
        out += [Cell(run, target, paper, over_seeds(ours.get((run, target), []))) for target, paper in each.items()]
    return out


def within(found: Iterable[Cell], points: float = CLOSE) -> tuple[int, int]:
    """How many of our results are that close to the paper, and how many there are."""
    ran = [abs(c.apart) for c in found if c.apart is not None]
    return sum(a <= points for a in ran), len(ran)


def table(found: list[Cell]) -> pd.DataFrame:
    """One row per result of the paper."""
    rows = [(c.run, c.target, c.paper, c.last.mean, c.last.half, c.last.n, c.apart) for c in found]
    return pd.DataFrame(rows, columns=["run", "target", "paper", "last", "last_half", "seeds", "apart"])
