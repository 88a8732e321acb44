"""The FedGP paper's Figure 2 as a drawing: which rule wins at which target variance and distance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from fdamed.report.score_against_cost import apart
from fdamed.report.svg import drawing, number

COLOR = {"source_only": "#e69f00", "fedda": "#56b4e9", "fedgp": "#009e73", "target_only": "#cc79a7"}
"""Okabe and Ito; the same for every map."""
PALETTE = {"source_only": "--c4", "fedda": "--c5", "fedgp": "--c2", "target_only": "--c3"}
"""The same colors in the page's stylesheet, where they follow light and dark."""
TITLE = {"source_only": "source only", "fedda": "FedDA", "fedgp": "FedGP", "target_only": "target only"}
SHORT = {"source_only": "source", "fedda": "DA", "fedgp": "GP", "target_only": "target"}
SIDE, FINE = 360.0, 180
"""Side of a map in drawing units, and into how many columns and rows its regions are cut."""
LEFT, TOP = 62.0, 56.0
REACH = 1.0
"""Decades that an interval may widen the axes beyond the values; the rest of it is cut off."""
LETTER, LINE = 7.2, 16.0
"""About the width and height of a letter."""
STYLE = (
    ":root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--muted:#5c6570;"
    "--c4:#e69f00;--c5:#56b4e9;--c2:#009e73;--c3:#cc79a7}"
    "@media(prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e8eaed;--muted:#9aa3ad;"
    "--c4:#e9b13c;--c5:#9bd3f5;--c2:#2cc295;--c3:#d995bd}}"
    "text{font:12px system-ui,sans-serif;fill:#5c6570;fill:var(--muted)}"
    ".axis,.name{fill:#1b1f24;fill:var(--ink)}.back{fill:#fff;fill:var(--paper)}"
    ".back,.reach,.spot,.box,.sigma{stroke-width:1}"
)
INK, PAPER, MUTED = "var(--ink, #1b1f24)", "var(--paper, #fff)", "var(--muted, #5c6570)"

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True)
class Spot:
    """A source on the map: sigma and d with their intervals, all above 0."""

    name: str
    x: tuple[float, float, float]
    """Value, low, high."""
    y: tuple[float, float, float]


def landscape(win: Callable[[float, float], str], spots: Sequence[Spot], title: str, axes: tuple[str, str]) -> Markup:
    """Regions by `win(sigma, d)` on logarithmic axes wide enough for the spots, with the spots on them."""
    low, high = _span(spots)

    def along(value: float) -> float:
        return min(max((math.log10(value) - low) / (high - low), 0.0), 1.0) * SIDE

    centers = [10 ** (low + (i + 0.5) / FINE * (high - low)) for i in range(FINE)]
    winners = [[win(sigma, d) for sigma in centers] for d in centers]
    marks, taken = _spots(spots, lambda v: LEFT + along(v), lambda v: TOP + SIDE - along(v))
    body = _regions(winners)
    for value in _ticks(low, high):
        label = number(value)
        body.append(_text(LEFT + along(value), TOP + SIDE + 18, label, "tick", "middle"))
        body.append(_text(LEFT - 8, TOP + SIDE - along(value) + 4, label, "tick", "end"))
    names, unnamed = _names(winners, taken)
    body += [*names, *marks, *_frame(LEFT, TOP, title, axes), *_legend(unnamed, LEFT, TOP + SIDE + 54)]
    return drawing(LEFT + SIDE + 14, TOP + SIDE + (72 if unnamed else 48), title, body, "chart map")


