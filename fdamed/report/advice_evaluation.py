"""Evaluation of the recommendation: predicted errors against the scores of the runs that the theory covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fdamed.evaluation.formatting import fixed, interval, reach
from fdamed.evaluation.intervals import Interval, over_seeds
from fdamed.evaluation.run_tables import at_target
from fdamed.report.advice import Advice, named, percent
from fdamed.report.study import NONE, is_ceiling
from fdamed.theory.advice import score


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
    sentences: Sequence[str]
    verdict: str = "Open."
    rows: Sequence[Found] = ()
    recommended: str = ""
    best: str = ""
    lost: Interval = NONE
    """Best run minus recommended one, paired within seeds."""
    agreement: float | None = None
    """Kendall's tau."""


def evaluate(advice: Advice, scores: pd.DataFrame, metric: str, name: str, methods: Mapping[str, str]) -> Evaluation:
    """Evaluate the recommendation by `metric`, called `name`, at its target; `methods`: run -> method, of all runs."""
    target, predicted = advice["target_name"], {run: row["error"] for run, row in advice["runs"].items()}
    here = at_target(scores)
    here = here[(here["metric"] == metric) & (here["target"] == target)]
    every = here.pivot_table(index="seed", columns="run", values="value").dropna(axis=1, how="all")
    table = every[[run for run in predicted if run in every]].dropna(axis=0)
    found = score(advice, table.mean().to_dict()) if len(table) else None
    still_open = f"so whether {named(advice)} was the right choice is open."
    if found is None:
        return Evaluation(target, [f"The theory covers no finished run, {still_open}"])
    order = sorted(table, key=lambda run: (predicted[run]["value"], run))
    ranks = table.mean().rank(ascending=False, method="min")
    rows = [
        Found(run, reach(predicted[run]), i + 1, over_seeds(table[run]), int(ranks[run])) for i, run in enumerate(order)
    ]
    facts: dict[str, Any] = {"rows": rows, "recommended": found.recommended, "best": found.best}
    facts |= {"lost": over_seeds(table[found.best] - table[found.recommended]), "agreement": found.agreement}
    if len(rows) == 1:
        only = f"{found.best} is the only finished run that the theory covers, {still_open}"
        return Evaluation(target, [only], **facts)
    verdict, choice = _choice(advice, table, name, found.recommended, found.best)
    sentences = [*choice, *_order(found.agreement, len(rows)), *_elsewhere(every, table, name, methods)]
    return Evaluation(target, sentences, verdict, **facts)


def _choice(advice: Advice, table: pd.DataFrame, name: str, mine: str, best: str) -> tuple[str, list[str]]:
    """Whether the recommended run was the best, and by how much."""
    out = []
    top, run = advice["ranking"][0], advice["runs"][mine]
    if (top["method"], top["beta"]) != (run["method"], run["beta"]):
        out.append(f"{named(advice)} itself was not run.")
    first = f"Of the {len(table.columns)} runs that it covers, the theory ranks {mine} first"
    seeds = f"over {len(table)} seeds" if len(table) > 1 else "from a single seed"
    reached = f"{interval(over_seeds(table[best]))} {seeds}"
    right = best == mine
    second = table.drop(columns=best).mean().idxmax() if right else mine
    apart = over_seeds(table[best] - table[second])
    significant = apart.low is not None and apart.low > 0
    half = "" if apart.half is None else f" ± {apart.half:.3f}"
    sure = "a significant difference over seeds" if significant else "which is not significant"
    difference = f"{apart.mean:.3f}{half}, {'which one seed cannot test' if apart.low is None else sure}."
    if right:
        out.append(f"{first}, and {best} was the best: {name} {reached}.")
        out.append(f"Its lead over {second} is {difference}")
        verdict = "Yes." if significant else "Yes, but not significantly."
    else:
        own = interval(over_seeds(table[mine]))
        out.append(f"{first} with {name} {own}; the best was {best} with {reached}.")
        out.append(f"Following the recommendation lost {difference}")
        verdict = "No." if significant else "Not the best run, but not significantly worse."
    blind = float((table.mean().max() - table.mean()).mean())
    return verdict, [*out, f"A run picked at random among them would have lost {blind:.3f} on average."]


def _order(agreement: float | None, runs: int) -> list[str]:
    """How well the whole order agrees."""
    if agreement is None or runs < 3:
        return []
    text = f"The whole order agrees with Kendall’s τ = {fixed(agreement)} (1: the same order, −1: the reverse)"
    chance = by_chance(agreement, runs)
    if chance is None:
        return [text + "."]
    return [f"{text}; a random order of {runs} runs agrees as well in {percent(chance)} of cases."]


def _elsewhere(every: pd.DataFrame, table: pd.DataFrame, name: str, methods: Mapping[str, str]) -> list[str]:
    """A better run that the theory does not cover."""
    others = [run for run in every if run not in table and not is_ceiling(methods.get(str(run), ""))]
    best = max(others, key=lambda run: every[run].mean(), default=None)
    if best is None or every[best].mean() <= table.mean().max():
        return []
    return [f"The theory does not cover {best}, which scored higher: {name} {interval(over_seeds(every[best]))}."]


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
    rows = []
    for e in entries:
        if e.rows:
            lost = (e.lost.mean, e.lost.low, e.lost.high, e.lost.n)
            rows.append((e.target, metric, e.recommended, e.best, *lost, e.agreement, len(e.rows)))
    columns = ["target", "metric", "recommended", "best", "lost", "low", "high", "seeds", "kendall", "runs"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(("lost", "low", "high", "kendall"), "float64"))


def together(entries: Mapping[str, Evaluation], name: str) -> list[str]:
    """The recommendations of a study with several targets, in one sentence."""
    known: list[Any] = [e for e in entries.values() if len(e.rows) > 1]
    if not known:
        return []
    right = sum(e.best == e.recommended for e in known)
    lost = float(np.mean([e.lost.mean for e in known]))
    return [
        f"The theory recommended the best of the runs that it covers at {right} of {len(known)} targets; following it "
        f"lost {lost:.3f} in {name} on average over the targets."
    ]
