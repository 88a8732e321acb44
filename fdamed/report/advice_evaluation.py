"""Was the advice right? What it promised beside what the study found, among the runs that the theory speaks of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from fdamed.evaluation.intervals import Interval, over_seeds
from fdamed.evaluation.run_tables import at_target
from fdamed.report.advice import Advice, named, percent, reach
from fdamed.report.formatting import interval
from fdamed.report.summary import is_ceiling

NONE = Interval(None, None, 0)


@dataclass(frozen=True)
class Found:
    """A run with what was promised and what came of it; ranks count from 1."""

    run: str
    promised: str
    promised_rank: int
    score: Interval
    rank: int


@dataclass(frozen=True)
class Hindsight:
    """The advice for one target, judged; `rows` best promise first, empty where no run can be compared."""

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


def judged(advice: Advice, scores: pd.DataFrame, metric: str, name: str, methods: Mapping[str, str]) -> Hindsight:
    """Judge the advice by the scores `metric`, called `name`, at its target; `methods`: run -> method, of all runs."""
    from fdamed.theory.advice import score  # needs torch, which a report without advice does without

    target = advice["target_name"]
    here = at_target(scores)
    here = here[(here["metric"] == metric) & (here["target"] == target)]
    every = here.pivot_table(index="seed", columns="run", values="value").dropna(axis=1, how="all")
    table = every[[r for r in advice["runs"] if r in every]].dropna(axis=0)
    told = score(advice, {str(r): float(table[r].mean()) for r in table}) if len(table) else None
    if told is None:
        return Hindsight(
            target, sentences=[f"No finished run is one of which the theory can speak, so {_open(advice)}."]
        )
    order = sorted(table, key=lambda r: (advice["runs"][r]["error"]["value"], r))
    means = {r: over_seeds(table[r]) for r in order}
    ranks = table.mean().rank(ascending=False, method="min")
    rows = [Found(r, reach(advice["runs"][r]["error"]), i + 1, means[r], int(ranks[r])) for i, r in enumerate(order)]
    lost = over_seeds(table[told.best] - table[told.recommended])
    chance = None if told.agreement is None else by_chance(told.agreement, told.runs)
    out = Hindsight(target, rows, (), "Open.", told.recommended, told.best, lost, told.agreement, chance)
    if len(rows) == 1:
        only = f"{told.best} is the only finished run of which the theory can speak, so {_open(advice)}."
        return replace(out, sentences=[only])
    verdict, choice = _choice(advice, out, name, table)
    return replace(out, verdict=verdict, sentences=[*choice, *_order(out), *_elsewhere(every, out, name, methods)])


def _open(advice: Advice) -> str:
    return f"whether {named(advice)} was the right choice is open"


def _choice(advice: Advice, out: Hindsight, name: str, table: pd.DataFrame) -> tuple[str, list[str]]:
    """Which run was promised most, which was best, and what lies between them."""
    scores, says = {row.run: row.score for row in out.rows}, []
    top, mine = advice["ranking"][0], advice["runs"][out.recommended]
    if (top["method"], top["beta"]) != (mine["method"], mine["beta"]):
        says.append(f"{named(advice)} itself was not run.")
    first = f"Of the {len(out.rows)} runs of which the theory can speak it ranks {out.recommended} first"
    seeds = f"over {len(table)} seeds" if len(table) > 1 else "from a single seed"
    if out.best == out.recommended:
        says.append(f"{first}, and {out.best} was the best: {name} {interval(scores[out.best])} {seeds}.")
        second = sorted(out.rows, key=lambda row: (row.rank, row.run != out.best))[1].run
        apart = over_seeds(table[out.best] - table[second])
        says.append(f"Its lead over {second} is {_difference(apart)}, {_sure(apart)}.")
        verdict = "Yes." if _told(apart) else "Yes, but within chance."
    else:
        second_best = f"the best was {out.best} with {interval(scores[out.best])} {seeds}"
        says.append(f"{first} with {name} {interval(scores[out.recommended])}; {second_best}.")
        says.append(f"Following the advice lost {_difference(out.lost)}, {_sure(out.lost)}.")
        verdict = "No." if _told(out.lost) else "Not the best run, but within chance."
    blind = float((table.mean().max() - table.mean()).mean())
    return verdict, [*says, f"A run picked blindly among them would have lost {blind:.3f} on average."]


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _difference(score: Interval) -> str:
    return f"{score.mean:.3f}" + ("" if score.half is None else f" ± {score.half:.3f}")


def _told(difference: Interval) -> bool:
    """Whether a paired difference can be told from chance."""
    return difference.low is not None and difference.low > 0


def _sure(difference: Interval) -> str:
    if difference.low is None:
        return "which one seed cannot tell from chance"
    return "more than chance between seeds explains" if _told(difference) else "which cannot be told from chance"


def _order(out: Hindsight) -> list[str]:
    if out.agreement is None or len(out.rows) < 3:
        return []
    text = f"The whole order agrees with Kendall’s τ = {_signed(out.agreement)} (1: the same order, −1: the reverse)"
    if out.by_chance is None:
        return [text + "."]
    return [f"{text}; a random order of {len(out.rows)} runs does as well in {percent(out.by_chance)} of all cases."]


def _elsewhere(every: pd.DataFrame, out: Hindsight, name: str, methods: Mapping[str, str]) -> list[str]:
    """A run outside the theory that was better still."""
    others = [r for r in every if r not in {row.run for row in out.rows} and not is_ceiling(methods.get(str(r), ""))]
    top = next(row.score for row in out.rows if row.run == out.best)
    scores = {str(r): over_seeds(every[r]) for r in others}
    best = max(scores, key=lambda r: scores[r].mean or 0.0, default=None)
    if best is None or (scores[best].mean or 0.0) <= (top.mean or 0.0):
        return []
    return [f"The theory does not speak of {best}, which reached more: {name} {interval(scores[best])}."]


def by_chance(agreement: float, runs: int) -> float | None:
    """Share of all orders of `runs` runs whose Kendall's tau is at least this; None if ties stand in the way."""
    pairs = runs * (runs - 1) // 2
    inversions = (1 - agreement) / 2 * pairs
    if abs(inversions - round(inversions)) > 1e-9:
        return None
    counts = np.ones(1)
    for k in range(2, runs + 1):
        counts = np.convolve(counts, np.ones(k)) / k
    return float(counts[: round(inversions) + 1].sum())


def table(entries: Sequence[Hindsight], metric: str) -> pd.DataFrame:
    """One row a target: what was recommended, what was best, what was lost."""
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


def together(entries: Mapping[str, Hindsight | None], name: str) -> list[str]:
    """The advice of a study with several targets, judged in one or two sentences."""
    known: list[Any] = [h for h in entries.values() if h is not None and len(h.rows) > 1]
    if not known:
        return []
    right = sum(h.best == h.recommended for h in known)
    lost = float(np.mean([h.lost.mean for h in known]))
    return [
        f"The advice named the best of the runs that it can speak of at {right} of {len(known)} targets; following it "
        f"lost {lost:.3f} in {name} on average over the targets."
    ]
