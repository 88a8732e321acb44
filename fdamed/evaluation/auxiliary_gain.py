"""What each auxiliary task is worth: runs that differ only in their heads, against the same run without any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from fdamed.config.runs import Run
from fdamed.evaluation.intervals import Interval, over_seeds
from fdamed.evaluation.run_tables import ALL_TARGETS, at_target


@dataclass(frozen=True)
class Gain:
    """A run's score minus that of its base, paired within seeds."""

    base: str
    run: str
    heads: tuple[str, ...]
    score: Interval
    """Of the difference, over the seeds that both have."""


def families(runs: Mapping[str, Run]) -> dict[str, list[str]]:
    """Base -> the runs that add heads to it and change nothing else; only bases with at least two such runs."""
    bases = {_rest(run): name for name, run in reversed(list(runs.items())) if run.auxiliary is None}
    out: dict[str, dict[float, list[str]]] = {}
    for name, run in runs.items():
        if run.auxiliary is not None and _rest(run) in bases:
            out.setdefault(bases[_rest(run)], {}).setdefault(run.auxiliary.alpha, []).append(name)
    best = {base: max(alphas.values(), key=len) for base, alphas in out.items()}
    return {base: members for base, members in best.items() if len(members) > 1}


def without_heads(runs: Mapping[str, Run]) -> dict[str, str]:
    """Run with auxiliary heads -> the run that differs from it in nothing else, where there is one."""
    bases = {_rest(run): name for name, run in reversed(list(runs.items())) if run.auxiliary is None}
    return {n: bases[_rest(r)] for n, r in runs.items() if r.auxiliary is not None and _rest(r) in bases}


def _rest(run: Run) -> str:
    return str(sorted(run.model_dump(mode="json", exclude={"auxiliary", "sweep"}).items()))


def gains(runs: Mapping[str, Run], scores: pd.DataFrame, metric: str, target: str) -> list[Gain]:
    """The gain of every run with heads at `target` (or over all of them), fewest heads first."""
    here = at_target(scores)
    here = here[here["metric"] == metric]
    if target != ALL_TARGETS:
        here = here[here["target"] == target]
    table = here.pivot_table(index=["seed", "target"], columns="run", values="value", dropna=False)
    out = []
    for base, members in families(runs).items():
        for name in members:
            auxiliary = runs[name].auxiliary
            heads = auxiliary.heads if auxiliary else ()
            out.append(Gain(base, name, heads, _difference(table, name, base)))
    return sorted(out, key=lambda g: (g.base, len(g.heads)))


def _difference(table: pd.DataFrame, run: str, base: str) -> Interval:
    """Within seed and target first, then the mean of the targets that a whole seed has."""
    if run not in table or base not in table:
        return Interval(None, None, 0)
    seeds = (table[run] - table[base]).groupby("seed").agg(["mean", "count"])
    full = table.index.get_level_values("target").nunique()
    return over_seeds(seeds["mean"].where(seeds["count"] == full))


def table(entries: Sequence[Gain], target: str, metric: str) -> pd.DataFrame:
    """One row a run: heads, gain, low, high, seeds."""
    rows = [
        (target, g.base, g.run, " + ".join(g.heads), metric, g.score.mean, g.score.low, g.score.high, g.score.n)
        for g in entries
    ]
    columns = ["target", "base", "run", "heads", "metric", "gain", "low", "high", "seeds"]
    return pd.DataFrame(rows, columns=columns).astype({"gain": "float64", "low": "float64", "high": "float64"})
