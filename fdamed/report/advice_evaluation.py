"""Evaluation of the recommendation: predicted errors against the scores of the runs that the theory covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from fdamed.evaluation.formatting import interval, minus
from fdamed.evaluation.intervals import Interval, over_seeds
from fdamed.evaluation.run_tables import at_target
from fdamed.report.advice import Advice, named, percent, reach
from fdamed.report.study import is_ceiling

NONE = Interval(None, None, 0)


@dataclass(frozen=True)
class Found:
    """A run with its predicted error and its score; ranks count from 1."""

    run: str
    predicted: str
    predicted_rank: int
    score: Interval
    rank: int


@dataclass(frozen=True)
class Evaluation:
    """The recommendation for one target, evaluated; `rows` by predicted error, empty where no run can be compared."""

    target: str
    rows: Sequence[Found] = ()
    sentences: Sequence[str] = ()
    verdict: str = "Open."
    recommended: str = ""
    best: str = ""
    lost: Interval = NONE
    """Best run minus recommended one, paired within seeds."""
    agreement: float | None = None
    """Kendall's tau."""
    by_chance: float | None = None
    """How likely a random order agrees at least as well."""


def evaluate(advice: Advice, scores: pd.DataFrame, metric: str, name: str, methods: Mapping[str, str]) -> Evaluation:
    """Evaluate the recommendation by `metric`, called `name`, at its target; `methods`: run -> method, of all runs."""
    from fdamed.theory.advice import score  # needs torch, which a report without advice does without

    target = advice["target_name"]
    here = at_target(scores)
    here = here[(here["metric"] == metric) & (here["target"] == target)]
    every = here.pivot_table(index="seed", columns="run", values="value").dropna(axis=1, how="all")
    table = every[[r for r in advice["runs"] if r in every]].dropna(axis=0)
    told = score(advice, {str(r): float(table[r].mean()) for r in table}) if len(table) else None
    if told is None:
        return Evaluation(target, sentences=[f"The theory covers no finished run, so {_open(advice)}."])
    order = sorted(table, key=lambda r: (advice["runs"][r]["error"]["value"], r))
    means = {r: over_seeds(table[r]) for r in order}
    ranks = table.mean().rank(ascending=False, method="min")
    rows = [Found(r, reach(advice["runs"][r]["error"]), i + 1, means[r], int(ranks[r])) for i, r in enumerate(order)]
    lost = over_seeds(table[told.best] - table[told.recommended])
    chance = None if told.agreement is None else by_chance(told.agreement, told.runs)
    out = Evaluation(target, rows, (), "Open.", told.recommended, told.best, lost, told.agreement, chance)
    if len(rows) == 1:
        only = f"{told.best} is the only finished run that the theory covers, so {_open(advice)}."
        return replace(out, sentences=[only])
    verdict, choice = _choice(advice, out, name, table)
    return replace(out, verdict=verdict, sentences=[*choice, *_order(out), *_elsewhere(every, out, name, methods)])


def _open(advice: Advice) -> str:
    return f"whether {named(advice)} was the right choice is open"


def _choice(advice: Advice, out: Evaluation, name: str, table: pd.DataFrame) -> tuple[str, list[str]]:
    """Which run was recommended, which was best, and their difference."""
    scores, says = {row.run: row.score for row in out.rows}, []
    top, mine = advice["ranking"][0], advice["runs"][out.recommended]
    if (top["method"], top["beta"]) != (mine["method"], mine["beta"]):
        says.append(f"{named(advice)} itself was not run.")
    first = f"Of the {len(out.rows)} runs that it covers, the theory ranks {out.recommended} first"
    seeds = f"over {len(table)} seeds" if len(table) > 1 else "from a single seed"
    if out.best == out.recommended:
        says.append(f"{first}, and {out.best} was the best: {name} {interval(scores[out.best])} {seeds}.")
        second = sorted(out.rows, key=lambda row: (row.rank, row.run != out.best))[1].run
        apart = over_seeds(table[out.best] - table[second])
        says.append(f"Its lead over {second} is {_difference(apart)}, {_sure(apart)}.")
        verdict = "Yes." if _significant(apart) else "Yes, but not significantly."
    else:
        second_best = f"the best was {out.best} with {interval(scores[out.best])} {seeds}"
        says.append(f"{first} with {name} {interval(scores[out.recommended])}; {second_best}.")
        says.append(f"Following the recommendation lost {_difference(out.lost)}, {_sure(out.lost)}.")
        verdict = "No." if _significant(out.lost) else "Not the best run, but not significantly worse."
    blind = float((table.mean().max() - table.mean()).mean())
    return verdict, [*says, f"A run picked at random among them would have lost {blind:.3f} on average."]


