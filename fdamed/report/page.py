"""Everything a reader sees, gathered from frames into one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fdamed.evaluate.intervals import Interval
from fdamed.evaluate.tables import ALL_TARGETS, at_target
from fdamed.report.answer import CEILING, answer
from fdamed.report.svg import Line, Point, curves, dash, dot, limits, plane

HERE = Path(__file__).parent
POINTS = 120
"""Rounds drawn in a curve at most."""
SHOWN = 8
"""Runs switched on at first; with more, the best of them."""


@dataclass(frozen=True)
class Row:
    """A line of the headline table."""

    index: int
    run: str
    method: str
    auc: Interval
    acc: Interval
    why: Mapping[str, str]
    graphics: Mapping[str, Markup]
    mb: float | None
    ceiling: bool


@dataclass(frozen=True)
class View:
    """All that is shown about one target (or the mean of all)."""

    name: str
    rows: Sequence[Row]
    drawings: Sequence[Markup]
    plane: Markup
    sentences: Sequence[str]


def view(
    target: str,
    runs: Mapping[str, str],
    summary: Mapping[tuple[str, str, str], Interval],
    why: Mapping[tuple[str, str, str], str],
    rounds: pd.DataFrame,
    megabytes: Mapping[tuple[str, str], float],
) -> View:
    """The view of `target`; `runs` are run -> method in the order of the configuration."""
    none = Interval(None, None, 0)
    index = {run: i for i, run in enumerate(runs)}
    scores = {m: {run: summary.get((target, run, m), none) for run in runs} for m in ("auc", "acc")}
    spans = {m: _span(list(s.values())) for m, s in scores.items()}
    rows = [
        Row(
            index=index[run],
            run=run,
            method=method,
            auc=scores["auc"][run],
            acc=scores["acc"][run],
            why={m: why.get((target, run, m), "not run") for m in scores},
            graphics={m: dot(scores[m][run], index[run], *spans[m]) for m in scores},
            mb=megabytes.get((target, run)),
            ceiling=method == CEILING,
        )
        for run, method in runs.items()
    ]
    rows.sort(key=lambda row: -(row.auc.mean if row.auc.mean is not None else -1.0))
    points = [Point(r.index, r.run, r.mb, r.auc) for r in rows if r.mb is not None]
    here = rounds[rounds["target"] == target]
    pictures = [curves(lines(here, m, index), f"{n} at {target} by round", n) for m, n in _CURVES]
    return View(
        name=target,
        rows=rows,
        drawings=[p for p in pictures if p],
        plane=plane(points, f"AUC at {target} against bytes", ("MB out of all hospitals in a run", "AUC")),
        sentences=answer(target, scores["auc"], runs),
    )


_CURVES = (("test/auc", "AUC"), ("test/acc", "accuracy"))


def _span(scores: Sequence[Interval]) -> tuple[float, float]:
    ends = [v for s in scores for v in (s.mean, s.low, s.high) if v is not None]
    return limits([*ends, 0.5]) if ends else (0.0, 1.0)


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


def reasons(scores: pd.DataFrame) -> dict[tuple[str, str, str], str]:
    """(target, run, metric) -> why a score is undefined."""
    bad = at_target(scores)
    bad = bad[bad["why"] != ""]
    return {
        (str(t), str(r), str(m)): str(w)
        for t, r, m, w in zip(bad["target"], bad["run"], bad["metric"], bad["why"], strict=True)
    }


def published(cohort: str, runs: Mapping[str, tuple[str, bool]], summary: Mapping[tuple[str, str, str], Interval],
              target: str) -> tuple[str, list[dict[str, Any]]]:  # fmt: skip
    """Source, and the paper's rows with ours beside them; `runs` are run -> method, with auxiliary heads or not."""
    content = json.loads((HERE / "published.json").read_text(encoding="utf-8"))
    rows = []
    for entry in content["rows"]:
        ours = next((r for r, (m, a) in runs.items() if (m, a) == (entry["method"], entry["auxiliary"])), None)
        numbers = {m: summary.get((target, ours, m)) if ours else None for m in ("acc", "auc")}
        rows.append({"name": entry["name"], "paper": entry[cohort], "run": ours, "ours": numbers})
    return str(content["source"]), rows


def legend(views: Sequence[View]) -> list[dict[str, Any]]:
    """Every run, best first, with its dash; on at first are the best few."""
    rows = views[0].rows
    best = [row.index for row in rows][:SHOWN]
    return [{"index": r.index, "run": r.run, "dash": dash(r.index), "on": r.index in best} for r in rows]


def render(content: Mapping[str, Any]) -> str:
    """The page as one file: style, script and drawings inside, nothing fetched, nothing else allowed to run."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"interval": interval, "count": count, "megabytes": megabytes}
    script = (HERE / "script.js").read_text(encoding="utf-8")
    style = (HERE / "style.css").read_text(encoding="utf-8")
    mark = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template("page.html")
    own = {"script": Markup(script), "style": Markup(style), "script_hash": mark, "all_targets": ALL_TARGETS}  # noqa: S704
    return page.render(dict(content), **own)


def interval(score: Interval | None, percent: bool = False) -> str:
    """Mean and half interval as text."""
    if score is None or score.mean is None:
        return "–"
    factor, digits = (100, 2) if percent else (1, 3)
    half = "" if score.half is None else f" ± {score.half * factor:.{digits}f}"
    return f"{score.mean * factor:.{digits}f}{half}"


def megabytes(value: float) -> str:
    """MB in a unit that shows something."""
    size = value * 1e6
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.3g} {unit}" if size / factor < 1000 else f"{size / factor:,.0f} {unit}"
    return f"{size:.0f} B"


def count(value: object) -> str:
    """A number with thousands set apart; text as it is."""
    return f"{value:,}" if isinstance(value, int) else str(value)
