"""Figure 2 of the FedGP paper: which rule has the smallest error at which target variance and distance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from fdamed.report.plots.figure import apart, color, figure, number, rule, standalone, text
from fdamed.report.plots.heat import Cell, Panel, heat

RULES = {"source_only": 4, "fedda": 5, "fedgp": 2, "target_only": 3}
"""Rule -> its color, the same on every map."""
TITLE = {"source_only": "source only", "fedda": "FedDA", "fedgp": "FedGP", "target_only": "target only"}
SHORT = {"source_only": "source", "fedda": "DA", "fedgp": "GP", "target_only": "target"}
SIDE, FINE = 360.0, 180
"""Side of a map, and into how many columns and rows its regions are cut."""
LEFT, TOP = 62.0, 56.0
REACH = 1.0
"""Decades by which an interval may widen the axes; the rest of it is cut off."""
AXES = ("target variance (σ)", "source-target distance (d)")


@dataclass(frozen=True)
class Spot:
    """A source on the map: sigma and d, each as value, low and high, all above 0."""

    name: str
    x: tuple[float, float, float]
    y: tuple[float, float, float]


def landscape(win: Callable[[float, float], str], spots: Sequence[Spot], title: str) -> Markup:
    """The regions of `win(sigma, d)` on logarithmic axes, with the sources on them."""
    low, high = _span(spots)

    def along(value: float) -> float:
        return min(max((math.log10(value) - low) / (high - low), 0.0), 1.0) * SIDE

    centers = [10 ** (low + (i + 0.5) / FINE * (high - low)) for i in range(FINE)]
    winners = [[win(sigma, d) for sigma in centers] for d in centers]
    body = _regions(winners)
    for value in _ticks(low, high):
        body.append(text(LEFT + along(value), TOP + SIDE + 18, number(value)))
        body.append(text(LEFT - 8, TOP + SIDE - along(value) + 4, number(value), anchor="end"))
    body += _spots(spots, lambda v: LEFT + along(v), lambda v: TOP + SIDE - along(v))
    body += [
        f'<rect class="box" x="{LEFT}" y="{TOP}" width="{SIDE:g}" height="{SIDE:g}"/>',
        text(LEFT - 44, TOP - 34, title, "name strong", "start"),
        text(LEFT + SIDE / 2, TOP + SIDE + 38, AXES[0], "axis"),
        text(LEFT - 44, TOP - 12, AXES[1], "axis", "start"),
    ]
    there = {name for row in winners for name in row}
    for i, name in enumerate(known for known in RULES if known in there):
        at, y = LEFT + 180 * (i % 2), TOP + SIDE + 54 + 22 * (i // 2)
        body.append(f'<rect class="half {color(RULES[name])}" x="{at:g}" y="{y:g}" width="12" height="12"/>')
        body.append(text(at + 18, y + 10, TITLE[name], "name", "start"))
    told = "; ".join(f"{s.name}: d = {s.y[0]:.3g}, {TITLE[win(s.x[0], s.y[0])]}" for s in spots) + "."
    return figure(LEFT + SIDE + 24, TOP + SIDE + 96, title, body, "chart map", told)


def _span(spots: Sequence[Spot]) -> tuple[float, float]:
    """Common logarithms of the ends of both axes."""
    values = [math.log10(v) for s in spots for v in (s.x[0], s.y[0])]
    ends = [math.log10(v) for s in spots for v in (*s.x, *s.y)]
    low, high = max(min(ends), min(values) - REACH), min(max(ends), max(values) + REACH)
    return low - 0.3, high + 0.3


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade, or the decades alone where there are many."""
    steps = (1.0, 2.0, 5.0) if high - low < 2.5 else (1.0,)
    values = [s * 10.0**p for p in range(math.floor(low), math.ceil(high) + 1) for s in steps]
    return [v for v in values if low <= math.log10(v) <= high]


def _regions(winners: Sequence[Sequence[str]]) -> list[str]:
    """One shape for each rule, row by row."""
    cell, pieces = SIDE / FINE, dict.fromkeys(RULES, "")
    for row, names in enumerate(winners):
        y = TOP + SIDE - (row + 1) * cell
        cuts = [0, *(i for i in range(1, len(names)) if names[i] != names[i - 1]), len(names)]
        for a, b in itertools.pairwise(cuts):
            pieces[names[a]] += f"M{LEFT + a * cell:g},{y:g}h{(b - a) * cell:g}v{cell:g}h{-(b - a) * cell:g}z"
    return [
        f'<path class="half {color(RULES[name])}" d="{d}"><title>{TITLE[name]}</title></path>'
        for name, d in pieces.items()
        if d
    ]


def _spots(spots: Sequence[Spot], across: Callable[[float], float], up: Callable[[float], float]) -> list[str]:
    """Sources with their intervals, side by side because all share the target's sigma."""
    spots = sorted(spots, key=lambda s: s.y[0])
    step = min(10.0, 60.0 / len(spots))
    xs = [across(s.x[0]) + (i - (len(spots) - 1) / 2) * step for i, s in enumerate(spots)]
    heights = apart([up(s.y[0]) for s in spots], TOP + 12, TOP + SIDE - 8)
    right = max(xs) + 22 + 7.2 * max(len(s.name) for s in spots) < LEFT + SIDE
    aside = max(xs) + 22 if right else min(xs) - 22
    x, low, high = (across(v) for v in spots[0].x)
    wide = max(high - low, 0.5)
    out = [
        f'<rect class="shade ink" x="{low:.1f}" y="{TOP}" width="{wide:.1f}" height="{SIDE:g}"/>',
        rule("leader ink", x, TOP, x, TOP + SIDE),
    ]
    for i, (spot, level) in enumerate(zip(spots, heights, strict=True)):
        y, end = up(spot.y[0]), aside + (-4 if right else 4)
        tip = f"{escape(spot.name)}: d = {spot.y[0]:.3g} ({spot.y[1]:.3g} to {spot.y[2]:.3g})"
        out += [
            f"<g><title>{tip}</title>",
            rule("leader ink", xs[i], up(spot.y[1]), xs[i], up(spot.y[2])),
            rule("leader ink", xs[i], y, end, level),
            f'<circle class="ring ink" cx="{xs[i]:.1f}" cy="{y:.1f}" r="4"/>',
            text(aside, level + 4, spot.name, "name", "start" if right else "end"),
            "</g>",
        ]
    return out


def panels(maps: Mapping[str, Sequence[Sequence[str]]], columns: Sequence[str], rows: Sequence[str], title: str) -> str:
    """Maps of winning rules side by side, [row][column], the first row at the bottom; a file of its own."""
    made = [
        Panel(name, [[Cell(RULES[r], 0.5, TITLE[r], [SHORT[r]]) for r in line] for line in reversed(winners)], columns)
        for name, winners in maps.items()
    ]
    told = "Rows: source-target distance (d); columns: target variance (σ)."
    return standalone(heat(made, list(reversed(rows)), title, (52, 34), told, " by ".join(reversed(AXES))))
