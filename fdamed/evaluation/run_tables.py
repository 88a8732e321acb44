"""Tables of all runs: every score, the headline, scores by round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from fdamed.core.disclosure import STEP
from fdamed.core.run_record import Record
from fdamed.evaluation.intervals import Interval, clipped, from_rounding, over_seeds, t_factor
from fdamed.evaluation.metrics import TWO

ALL_TARGETS = "mean of all targets"
HEADLINE = ("auc", "acc")
ENDS = ["mean", "low", "high", "seeds"]


def tidy(records: Iterable[Record]) -> pd.DataFrame:
    """One row per run, target, seed, client and score: value (or `why` not), interval over patients.

    `step`: that to which the value is rounded; 0: it has all digits that a file of scores may have.
    """
    rows = []
    for record in records:
        for client, score in record.scores.items():
            head = (record.run, record.method, record.target, record.seed, client, score["split"])
            ends = (score.get("bootstrap") or {}).get("intervals", {})
            for metric in [name for name in TWO if name in score]:
                if score[metric] is None:
                    why = score["why"].get(metric, "undefined")
                    rows.append((*head, metric, np.nan, np.nan, np.nan, 0.0, why))
                else:
                    low, high = ends.get(metric) or (np.nan, np.nan)
                    rows.append((*head, metric, float(score[metric]), low, high, score.get(STEP, 0.0), ""))
    columns = ["run", "method", "target", "seed", "client", "split", "metric", "value", "low", "high"]
    return pd.DataFrame(rows, columns=[*columns, STEP, "why"])


def step_of(record: Record) -> float:
    """That to which the AUC of a run at its target is rounded."""
    return float(record.scores.get(record.target, {}).get(STEP, 0.0))


def main_score(scores: pd.DataFrame) -> str:
    """The score that runs are ranked by: the AUC, or the accuracy where no run at any target has an AUC."""
    known = set(at_target(scores).dropna(subset="value")["metric"])
    return "acc" if "auc" not in known and "acc" in known else "auc"


def at_target(scores: pd.DataFrame) -> pd.DataFrame:
    return scores[scores["client"] == scores["target"]]


def with_all_targets(frame: pd.DataFrame, keys: Sequence[str], values: Sequence[str] = ("value",)) -> pd.DataFrame:
    """The frame and, above it, the means of `values` over all targets within `keys`; NaN where a target is missing.

    `keys` include the seed: a seed without one of the targets would give the mean of other hospitals.
    """
    targets = frame["target"].nunique()
    if targets < 2:
        return frame
    grouped = frame.groupby(list(keys), sort=False)[list(values)]
    means = grouped.mean().where(grouped.count() == targets).reset_index()
    return pd.concat([means.assign(target=ALL_TARGETS), frame], ignore_index=True)


def summary(scores: pd.DataFrame, metrics: Sequence[str] = HEADLINE) -> dict[tuple[str, str, str], Interval]:
    """(target, run, metric) -> mean and interval over seeds, at the target and over all targets."""
    here = at_target(scores)
    here = here[here["metric"].isin(list(metrics))]
    every = with_all_targets(here, ["run", "metric", "seed"], ["value", STEP])
    grouped = every.groupby(["target", "run", "metric"], sort=False)
    return {(str(t), str(r), str(m)): over_seeds(v["value"], v[STEP].max()) for (t, r, m), v in grouped}


def interval_table(keys: Sequence[str], rows: Iterable[tuple[Sequence[str], Interval]]) -> pd.DataFrame:
    """One row per score: its keys, mean, low and high within 0 and 1, and number of seeds."""
    cells = [(*key, score.mean, *clipped(score), score.n) for key, score in rows]
    return pd.DataFrame(cells, columns=[*keys, *ENDS]).astype(dict.fromkeys(ENDS[:3], "float64"))


def every_score(scores: pd.DataFrame, metrics: Sequence[str] | None = None) -> pd.DataFrame:
    """One row per target, run and score: mean, low and high of the t-interval over seeds, seeds."""
    known = list(scores.dropna(subset="value")["metric"].unique()) if metrics is None else metrics
    return interval_table(["target", "run", "metric"], summary(scores, known).items())


def headline(scores: pd.DataFrame, metrics: Sequence[str] = HEADLINE) -> pd.DataFrame:
    """One row per target and run, best first by the first metric: mean, low, high, seeds of each metric."""
    found = every_score(scores, metrics)
    out = found[["target", "run"]].drop_duplicates()
    out = out.assign(method=out["run"].map(dict(zip(scores["run"], scores["method"], strict=True))))
    for metric in metrics:
        names = {end: metric if end == "mean" else f"{metric}_{end}" for end in ENDS}
        own = found[found["metric"] == metric].drop(columns="metric").rename(columns=names)
        out = out.merge(own, on=["target", "run"], how="left").fillna({f"{metric}_seeds": 0})
        out = out.astype({f"{metric}_seeds": "int64"})
    targets = {target: place for place, target in enumerate(out["target"].unique())}
    out = out.sort_values(metrics[0], ascending=False, kind="stable")
    return out.sort_values("target", key=lambda t: t.map(targets), kind="stable").reset_index(drop=True)


def rounds(records: Iterable[Record], metrics: Sequence[str] = ("test/auc", "test/acc")) -> pd.DataFrame:
    """One row per target, run, metric and round: mean, low, high and seeds of what is known there."""
    parts = [
        (r.target, r.run, metric, int(row["round"]), r.seed, row[metric], step_of(r))
        for r in records
        for row in r.rounds
        for metric in metrics
        if metric in row
    ]
    keys = ["target", "run", "metric", "round"]
    frame = pd.DataFrame(parts, columns=[*keys, "seed", "value", STEP]).astype({"round": "int64", "value": "float64"})
    every = with_all_targets(frame, [*keys[1:], "seed"], ["value", STEP]).groupby(keys, sort=False)
    out = every["value"].agg(["mean", "std", "count"]).reset_index().rename(columns={"count": "seeds"})
    n, step = out["seeds"].to_numpy(), every[STEP].max().to_numpy(dtype="float64")
    half = (out["std"] + from_rounding(step, n)) * t_factor(n)
    out = out.assign(low=(out["mean"] - half).clip(lower=0.0), high=(out["mean"] + half).clip(upper=1.0))
    return out[[*keys, *ENDS]]
