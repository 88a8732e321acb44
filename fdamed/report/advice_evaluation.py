"""Evaluation of the recommendation: predicted errors against the scores of the runs that the theory covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from fdamed.evaluation.intervals import Interval, over_seeds
from fdamed.evaluation.run_tables import at_target
from fdamed.report.advice import Advice

VERDICTS = {
    (True, True): "Yes.",
    (True, False): "Yes, but not significantly.",
    (False, True): "No.",
    (False, False): "Not the best run, but not significantly worse.",
}
"""The recommended run was the best, the difference is significant over seeds -> the verdict."""


@dataclass(frozen=True)
class Found:
    """A run with its predicted error and its score."""

    run: str
    predicted: Mapping[str, float]
    score: Interval
    lost: Interval
    """Best run minus this one, paired within seeds."""


@dataclass(frozen=True)
class Evaluation:
    """The recommendation for one target, evaluated; `rows` by predicted error, so that the first is recommended."""

    verdict: str
    sentence: str
    rows: Sequence[Found]


def evaluate(advice: Advice, scores: pd.DataFrame, metric: str, name: str) -> Evaluation:
    """Evaluate the recommendation by `metric`, called `name`, at its target, on the seeds that all its runs have."""
    predicted = {run: row["error"] for run, row in advice["runs"].items()}
    here = at_target(scores)
    here = here[(here["metric"] == metric) & (here["target"] == advice["target_name"]) & here["run"].isin(predicted)]
    table = here.pivot_table(index="seed", columns="run", values="value").dropna(axis=1, how="all").dropna(axis=0)
    if len(table) == 0 or len(table.columns) < 2:
        return Evaluation("Open.", "The theory covers fewer than two finished runs.", ())
    recommended, *_ = order = sorted(table, key=lambda run: (predicted[run]["value"], run))
    best = str(table.mean().idxmax())
    rows = [Found(run, predicted[run], over_seeds(table[run]), over_seeds(table[best] - table[run])) for run in order]
    right = best == recommended
    other = min((row for row in rows if row.run != best), key=lambda row: row.lost.mean or 0.0) if right else rows[0]
    lead = f"{other.lost.mean:.3f}" + ("" if other.lost.half is None else f" ± {other.lost.half:.3f}")
    sentence = (
        f"Of the {len(rows)} runs that it covers, the theory ranks {recommended} first; {best} was the "
        f"best, {lead} in {name} above {other.run}."
    )
    return Evaluation(VERDICTS[right, other.lost.low is not None and other.lost.low > 0], sentence, rows)


def table(entries: Mapping[str, Evaluation], metric: str) -> pd.DataFrame:
    """One row per target and run, the recommended run first: its predicted error, its score, and its loss."""
    rows = [
        (target, metric, r.run, r.predicted["value"], r.score.mean, r.lost.mean, r.lost.low, r.lost.high, r.lost.n)
        for target, found in entries.items()
        for r in found.rows
    ]
    columns = ["target", "metric", "run", "predicted_error", "score", "lost", "low", "high", "seeds"]
    return pd.DataFrame(rows, columns=columns).astype({"low": "float64", "high": "float64"})


def together(entries: Mapping[str, Evaluation], name: str) -> str:
    """The recommendations of a study with several targets, in one sentence."""
    lost = [found.rows[0].lost.mean or 0.0 for found in entries.values() if found.rows]
    if not lost:
        return ""
    return (
        f"The theory recommended the best of the runs that it covers at {lost.count(0.0)} of {len(lost)} targets; "
        f"following it lost {sum(lost) / len(lost):.3f} in {name} on average over the targets."
    )
