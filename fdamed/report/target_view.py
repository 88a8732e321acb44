"""All that is shown about one target, cut out of what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.run_tables import at_target
from fdamed.report.score_against_cost import Point, plane
from fdamed.report.summary import answer, is_ceiling
from fdamed.report.svg import Line, curves, dot, limits
from fdamed.report.sweeps import NAMES

POINTS = 120
"""Rounds drawn in a curve at most."""
ALL_BYTES = "MB sent in a run, by hospitals and server"
SHOWN = 8
"""Runs switched on at first; with more, the best of them."""


@dataclass(frozen=True)
class Row:
    """A line of the headline table."""

    index: int
    run: str
    method: str
    scores: Mapping[str, Interval]
    why: Mapping[str, str]
    graphic: Markup
    chosen: Interval
    """Main score at the round that validation chooses."""
    chosen_round: float | None
    mb: float | None
    ceiling: bool
    remark: str
    """Hospitals left out and rounds lost, in words."""


@dataclass(frozen=True)
class View:
    """All that is shown about one target (or the mean of all)."""

    name: str
    plain: Sequence[Row]
    swept: Sequence[Row]
    drawings: Sequence[Markup]
    plane: Markup
    """Score against bytes."""
    clock: Markup
    """Score against seconds."""
    sentences: Sequence[str]

    @property
    def rows(self) -> list[Row]:
        return [*self.plain, *self.swept]


@dataclass(frozen=True)
class Findings:
    """What every view is cut out of; keys are (target, run) or (target, run, metric)."""

    runs: Mapping[str, str]
    """Run -> method, swept runs last."""
    swept: frozenset[str]
    main: str
    chance: float | None
    """What guessing scores by the main score, where that is known."""
    summary: Mapping[tuple[str, str, str], Interval]
    chosen: Mapping[tuple[str, str, str], Interval]
    why: Mapping[tuple[str, str, str], str]
    rounds: pd.DataFrame
    megabytes: Mapping[tuple[str, str], float]
    """MB out of all hospitals."""
    by_bytes: pd.DataFrame
    """Score of each judged round against all MB sent until then."""
    by_seconds: pd.DataFrame
    """The same against seconds, with whose seconds they are: `CPU` or `wall`."""
    remarks: Mapping[tuple[str, str], str]


def view(target: str, found: Findings, audit: Mapping[str, Any] | None = None) -> View:
    """The view of `target`; `audit`: its runs compared on the same patients."""
    none = Interval(None, None, 0)
    index = {run: i for i, run in enumerate(found.runs)}
    scores = {m: {run: found.summary.get((target, run, m), none) for run in found.runs} for m in ("auc", "acc")}
    span = _span(list(scores[found.main].values()), found.chance)
    rows = [
        Row(
            index=index[run],
            run=run,
            method=method,
            scores={m: scores[m][run] for m in scores},
            why={m: found.why.get((target, run, m), "not run") for m in scores},
            graphic=dot(scores[found.main][run], index[run], *span, found.chance),
            chosen=found.chosen.get((target, run, found.main), none),
            chosen_round=found.chosen.get((target, run, "round"), none).mean,
            mb=found.megabytes.get((target, run)),
            ceiling=is_ceiling(method),
            remark=found.remarks.get((target, run), ""),
        )
        for run, method in found.runs.items()
    ]
    rows.sort(key=lambda row: -_height(row.scores[found.main]))
    plain, swept = [r for r in rows if r.run not in found.swept], [r for r in rows if r.run in found.swept]
    judged = plain or swept
    here = found.rounds[found.rounds["target"] == target]
    name = NAMES[found.main]
    pictures = [curves(lines(here, f"test/{m}", index), f"{n} at {target} by round", n) for m, n in NAMES.items()]
    contest = {r.run: r.scores[found.main] for r in judged}
    return View(
        name=target,
        plain=plain,
        swept=swept,
        drawings=[p for p in pictures if p],
        plane=against(judged, found.by_bytes, "mb_sent", found.main, target, ("bytes", ALL_BYTES, "MB")),
        clock=against(judged, found.by_seconds, "seconds", found.main, target, ("time", clock_name(found), "s")),
        sentences=answer(target, contest, found.runs, name, not plain, audit, found.main),
    )


def clock_name(found: Findings) -> str:
    """What the axis of seconds is called."""
    cpu = set(found.by_seconds["clock"]) == {"CPU"}
    return f"{'CPU seconds' if cpu else 'Seconds by the clock'} in a run, hospitals one after the other"


def against(
    rows: Sequence[Row], frame: pd.DataFrame, column: str, main: str, target: str, words: tuple[str, str, str]
) -> Markup:
    """Score against a cost; `words`: what the cost is, its axis and its unit."""
    ways = trails(frame[frame["target"] == target], column)
    points = [Point(r.index, r.run, r.scores[main], ways[r.run]) for r in rows if r.run in ways]
    what, axis, unit = words
    title = f"{NAMES[main]} at {target} against {what}"
    return plane(points, title, (f"{axis} (log scale)", NAMES[main]), unit)


def _height(score: Interval) -> float:
    return -1.0 if score.mean is None else score.mean


def _span(scores: Sequence[Interval], chance: float | None) -> tuple[float, float]:
    ends = [v for s in scores for v in (s.mean, s.low, s.high) if v is not None]
    return limits([*ends, *([] if chance is None else [chance])]) if ends else (0.0, 1.0)


def lines(frame: pd.DataFrame, metric: str, index: Mapping[str, int]) -> list[Line]:
    """The curves of one metric, thinned to what a screen can show; the last round is always kept."""
    out = []
    for run, group in frame[frame["metric"] == metric].groupby("run", sort=False):
        ordered = group.sort_values("round")
        step = -(-len(ordered) // POINTS)
        thin = ordered.iloc[::-1].iloc[::step].iloc[::-1]
        parts = {c: [None if v != v else float(v) for v in thin[c]] for c in ("mean", "low", "high")}
        name = str(run)
        out.append(Line(index[name], name, [int(r) for r in thin["round"]], parts["mean"], parts["low"], parts["high"]))
    return out


def trails(frame: pd.DataFrame, column: str = "mb_sent") -> dict[str, list[tuple[float, float]]]:
    """Run -> cost and score after each judged round, thinned like the curves."""
    out = {}
    for run, group in frame.dropna(subset=["mean"]).groupby("run", sort=False):
        ordered = group.sort_values("round")
        thin = ordered.iloc[::-1].iloc[:: -(-len(ordered) // POINTS)].iloc[::-1]
        out[str(run)] = [(float(cost), float(score)) for cost, score in zip(thin[column], thin["mean"], strict=True)]
    return out


def reasons(scores: pd.DataFrame) -> dict[tuple[str, str, str], str]:
    """(target, run, metric) -> why a score is undefined."""
    bad = at_target(scores)
    bad = bad[bad["why"] != ""]
    return {
        (str(t), str(r), str(m)): str(w)
        for t, r, m, w in zip(bad["target"], bad["run"], bad["metric"], bad["why"], strict=True)
    }


def legend(views: Sequence[View]) -> list[dict[str, Any]]:
    """Every run, best first and swept ones last, on at first are the best few."""
    rows = views[0].rows
    best = [row.index for row in views[0].plain or rows][:SHOWN]
    folded = {row.index for row in views[0].swept} if views[0].plain else set()
    if folded:
        # Values of a sweep in the order of the configuration, not by score.
        rows = [*views[0].plain, *sorted(views[0].swept, key=lambda row: row.index)]
    return [{"index": r.index, "run": r.run, "on": r.index in best, "folded": r.index in folded} for r in rows]