def _signed(value: float) -> str:
    return minus(f"{value:.2f}")


def _difference(score: Interval) -> str:
    return f"{score.mean:.3f}" + ("" if score.half is None else f" ± {score.half:.3f}")


def _significant(difference: Interval) -> bool:
    """Whether a paired difference is significant."""
    return difference.low is not None and difference.low > 0


def _sure(difference: Interval) -> str:
    if difference.low is None:
        return "which one seed cannot test"
    return "a significant difference over seeds" if _significant(difference) else "which is not significant"


def _order(out: Evaluation) -> list[str]:
    if out.agreement is None or len(out.rows) < 3:
        return []
    text = f"The whole order agrees with Kendall’s τ = {_signed(out.agreement)} (1: the same order, −1: the reverse)"
    if out.by_chance is None:
        return [text + "."]
    return [f"{text}; a random order of {len(out.rows)} runs agrees as well in {percent(out.by_chance)} of cases."]


def _elsewhere(every: pd.DataFrame, out: Evaluation, name: str, methods: Mapping[str, str]) -> list[str]:
    """A better run that the theory does not cover."""
    others = [r for r in every if r not in {row.run for row in out.rows} and not is_ceiling(methods.get(str(r), ""))]
    top = next(row.score for row in out.rows if row.run == out.best)
    scores = {str(r): over_seeds(every[r]) for r in others}
    best = max(scores, key=lambda r: scores[r].mean or 0.0, default=None)
    if best is None or (scores[best].mean or 0.0) <= (top.mean or 0.0):
        return []
    return [f"The theory does not cover {best}, which scored higher: {name} {interval(scores[best])}."]


def by_chance(agreement: float, runs: int) -> float | None:
    """Share of all orders of `runs` runs whose Kendall's tau is at least this; None if there are ties."""
    pairs = runs * (runs - 1) // 2
    inversions = (1 - agreement) / 2 * pairs
    if abs(inversions - round(inversions)) > 1e-9:
        return None
    counts = np.ones(1)
    for k in range(2, runs + 1):
        counts = np.convolve(counts, np.ones(k)) / k
    return float(counts[: round(inversions) + 1].sum())


def table(entries: Sequence[Evaluation], metric: str) -> pd.DataFrame:
    """One row per target: recommended run, best run, and the loss."""
    rows = [
        (
            h.target,
            metric,
            h.recommended,
            h.best,
            h.lost.mean,
            h.lost.low,
            h.lost.high,
            h.lost.n,
            h.agreement,
            len(h.rows),
        )
        for h in entries
        if h.rows
    ]
    columns = ["target", "metric", "recommended", "best", "lost", "low", "high", "seeds", "kendall", "runs"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(("lost", "low", "high", "kendall"), "float64"))


def together(entries: Mapping[str, Evaluation | None], name: str) -> list[str]:
    """The recommendations of a study with several targets, in one sentence."""
    known: list[Any] = [h for h in entries.values() if h is not None and len(h.rows) > 1]
    if not known:
        return []
    right = sum(h.best == h.recommended for h in known)
    lost = float(np.mean([h.lost.mean for h in known]))
    return [
        f"The theory recommended the best of the runs that it covers at {right} of {len(known)} targets; following it "
        f"lost {lost:.3f} in {name} on average over the targets."
    ]