def _span(spots: Sequence[Spot]) -> tuple[float, float]:
    """Common logarithms of both axes' ends."""
    values = [math.log10(v) for s in spots for v in (s.x[0], s.y[0])]
    ends = [math.log10(v) for s in spots for v in (*s.x, *s.y)]
    low, high = max(min(ends), min(values) - REACH), min(max(ends), max(values) + REACH)
    return low - 0.3, high + 0.3


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade, or the decades alone where there are many."""
    steps = (1.0, 2.0, 5.0) if high - low < 2.5 else (1.0,)
    values = [s * 10.0**p for p in range(math.floor(low), math.ceil(high) + 1) for s in steps]
    return [v for v in values if low <= math.log10(v) <= high]


def _runs(names: Sequence[str]) -> list[tuple[int, int]]:
    """Where equal neighbors begin and end."""
    cuts = [0, *(i for i in range(1, len(names)) if names[i] != names[i - 1]), len(names)]
    return list(itertools.pairwise(cuts))


def _regions(winners: Sequence[Sequence[str]]) -> list[str]:
    """One shape a rule, row by row."""
    cell, pieces = SIDE / FINE, dict.fromkeys(COLOR, "")
    for row, names in enumerate(winners):
        y = TOP + SIDE - (row + 1) * cell
        for a, b in _runs(names):
            wide = (b - a) * cell
            pieces[names[a]] += f"M{LEFT + a * cell:g},{y:g}h{wide:g}v{cell:g}h{-wide:g}z"
    return [f'<path d="{d}" {_paint(rule)}><title>{TITLE[rule]} wins</title></path>' for rule, d in pieces.items() if d]


def _names(winners: Sequence[Sequence[str]], taken: Sequence[Box]) -> tuple[list[str], list[str]]:
    """Each region's name where it is roomiest and no source stands; and the rules whose region has no room."""
    cell = SIDE / FINE
    best: dict[str, tuple[float, float, float]] = {}
    for row, names in enumerate(winners):
        for (a, b), part in itertools.product(_runs(names), (0.5, 0.25, 0.75)):
            rule, middle = names[a], round(a + (b - a) * part)
            half = len(TITLE[rule]) * LETTER / 2 + 4
            x, y = LEFT + middle * cell, TOP + SIDE - (row + 0.5) * cell
            if any(x0 - half < x < x1 + half and y0 - LINE < y < y1 + LINE for x0, y0, x1, y1 in taken):
                continue
            column = [line[min(middle, FINE - 1)] for line in winners]
            up, down = (
                next((i for i, name in enumerate(way) if name != rule), len(way))
                for way in (column[row:], column[row::-1])
            )
            room = min(min(middle - a, b - middle) * cell / half, min(up, down) * cell / LINE)
            if room >= 1 and room > best.get(rule, (0.0, 0.0, 0.0))[0]:
                best[rule] = (room, x, y)
    there = {name for line in winners for name in line}
    drawn = [_text(x, y + 4, TITLE[rule], "name", "middle") for rule, (_, x, y) in best.items()]
    return drawn, [rule for rule in COLOR if rule in there and rule not in best]


def _spots(
    spots: Sequence[Spot], across: Callable[[float], float], up: Callable[[float], float]
) -> tuple[list[str], list[Box]]:
    """Sources with their intervals, side by side because all have the target's sigma, and the rooms they take."""
    spots = sorted(spots, key=lambda s: s.y[0])
    step = min(10.0, 60.0 / len(spots))
    shift = [(i - (len(spots) - 1) / 2) * step for i in range(len(spots))]
    xs = [across(s.x[0]) + by for s, by in zip(spots, shift, strict=True)]
    heights = apart([(up(s.y[0]), i) for i, s in enumerate(spots)], TOP + 12, TOP + SIDE - 8)
    wide = max(len(s.name) for s in spots) * LETTER
    right = max(xs) + 22 + wide < LEFT + SIDE
    aside = max(xs) + 22 if right else min(xs) - 22
    x, low, high = (across(v) for v in spots[0].x)
    out = [
        f'<rect class="sigma" x="{low:.1f}" y="{TOP}" width="{max(high - low, 0.5):.1f}" height="{SIDE:g}" '
        f'style="fill:{INK};fill-opacity:.12"/>',
        f'<path class="sigma" d="M{x:.1f},{TOP}v{SIDE:g}" style="stroke:{INK};stroke-opacity:.6"/>',
    ]
    for i, spot in enumerate(spots):
        y, level, end = up(spot.y[0]), heights[i], aside + (-4 if right else 4)
        name = escape(spot.name)
        out.append(f"<g><title>{name}: d = {spot.y[0]:.3g} ({spot.y[1]:.3g} to {spot.y[2]:.3g})</title>")
        reach = f"M{xs[i]:.1f},{up(spot.y[1]):.1f}V{up(spot.y[2]):.1f}"
        out.append(f'<path class="reach" d="{reach}" style="stroke:{INK};stroke-opacity:.7"/>')
        leader = f"M{xs[i]:.1f},{y:.1f}L{end:.1f},{level:.1f}"
        out.append(f'<path class="reach" d="{leader}" style="stroke:{INK};stroke-opacity:.45;fill:none"/>')
        fill = f"fill:{PAPER};stroke:{INK};stroke-width:1.5"
        out.append(f'<circle class="spot" cx="{xs[i]:.1f}" cy="{y:.1f}" r="4" style="{fill}"/>')
        halo = f"stroke:{PAPER};stroke-width:3;stroke-opacity:.75;paint-order:stroke"
        anchor = "start" if right else "end"
        place = f'x="{aside:.1f}" y="{level + 4:.1f}" text-anchor="{anchor}"'
        out.append(f'<text class="name" {place} style="{halo}">{name}</text></g>')
    ends = (min(*xs, aside - (0 if right else wide)) - 8, max(*xs, aside + (wide if right else 0)) + 8)
    levels = [*heights.values(), *(up(v) for s in spots for v in s.y)]
    return out, [(ends[0], min(levels) - 8, ends[1], max(levels) + 8), (low, TOP, high, TOP + SIDE)]


