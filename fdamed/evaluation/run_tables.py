"""Tidy frame of all scores -> the headline, and frames as csv, markdown and html."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fdamed.core.disclosure import formula_safe, hides, small
from fdamed.core.run_record import Record
from fdamed.evaluation.intervals import Interval, over_seeds, t_factor

IDENTITY = ("run", "method", "target", "seed", "client")
COUNTS = frozenset({"n", "positives"})
NOT_SCORES = frozenset({*IDENTITY, *COUNTS, "split", "why"})
SUPPRESSED = "suppressed"
ALL_TARGETS = "mean of all targets"
HEADLINE = ("auc", "acc")


def tidy(records: Iterable[Record], smallest: int) -> pd.DataFrame:
    """One row a score: run, method, target, seed, client, split, metric, value (NaN = none), low, high, why (none).

    `low` and `high` are the ends of the run's own 95 % interval over patients, where it has one.
    """
    columns = (*IDENTITY, "split", "metric", "value", "low", "high", "why")
    rows = []
    for record in records:
        for client, score in record.scores.items():
            hidden = _hides(score, smallest)
            for metric, value in score.items():
                if metric in NOT_SCORES or not (value is None or isinstance(value, int | float)):
                    continue
                reason = f"{SUPPRESSED}: fewer than {smallest} images of a class" if hidden else _why(score, metric)
                number = np.nan if hidden or value is None else float(value)
                head = (record.run, record.method, record.target, record.seed, client, str(score.get("split", "test")))
                ends = _ends(score, metric) if np.isfinite(number) else (np.nan, np.nan)
                rows.append((*head, metric, number, *ends, "" if np.isfinite(number) else reason))
    return pd.DataFrame(rows, columns=list(columns))


def _ends(score: Mapping[str, Any], metric: str) -> tuple[float, float]:
    """The interval over patients that evaluate found for this score."""
    pair = (score.get("bootstrap") or {}).get("intervals", {}).get(metric)
    return (float(pair[0]), float(pair[1])) if pair else (np.nan, np.nan)


def _why(score: dict[str, object], metric: str) -> str:
    given = score.get("why")
    if isinstance(given, dict):
        return str(given.get(metric, "undefined"))
    return str(given) if given else "undefined"


def _hides(score: Mapping[str, object], smallest: int) -> bool:
    """Whether too few images stand behind a score; with more than two classes there are no positives to count."""
    n, positives = int(str(score["n"])), score.get("positives")
    return small(n, smallest) if positives is None else hides(n, int(str(positives)), smallest)


def main_score(scores: pd.DataFrame) -> str:
    """What runs are judged by: the AUC, or the accuracy where no run at any target has an AUC."""
    here = at_target(scores)
    known = set(here[here["value"].notna()]["metric"])
    return "acc" if "auc" not in known and "acc" in known else "auc"


def clipped(score: Interval) -> tuple[float | None, float | None]:
    """The ends of an interval of a share, which cannot lie outside 0 and 1."""
    low, high = score.low, score.high
    return (None if low is None else max(0.0, low)), (None if high is None else min(1.0, high))


def at_target(scores: pd.DataFrame) -> pd.DataFrame:
    return scores[scores["client"] == scores["target"]]


def summary(scores: pd.DataFrame, metrics: Sequence[str] = HEADLINE) -> dict[tuple[str, str, str], Interval]:
    """(target, run, metric) -> mean and interval over seeds, at the target.

    With several targets, ALL_TARGETS is their mean within a seed first: its interval is again one over seeds, and a
    seed that lacks a target is left out, for its mean would be one of other hospitals.
    """
    here = at_target(scores)
    here = here[here["metric"].isin(list(metrics))]
    out: dict[tuple[str, str, str], Interval] = {}
    for (target, run, metric), group in here.groupby(["target", "run", "metric"], sort=False):
        out[str(target), str(run), str(metric)] = over_seeds(group["value"])
    targets = here["target"].nunique()
    if targets > 1:
        for (run, metric), group in here.groupby(["run", "metric"], sort=False):
            seeds = group.groupby("seed")["value"].agg(["mean", "count"])
            out[ALL_TARGETS, str(run), str(metric)] = over_seeds(seeds["mean"].where(seeds["count"] == targets))
    return out


def headline(scores: pd.DataFrame, metrics: Sequence[str] = HEADLINE) -> pd.DataFrame:
    """One row a target and run, best first by the first metric: mean, low, high, seeds of each metric."""
    found = summary(scores, metrics)
    methods = dict(zip(scores["run"], scores["method"], strict=True))
    rows = []
    for target, run in dict.fromkeys((t, r) for t, r, _ in found):
        row: dict[str, object] = {"target": target, "run": run, "method": methods[run]}
        for metric in metrics:
            interval = found.get((target, run, metric), Interval(None, None, 0))
            low, high = clipped(interval)
            row |= {metric: interval.mean, f"{metric}_low": low, f"{metric}_high": high}
            row |= {f"{metric}_seeds": interval.n}
        rows.append(row)
    order = ["target", "run", "method", *(m + end for m in metrics for end in ("", "_low", "_high", "_seeds"))]
    out = pd.DataFrame(rows, columns=order)
    for metric in metrics:
        for end in ("", "_low", "_high"):
            out[metric + end] = out[metric + end].astype("float64")
    groups = pd.Categorical(out["target"], categories=_targets(list(out["target"])), ordered=True)
    out = out.assign(target=groups).sort_values(["target", metrics[0]], ascending=[True, False], kind="stable")
    return out.assign(target=out["target"].astype("str")).reset_index(drop=True)


def every_score(scores: pd.DataFrame) -> pd.DataFrame:
    """One row a target, run and score: mean, low and high of the t-interval over seeds, seeds."""
    order = [m for m in dict.fromkeys(scores["metric"]) if scores[scores["metric"] == m]["value"].notna().any()]
    rows = [(t, r, m, v.mean, *clipped(v), v.n) for (t, r, m), v in summary(scores, order).items()]
    columns = ["target", "run", "metric", "mean", "low", "high", "seeds"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(("mean", "low", "high"), "float64"))


def _targets(names: list[str]) -> list[str]:
    """The mean of all first, then the hospitals as they come."""
    return sorted(dict.fromkeys(names), key=lambda name: name != ALL_TARGETS)


def rounds(records: Iterable[Record], smallest: int, metrics: Sequence[str] = ("test/auc", "test/acc")) -> pd.DataFrame:
    """One row a target, run, metric and round: mean, low, high and seeds of what is known and may be shown there."""
    parts = [
        (r.target, r.run, metric, int(row["round"]), r.seed, np.nan if row.get(metric) is None else float(row[metric]))
        for r in records
        if not hidden(r, smallest)
        for row in r.rounds
        for metric in metrics
        if metric in row
    ]
    keys = ["target", "run", "metric", "round"]
    frame = pd.DataFrame(parts, columns=[*keys, "seed", "value"]).astype({"round": "int64", "value": "float64"})
    targets = frame["target"].nunique()
    if targets > 1:
        means = frame.groupby([*keys[1:], "seed"], sort=False)["value"].agg(["mean", "count"]).reset_index()
        means = means[means["count"] == targets].rename(columns={"mean": "value"}).drop(columns="count")
        frame = pd.concat([means.assign(target=ALL_TARGETS), frame], ignore_index=True)
    return banded(frame.groupby(keys, sort=False)["value"].agg(["mean", "std", "count"]).reset_index())


def hidden(record: Record, smallest: int) -> bool:
    """Whether too few images stand behind the scores at the record's target."""
    own = record.scores.get(record.target)
    return own is not None and _hides(own, smallest)


