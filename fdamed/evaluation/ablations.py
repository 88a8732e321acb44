"""Ablations: sweeps over the values of an option, and auxiliary heads against the same run without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from fdamed.config.runs import Run, combinations
from fdamed.evaluation.intervals import Interval, over_seeds
from fdamed.evaluation.run_tables import ALL_TARGETS, HEADLINE, at_target, interval_table

if TYPE_CHECKING:
    from fdamed.config.runs import Swept

Value = float | int | str | bool


@dataclass(frozen=True)
class Sweep:
    """All runs that vary the same options."""

    options: tuple[str, ...]
    runs: Mapping[str, Mapping[tuple[Value, ...], str]]
    """Run of the configuration -> values -> the expanded run."""

    @property
    def name(self) -> str:
        return " and ".join(self.options)

    @property
    def values(self) -> list[tuple[Value, ...]]:
        """All values of all runs, numbers in order before words."""
        return sorted({v for cells in self.runs.values() for v in cells}, key=_order)

    @property
    def numeric(self) -> bool:
        return all(is_number(v) for values in self.values for v in values)

    @property
    def logarithmic(self) -> bool:
        """Whether the values are spread over orders of magnitude."""
        return self.numeric and self.options[0] == "labeled"


def is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _order(values: tuple[Value, ...]) -> list[tuple[bool, Value]]:
    return [(isinstance(v, str), v) for v in values]


def sweeps(swept: Mapping[str, Swept]) -> list[Sweep]:
    """The sweeps of a study: runs over the same options share one."""
    out: dict[tuple[str, ...], dict[str, dict[tuple[Value, ...], str]]] = {}
    for name, entry in swept.items():
        options = tuple(sorted([*entry.values, *entry.shared]))
        cells = out.setdefault(options, {}).setdefault(entry.run, {})
        for _, shared in combinations(name, entry.shared):  # one run for all values of an option that it ignores
            cells[tuple((entry.values | shared)[o] for o in options)] = name
    return [Sweep(options, runs) for options, runs in out.items()]


def sweep_table(
    found: Sequence[Sweep],
    summary: Mapping[tuple[str, str, str], Interval],
    targets: Sequence[str],
    metrics: Sequence[str] = HEADLINE,
) -> pd.DataFrame:
    """One row per target, run, value and metric: mean, low, high, seeds over the runs of every sweep."""
    rows = [
        (
            ("; ".join(sweep.options), target, run, "; ".join(map(str, values)), metric),
            summary.get((target, cells[values], metric), Interval(None, None, 0)),
        )
        for sweep in found
        for target in targets
        for run, cells in sweep.runs.items()
        for values in sorted(cells, key=_order)
        for metric in metrics
    ]
    return interval_table(["option", "target", "run", "value", "metric"], rows)


def without_heads(runs: Mapping[str, Run]) -> dict[str, str]:
    """Run with auxiliary heads -> the run that differs from it in nothing else, if there is one."""

    def rest(run: Run) -> str:
        return str(sorted(run.model_dump(mode="json", exclude={"auxiliary", "sweep"}).items()))

    bases = {rest(run): name for name, run in reversed(list(runs.items())) if run.auxiliary is None}
    return {n: bases[rest(r)] for n, r in runs.items() if r.auxiliary is not None and rest(r) in bases}


def auxiliary_gains(runs: Mapping[str, Run], scores: pd.DataFrame, metric: str, target: str) -> pd.DataFrame:
    """One row per run with heads at `target` (or over all targets), fewest heads first: its gain over its base."""
    here = at_target(scores)
    here = here[here["metric"] == metric]
    if target != ALL_TARGETS:
        here = here[here["target"] == target]
    table = here.pivot_table(index=["seed", "target"], columns="run", values="value", dropna=False)
    tasks = {name: run.auxiliary for name, run in runs.items() if run.auxiliary}
    heads = {name: " + ".join(t.heads) + ("" if t.share else " (private)") for name, t in tasks.items()}
    rows = []
    for name, base in sorted(without_heads(runs).items(), key=lambda pair: (pair[1], len(tasks[pair[0]].heads))):
        gain = _difference(table, name, base)
        rows.append((target, base, name, heads[name], metric, gain.mean, gain.low, gain.high, gain.n))
    columns = ["target", "base", "run", "heads", "metric", "gain", "low", "high", "seeds"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[5:8], "float64"))


def _difference(table: pd.DataFrame, run: str, base: str) -> Interval:
    """The difference within seed and target, then the mean over the targets of complete seeds."""
    if run not in table or base not in table:
        return Interval(None, None, 0)
    seeds = (table[run] - table[base]).groupby("seed").agg(["mean", "count"])
    full = table.index.get_level_values("target").nunique()
    return over_seeds(seeds["mean"].where(seeds["count"] == full))
