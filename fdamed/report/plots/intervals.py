"""Dots with intervals: one in a table cell, or rows of them in columns side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fdamed.evaluation.intervals import Interval
from fdamed.report.plots.figure import Axis, color, element, figure, linear, mark, room, rule, text

TOP, ROW = 34.0, 24.0


@dataclass(frozen=True)
class Dot:
    """A value with its interval; `kind`: mark, ring (the reference), or cross (a control)."""

    value: float
    low: float | None = None
    high: float | None = None
    index: int | None = None
    kind: str = "mark"


def estimate(found: Mapping[str, float], index: int | None) -> Dot:
    """The dot of an estimate with value, low and high."""
    return Dot(found["value"], found["low"], found["high"], index)


@dataclass(frozen=True)
class Column:
    """One axis, the dots of every row on it, and a reference line."""

    axis: Axis
    rows: Sequence[Sequence[Dot]]
    line: float | None = None
    digits: str = ".3f"


def inline(score: Interval, index: int, span: tuple[float, float], chance: float | None) -> Markup:
    """A mean and its interval on the scale of a whole table column."""
    if score.mean is None:
        return Markup("")
    low, high = span
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
    middles = [TOP + ROW * (i + 0.5) for i in range(len(names))]
    body = [text(left - 12, y + 4, name, "name", "end") for name, y in zip(names, middles, strict=True)]
    for k, column in enumerate(columns):
        begin = left + k * (panel + gap)
        x = column.axis.between(begin, begin + panel)
        body.append(text(begin + panel / 2, TOP - 16, column.axis.name, "axis"))
        for value, label in column.axis.ticks:
            body += [rule("grid", x(value), TOP - 4, x(value), bottom), text(x(value), bottom + 16, label)]
        if column.line is not None:
            body.append(rule("reference", x(column.line), TOP - 4, x(column.line), bottom))
        for name, y, dots in zip(names, middles, column.rows, strict=True):
            for dot in dots:
                ends = [min(max(x(end), begin), begin + panel) for end in (dot.low, dot.high) if end is not None]
                body += _drawn(dot, x(dot.value), y, ends, f"{name}: {column.axis.name} {_numbers(dot, column.digits)}")
    right = left + len(columns) * (panel + gap) - gap + 16
    for j, texts in enumerate(zip(*notes, strict=True)):
        kind = "tick" if j else "name"
        body += [text(right, y + 4, word, kind, "start") for word, y in zip(texts, middles, strict=True)]
        right += max(room([word]) for word in texts)
    words = "; ".join(
        f"{name}: " + ", ".join(f"{c.axis.name} {d.value:{c.digits}}" for c in columns for d in c.rows[i])
        for i, name in enumerate(names)
    )
    return figure(right, bottom + 24, title, body, words=words + ".")


def _numbers(dot: Dot, digits: str) -> str:
    return f"{dot.value:{digits}}" + ("" if dot.low is None else f", {dot.low:{digits}} to {dot.high:{digits}}")


def _drawn(dot: Dot, x: float, y: float, ends: Sequence[float], tip: str) -> list[str]:
    """A dot with its tooltip, and its interval between `ends`."""
    if dot.kind == "cross":
        path = f"M{x - 3:.1f},{y - 3}l6,6M{x - 3:.1f},{y + 3}l6,-6"
        return [element("path", "cross muted", title=tip, d=path)]
    if dot.kind == "ring":
        return [element("circle", "ring muted", title=tip, cx=x, cy=y, r=4)]
    span = [rule(f"span {color(dot.index)}", ends[0], y, ends[1], y)] if len(ends) == 2 else []
    return [*span, mark(dot.index, x, y, 4.5, tip)]