def banded(grouped: pd.DataFrame) -> pd.DataFrame:
    """Columns mean, std, count -> mean, low, high, seeds: the t-interval of `over_seeds`, clipped to 0 and 1."""
    factor = {int(n): t_factor(int(n)) if n > 1 else np.nan for n in grouped["count"].unique()}
    half = grouped["std"] * grouped["count"].map(factor)
    low, high = (grouped["mean"] - half).clip(lower=0.0), (grouped["mean"] + half).clip(upper=1.0)
    out = grouped.assign(low=low, high=high)
    return out.rename(columns={"count": "seeds"}).drop(columns="std")[
        [*(c for c in grouped.columns if c not in {"mean", "std", "count"}), "mean", "low", "high", "seeds"]
    ]


# --- frames as text --------------------------------------------------------------------------------------------------


def to_csv(frame: pd.DataFrame) -> str:
    """CSV in which no cell is a formula; numbers keep six digits."""
    safe = frame.rename(columns=lambda c: str(formula_safe(str(c))))
    for column in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[column]):
            safe[column] = safe[column].map(_cell)
    return safe.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def _cell(value: object) -> object:
    """Without the lone carriage return, which pandas does not quote and readers take for a new row."""
    safe = formula_safe(value)
    return safe.replace("\r", " ") if isinstance(safe, str) else safe


def to_markdown(frame: pd.DataFrame) -> str:
    """A GitHub table; pipes, line breaks and HTML in cells are shown, not obeyed."""
    head = [_plain(c) for c in frame.columns]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_plain(v) for v in row) + " |" for row in frame.itertuples(index=False, name=None)]
    return "\n".join(lines) + "\n"


def text(value: object) -> str:
    """A cell as people read it; nothing for what is missing."""
    if value is None or value is pd.NA or (isinstance(value, float) and not np.isfinite(value)):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(value: object) -> str:
    escaped = html.escape(text(value), quote=False)
    return " ".join(escaped.replace("\\", "\\\\").replace("|", "\\|").split())