def panels(maps: Mapping[str, Sequence[Sequence[str]]], columns: Sequence[str], rows: Sequence[str], title: str) -> str:
    """Maps of winners side by side, [row][column], the first row at the bottom; a file of its own."""
    gap, body = 70.0, []
    for number_, (name, winners) in enumerate(maps.items()):
        left = LEFT + number_ * (SIDE + gap)
        wide, high = SIDE / len(columns), SIDE / len(rows)
        for r, line in enumerate(winners):
            for c, rule in enumerate(line):
                x, y = left + c * wide, TOP + SIDE - (r + 1) * high
                size = f'width="{wide:.2f}" height="{high:.2f}"'
                body.append(f'<rect x="{x:.2f}" y="{y:.2f}" {size} {_paint(rule)}><title>{TITLE[rule]}</title></rect>')
                body.append(_text(x + wide / 2, y + high / 2 + 4, SHORT[rule], "name", "middle"))
        for c, label in enumerate(columns):
            body.append(_text(left + (c + 0.5) * wide, TOP + SIDE + 18, label, "tick", "middle"))
        for r, label in enumerate(rows):
            body.append(_text(left - 8, TOP + SIDE - (r + 0.5) * high + 4, label, "tick", "end"))
        body += _frame(left, TOP, name, ("target variance (σ)", "source-target distance (d)"))
    width = LEFT + len(maps) * (SIDE + gap) - gap + 14
    body += _legend(list(COLOR), LEFT, TOP + SIDE + 54)
    return alone(drawing(width, TOP + SIDE + 76, title, body, "chart map"))


def alone(picture: Markup) -> str:
    """A drawing of the page as a file of its own, with the colors it needs."""
    head, body = str(picture).split(">", 1)
    start = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return f'{start}><style>{STYLE}</style><rect class="back" width="100%" height="100%"/>{body}\n'


def _paint(rule: str) -> str:
    """Fill of a rule's region; the attribute is for programs that know no variables."""
    fill = f"fill:var({PALETTE[rule]});fill-opacity:.5"
    return f'fill="{COLOR[rule]}" style="{fill}" shape-rendering="crispEdges"'


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _frame(left: float, top: float, title: str, axes: tuple[str, str]) -> list[str]:
    box = f'x="{left}" y="{top}" width="{SIDE:g}" height="{SIDE:g}" fill="none" style="stroke:{MUTED}"'
    return [
        f'<rect class="box" {box}/>',
        f'<text class="name" x="{left - 44}" y="{top - 34}" style="font-weight:600">{escape(title)}</text>',
        _text(left + SIDE / 2, top + SIDE + 38, axes[0], "axis", "middle"),
        f'<text class="axis" x="{left - 44}" y="{top - 12}">{escape(axes[1])}</text>',
    ]


def _legend(rules: Sequence[str], x: float, y: float) -> list[str]:
    out = []
    for i, rule in enumerate(rules):
        at = x + 104 * i
        out.append(f'<rect x="{at:g}" y="{y:g}" width="12" height="12" {_paint(rule)}/>')
        out.append(_text(at + 18, y + 10, TITLE[rule], "name", "start"))
    return out
