"""Which run is best where: the cells of a sweep over two options, and what a rule that chooses runs loses there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fdamed.evaluation.ablations import Value
from fdamed.evaluation.comparison.paired_tests import holm
from fdamed.evaluation.intervals import SURE, Interval, over_seeds


@dataclass(frozen=True)
class Regime:
    """A cell of the map."""

    values: tuple[Value, ...]
    scores: Mapping[str, float]
    """Run -> its mean score, best first; at least two."""
    leaders: tuple[str, ...]
    """The best run, and those that the test cannot separate from it."""
    p: float | None
    """Of the best and the second run being equal, corrected by Holm within the cell; None: not tested."""

    @property
    def winner(self) -> str:
        return next(iter(self.scores))

    @property
    def second(self) -> str:
        return list(self.scores)[1]

    @property
    def lead(self) -> float:
        """Points between the best and the second run."""
        first, second, *_ = self.scores.values()
        return 100 * (first - second)


def regime(
    values: tuple[Value, ...],
    folders: Mapping[str, str],
    scores: Mapping[str, float | None],
    pairs: Iterable[Mapping[str, Any]],
) -> Regime | None:
    """The cell of these runs (name -> expanded run); `pairs`: tests of two expanded runs on the same patients.

    Holm's correction is over all pairs of the cell's runs: the best one is not known beforehand.
    """
    known = {run: score for run in folders if (score := scores.get(run)) is not None}
    if len(known) < 2:
        return None
    order = {run: known[run] for run in sorted(known, key=lambda run: -known[run])}
    winner, second, *_ = order
    names = {folder: run for run, folder in folders.items() if run in known}
    here = [p for p in pairs if p["first"] in names and p["second"] in names]
    ends = [frozenset((names[p["first"]], names[p["second"]])) for p in here]
    corrected = dict(zip(ends, holm([p["p"] for p in here]), strict=True))
    tested = all(frozenset((winner, run)) in corrected for run in order if run != winner)
    equal = [r for r in order if tested and r != winner and corrected[frozenset((winner, r))] >= SURE]
    return Regime(values, order, (winner, *equal), corrected[frozenset((winner, second))] if tested else None)


@dataclass(frozen=True, eq=False)
class Decision:
    """What advice chose in one cell, and the scores that the runs reached."""

    target: str
    labeled: Any
    noise: float
    scores: pd.DataFrame
    """One row per seed that all runs have, one column per run."""
    first: str
    """The run with the largest measured drop."""
    clear: bool
    """Whether the advice named it as the winner."""

    @property
    def best(self) -> str:
        return str(self.scores.mean().idxmax())

    def lost(self, run: str) -> Interval:
        """The best run minus this one, paired within seeds, in points."""
        return over_seeds(100 * (self.scores[self.best] - self.scores[run]))


@dataclass(frozen=True)
class Regret:
    """What a rule that chooses runs loses on average over the cells, in points."""

    rule: str
    cells: int
    best: int
    """Cells in which it chooses the best run."""
    lost: Interval
    """Over the cells; over the seeds where there is one cell."""


def regrets(decisions: Sequence[Decision]) -> list[Regret]:
    """The advice, the advice where it names a winner, and each constant rule, least regret first."""
    if not decisions:
        return []
    shared = [str(run) for run in decisions[0].scores if all(run in d.scores for d in decisions)]
    clear = [d for d in decisions if d.clear]
    out = [_regret("advice", [(d, d.first) for d in decisions])]
    out += [_regret("advice, where clear", [(d, d.first) for d in clear])] if clear else []
    always = [_regret(f"always {run}", [(d, run) for d in decisions]) for run in shared]
    return out + sorted(always, key=lambda rule: rule.lost.mean or 0.0)


def _regret(rule: str, chosen: Sequence[tuple[Decision, str]]) -> Regret:
    each = [decision.lost(run) for decision, run in chosen]
    lost = each[0] if len(each) == 1 else over_seeds(one.mean for one in each)
    return Regret(rule, len(each), sum(d.best == run for d, run in chosen), lost)
