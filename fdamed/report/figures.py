"""The page's figures as files, svg and png, for papers and slides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fdamed.core.files import atomic
from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.run_tables import clipped
from fdamed.report import svg
from fdamed.report.reproduction import Row
from fdamed.report.score_against_cost import logarithmic
from fdamed.report.svg import DASHES, Line, number

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8A1E")
"""Okabe and Ito, with olive for the yellow that vanishes on white; the order is that of the stylesheet."""
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "h")
"""A mark for each color, in the order of the page's."""
MOST = 12
"""Runs in one drawing; with more, the best of them are drawn and the title says so."""


def style(index: int) -> dict[str, Any]:
    """Color and dash of a run, as on the page."""
    marks = DASHES[index // len(PALETTE) % len(DASHES)]
    pattern = tuple(float(m) / 2 for m in marks.split())
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": (0, pattern) if pattern else "-"}


def shape(index: int) -> str:
    """The mark of a run, as on the page."""
    return SHAPES[svg.shape(index)]


def save(figure: Any, folder: Path, name: str) -> None:
    """Write svg and png, the same bytes each time."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "fdamed", "svg.fonttype": "none"}):
        # Measured once: asked for "tight", each format would draw everything twice.
        room = figure.get_tightbbox().padded(0.1)
        for kind, options in (
            ("svg", {"metadata": {"Date": None}}),
            ("png", {"dpi": 150, "metadata": {"Software": None}}),
        ):
            with atomic(folder / f"{name}.{kind}") as draft:
                figure.savefig(draft, format=kind, bbox_inches=room, **options)


def _plot(width: float, height: float, across: str, up: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.25, linewidth=0.6)
    return figure, axes


def rounds(frame: pd.DataFrame, index: Mapping[str, int], runs: Sequence[str], name: str, target: str) -> Any:
    """Curves of one metric at one target, with their bands; None when nothing is there."""
    if frame["mean"].isna().all():
        return None
    figure, axes = _plot(7, 4, "round", name)
    for run in runs[:MOST]:
        part = frame[frame["run"] == run].sort_values("round")
        marks = {"marker": shape(index[run]), "markersize": 4, "markevery": max(1, len(part) // 6)}
        axes.plot(part["round"], part["mean"], label=_label(run), linewidth=1.6, **marks, **style(index[run]))
        axes.fill_between(
            part["round"], part["low"], part["high"], color=style(index[run])["color"], alpha=0.14, linewidth=0
        )
    chosen = f" (best {MOST} of {len(runs)})" if len(runs) > MOST else ""
    axes.set_title(_label(f"{name} at {target}{chosen}"), loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=8, bbox_to_anchor=(1.01, 1), loc="upper left")
    return figure


def headline(
    scores: Mapping[str, Interval], index: Mapping[str, int], runs: Sequence[str], name: str, target: str
) -> Any:
    """Mean and interval of each run, best at the top."""
    known = [run for run in runs if scores[run].mean is not None]
    if not known:
        return None
    figure, axes = _plot(6, 0.8 + 0.32 * len(known), f"{name}, 95 % interval over seeds", "")
    for place, run in enumerate(reversed(known)):
        score = scores[run]
        axes.errorbar(
            score.mean, place, xerr=_reach(score), fmt=shape(index[run]), color=style(index[run])["color"], capsize=3
        )
    axes.set_yticks(range(len(known)), [_label(run) for run in reversed(known)])
    axes.set_title(_label(target), loc="left", fontsize=11)
    return figure


def cost(
    scores: Mapping[str, Interval],
    ways: Mapping[str, Sequence[tuple[float, float]]],
    index: Mapping[str, int],
    names: tuple[str, str],
    target: str,
) -> Any:
    """Score against all bytes sent: the way of each run by round, and where it ends with its interval."""
    known = [run for run in scores if scores[run].mean is not None and run in ways]
    if not known:
        return None
    figure, axes = _plot(6, 4, *names)
    for run in known:
        score, look = scores[run], style(index[run])
        if ways[run][0][0] < ways[run][-1][0]:
            axes.plot(*zip(*ways[run], strict=True), linewidth=1, alpha=0.45, **look)
        more = {"color": look["color"], "capsize": 3, "label": _label(run)}
        axes.errorbar(ways[run][-1][0], score.mean, yerr=_reach(score), fmt=shape(index[run]), **more)
    amounts = [mb for run in known for mb, _ in ways[run]]
    _, marks = logarithmic(amounts, 0.0, 1.0)
    if min(amounts) > 0:
        axes.set_xscale("log")
    else:  # a run that sends nothing has no logarithm
        axes.set_xscale("symlog", linthresh=min([mb for mb in amounts if mb > 0], default=1.0))
        marks = [0.0, *marks]
    axes.set_xticks(marks, [number(m) for m in marks])
    axes.minorticks_off()
    axes.set_title(_label(target), loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=8, bbox_to_anchor=(1.01, 1), loc="upper left")
    return figure


def sent(table: pd.DataFrame) -> Any:
    """Stacked bars: MB a round by run and kind."""
    if table.empty or float(table.to_numpy().sum()) <= 0:
        return None
    figure, axes = _plot(7, 0.9 + 0.32 * len(table), "MB a round out of all hospitals", "")
    begin = pd.Series(0.0, index=table.index)
    for i, kind in enumerate(table.columns):
        axes.barh(range(len(table)), table[kind], left=begin, label=_label(str(kind)), color=PALETTE[i % len(PALETTE)])
        begin = begin + table[kind]
    axes.set_yticks(range(len(table)), [_label(str(run)) for run in table.index])
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=8, bbox_to_anchor=(1.01, 1), loc="upper left")
    return figure


def curves(
    lines: Sequence[Line],
    names: tuple[str, str],
    title: str,
    ticks: Sequence[tuple[float, str]] = (),
    levels: Mapping[str, float] | None = None,
) -> Any:
    """Lines with bands over anything; `ticks` are places with their text, `levels` dashed horizontal lines."""
    if not any(m is not None for line in lines for m in line.mean):
        return None
    figure, axes = _plot(6, 4, *names)
    for line in lines:
        known = [i for i, m in enumerate(line.mean) if m is not None]
        x, mean = [line.x[i] for i in known], [line.mean[i] for i in known]
        axes.plot(
            x,
            mean,
            label=_label(line.name),
            marker=shape(line.index) if ticks else "",
            markersize=4,
            **style(line.index),
        )
        if all(line.low[i] is not None and line.high[i] is not None for i in known):
            low, high = [line.low[i] for i in known], [line.high[i] for i in known]
            axes.fill_between(x, low, high, color=style(line.index)["color"], alpha=0.14, linewidth=0)
    for i, (name, level) in enumerate((levels or {}).items()):
        marks = (0, tuple(float(m) / 2 for m in DASHES[1 + i % (len(DASHES) - 1)].split()))
        axes.axhline(level, color="#777777", linewidth=1, linestyle=marks, label=_label(name))
    if ticks:
        axes.set_xticks([t for t, _ in ticks], [_label(t) for _, t in ticks])
    axes.set_title(_label(title), loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=8, bbox_to_anchor=(1.01, 1), loc="upper left")
    return figure


def cells(rows: Sequence[Row]) -> Any:
    """A paper's figures (dashed) and our curves: a row a method, a column a setting."""
    if not any(cell.curve for row in rows for _, cell in row.cells):
        return None
    from matplotlib.figure import Figure

    columns = max(len(row.cells) for row in rows)
    figure = Figure(figsize=(1.2 + 1.9 * columns, 0.4 + 1.35 * len(rows)))
    grid = figure.subplots(len(rows), columns, sharex=True, sharey=True, squeeze=False)
    for i, row in enumerate(rows):
        for axes in grid[i, len(row.cells) :]:
            axes.set_visible(False)
        grid[i, 0].set_ylabel(_label(row.name), fontsize=8)
        for axes, (label, cell) in zip(grid[i], row.cells, strict=False):
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=7)
            axes.axhline(cell.paper, color="#777777", linewidth=1, linestyle=(0, (4, 3)))
            axes.plot(list(cell.curve), list(cell.curve.values()), linewidth=1.4, color=style(i)["color"])
            ours = "not run" if cell.last.mean is None else f"{cell.last.mean:.1f}"
            axes.set_title(_label(f"{label}: {ours} / {cell.paper:.1f}"), loc="left", fontsize=7)
    figure.supxlabel("round; title: ours, last round / paper (dashed)", fontsize=8)
    figure.tight_layout()
    return figure


def gains(rows: Sequence[tuple[str, Interval]], name: str, title: str) -> Any:
    """Dots with intervals around no gain."""
    known = [(label, s) for label, s in rows if s.mean is not None]
    if not known:
        return None
    figure, axes = _plot(6, 0.9 + 0.32 * len(known), name, "")
    axes.axvline(0, color="#777777", linewidth=1)
    for place, (_, score) in enumerate(known):
        axes.errorbar(score.mean, place, xerr=score.half, fmt="o", color=PALETTE[0], capsize=3)
    axes.set_yticks(range(len(known)), [_label(label) for label, _ in known])
    axes.invert_yaxis()
    axes.set_title(_label(title), loc="left", fontsize=11)
    return figure


def _reach(score: Interval) -> list[list[float]] | None:
    """How far the interval reaches down and up, within 0 and 1."""
    low, high = clipped(score)
    return None if low is None or high is None or score.mean is None else [[score.mean - low], [high - score.mean]]


def _label(text: str) -> str:
    """Text as it is: a dollar sign starts no formula, a leading underscore hides no entry."""
    safe = text.replace("$", r"\$")
    return "\u200b" + safe if safe.startswith("_") else safe
