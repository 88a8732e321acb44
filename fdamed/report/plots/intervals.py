"""Dots with intervals: one in a table cell, or rows of them in columns side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from fdamed.evaluation.intervals import Interval
from fdamed.report.plots.figure import Axis, color, figure, linear, mark, room, rule, text

TOP, ROW = 34.0, 24.0


@dataclass(frozen=True)
class Dot:
    """A value with its interval; `kind`: mark, ring (the reference), or cross (a control)."""

    value: float
    low: float | None = None
    high: float | None = None
    index: int | None = None
    kind: str = "mark"


def estimate(told: Mapping[str, float], index: int | None) -> Dot:
    """The dot of an estimate with value, low and high."""
    return Dot(told["value"], told["low"], told["high"], index)


@dataclass(frozen=True)
class Column:
    """One axis, the dots of every row on it, and a reference line."""

    axis: Axis
    rows: Sequence[Sequence[Dot]]
    line: float | None = None
    digits: str = ".3f"


def inline(score: Interval, index: int, low: float, high: float, chance: float | None = 0.5) -> Markup:
    """A mean and its interval on the scale of a whole table column."""
    if score.mean is None:
        return Markup("")
    x = linear(low, high).between(6, 129)
    body = [rule("rail", 0, 10, 135, 10)]
    if chance is not None and low < chance < high:
        body.append(rule("chance", x(chance), 0, x(chance), 20))
    if score.low is not None and score.high is not None:
        body.append(rule("span", x(max(low, score.low)), 10, x(min(high, score.high)), 10, index))
    return figure(135, 20, f"{score.mean:.3f}", [*body, mark(index, x(score.mean), 10, 4.5)], "dot")


def rows(
    names: Sequence[str],
    columns: Sequence[Column],
    title: str,
    notes: Sequence[Sequence[str]] = (),
    width: float = 600.0,
) -> Markup:
    """Rows of dots with intervals; `notes`: texts at the right of each row."""
    if not names:
        return Markup("")
    left, gap = max(90.0, room(names)), 32.0
    panel = max(120.0, (width - gap * (len(columns) - 1)) / len(columns))
    bottom = TOP + ROW * len(names)
    body = [text(left - 12, TOP + ROW * (i + 0.5) + 4, name, "name", "end") for i, name in enumerate(names)]
    for k, column in enumerate(columns):
        begin = left + k * (panel + gap)
        x = column.axis.between(begin, begin + panel)
        body.append(text(begin + panel / 2, TOP - 16, column.axis.name, "axis"))
        for value, label in column.axis.ticks:
            body += [rule("grid", x(value), TOP - 4, x(value), bottom), text(x(value), bottom + 16, label)]
        if column.line is not None:
            body.append(rule("reference", x(column.line), TOP - 4, x(column.line), bottom))
        for i, dots in enumerate(column.rows):
            for dot in dots:
                body += _drawn(dot, column, x(dot.value), begin, panel, TOP + ROW * (i + 0.5), names[i])
    right = left + len(columns) * (panel + gap) - gap + 16
    for i, words in enumerate(notes):
        at = right
        for j, word in enumerate(words):
            body.append(text(at, TOP + ROW * (i + 0.5) + 4, word, "tick" if j else "name", "start"))
            at += max(room([line[j]]) for line in notes)
    end = right + sum(max(room([line[j]]) for line in notes) for j in range(len(notes[0]))) if notes else right
    told = "; ".join(
        f"{name}: " + ", ".join(f"{c.axis.name} {d.value:{c.digits}}" for c in columns for d in c.rows[i])
        for i, name in enumerate(names)
    )
    return figure(end, bottom + 24, title, body, told=told + ".")


def _drawn(dot: Dot, column: Column, at: float, begin: float, panel: float, y: float, name: str) -> list[str]:
    """A dot, its interval cut off at the panel's sides, and its tooltip."""
    x = column.axis.between(begin, begin + panel)
    ends = "" if dot.low is None else f", {dot.low:{column.digits}} to {dot.high:{column.digits}}"
    tip = f"{name}: {column.axis.name} {dot.value:{column.digits}}{ends}"
    if dot.kind == "cross":
        path = f"M{at - 3:.1f},{y - 3}l6,6M{at - 3:.1f},{y + 3}l6,-6"
        return [f'<path class="cross muted" d="{path}"><title>{escape(tip)}</title></path>']
    if dot.kind == "ring":
        return [f'<circle class="ring muted" cx="{at:.1f}" cy="{y}" r="4"><title>{escape(tip)}</title></circle>']
    out = []
    if dot.low is not None and dot.high is not None:
        sides = (min(max(x(end), begin), begin + panel) for end in (dot.low, dot.high))
        first, last = sides
        paint = color(dot.index)
        out.append(f'<line class="span {paint}" x1="{first:.1f}" y1="{y:.1f}" x2="{last:.1f}" y2="{y:.1f}"/>')
    return [*out, mark(dot.index, at, y, 4.5, tip)]
