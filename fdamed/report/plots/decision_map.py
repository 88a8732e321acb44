"""Figure 2 of the FedGP paper: which rule has the smallest error at which target variance and distance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fdamed.report.plots.figure import apart, color, element, figure, logarithmic, rule, text

RULES = {"source_only": 4, "fedda": 5, "fedgp": 2, "target_only": 3}
"""Rule -> its color, the same on every map."""
TITLE = {"source_only": "source only", "fedda": "FedDA", "fedgp": "FedGP", "target_only": "target only"}
SIDE, FINE = 360.0, 180
"""Side of a map, and into how many columns and rows its regions are cut."""
LEFT, TOP = 62.0, 56.0
REACH = 10.0
"""Factor by which an interval may widen the axes; the rest of it is cut off."""
AXES = ("target variance (σ)", "source-target distance (d)")


@dataclass(frozen=True)
class Spot:
    """A source on the map: sigma and d, each as value, low and high, all above 0."""

    name: str
    x: tuple[float, float, float]
    y: tuple[float, float, float]


def landscape(win: Callable[[float, float], str], spots: Sequence[Spot], title: str) -> Markup:
    """The regions of `win(sigma, d)` on logarithmic axes, with the sources on them."""
    axis = logarithmic(_ends(spots))

    def along(value: float) -> float:
        return min(max(axis.place(value), 0.0), 1.0) * SIDE

    low, high = map(math.log10, _ends(spots))
    centers = [10 ** (low + (i + 0.5) / FINE * (high - low)) for i in range(FINE)]
    winners = [[win(sigma, d) for sigma in centers] for d in centers]
    body = _regions(winners)
    for value, label in axis.ticks:
        body.append(text(LEFT + along(value), TOP + SIDE + 18, label))
        body.append(text(LEFT - 8, TOP + SIDE - along(value) + 4, label, anchor="end"))
    body += _spots(spots, lambda v: LEFT + along(v), lambda v: TOP + SIDE - along(v))
    body += [
        element("rect", "box", x=LEFT, y=TOP, width=SIDE, height=SIDE),
        text(LEFT - 44, TOP - 34, title, "name strong", "start"),
        text(LEFT + SIDE / 2, TOP + SIDE + 38, AXES[0], "axis"),
        text(LEFT - 44, TOP - 12, AXES[1], "axis", "start"),
    ]
    there = {name for row in winners for name in row}
    for i, name in enumerate(known for known in RULES if known in there):
        x, y = LEFT + 180 * (i % 2), TOP + SIDE + 54 + 22 * (i // 2)
        body.append(element("rect", f"half {color(RULES[name])}", x=x, y=y, width=12, height=12))
        body.append(text(x + 18, y + 10, TITLE[name], "name", "start"))
    words = "; ".join(f"{s.name}: d = {s.y[0]:.3g}, {TITLE[win(s.x[0], s.y[0])]}" for s in spots) + "."
    return figure(LEFT + SIDE + 24, TOP + SIDE + 96, title, body, "chart map", words)


def _ends(spots: Sequence[Spot]) -> tuple[float, float]:
    """Both ends of both axes: all values, and intervals up to `REACH`, with a margin."""
    values = [v for s in spots for v in (s.x[0], s.y[0])]
    ends = [v for s in spots for v in (*s.x, *s.y)]
    return max(min(ends), min(values) / REACH) / 2, min(max(ends), max(values) * REACH) * 2


def _regions(winners: Sequence[Sequence[str]]) -> list[str]:
    """One shape for each rule, row by row."""
    cell, pieces = SIDE / FINE, dict.fromkeys(RULES, "")
    for row, names in enumerate(winners):
        y = TOP + SIDE - (row + 1) * cell
        start = 0.0
        for name, run in itertools.groupby(names):
            width = len(list(run)) * cell
            pieces[name] += f"M{LEFT + start:g},{y:g}h{width:g}v{cell:g}h{-width:g}z"
            start += width
    return [element("path", f"half {color(RULES[name])}", title=TITLE[name], d=d) for name, d in pieces.items() if d]


def _spots(spots: Sequence[Spot], across: Callable[[float], float], up: Callable[[float], float]) -> list[str]:
    """Sources with their intervals, side by side because all share the target's sigma."""
    spots = sorted(spots, key=lambda s: s.y[0])
    step = min(10.0, 60.0 / len(spots))
    xs = [across(s.x[0]) + (i - (len(spots) - 1) / 2) * step for i, s in enumerate(spots)]
    heights = apart([up(s.y[0]) for s in spots], TOP + 12, TOP + SIDE - 8)
    right = max(xs) + 22 + 7.2 * max(len(s.name) for s in spots) < LEFT + SIDE
    aside = max(xs) + 22 if right else min(xs) - 22
    x, low, high = (across(v) for v in spots[0].x)
    out = [
        element("rect", "shade ink", x=low, y=TOP, width=max(high - low, 0.5), height=SIDE),
        rule("leader ink", x, TOP, x, TOP + SIDE),
    ]
    for at, spot, level in zip(xs, spots, heights, strict=True):
        value, least, most = spot.y
        parts = [
            rule("leader ink", at, up(least), at, up(most)),
            rule("leader ink", at, up(value), aside + (-4 if right else 4), level),
            element("circle", "ring ink", cx=at, cy=up(value), r=4),
            text(aside, level + 4, spot.name, "name", "start" if right else "end"),
        ]
        out.append(element("g", "", *parts, title=f"{spot.name}: d = {value:.3g} ({least:.3g} to {most:.3g})"))
    return out
