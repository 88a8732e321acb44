"""The FedGP paper's Figure 2 as a drawing: which rule wins at which target variance and distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import escape

COLOUR = {"source_only": "#e69f00", "fedda": "#56b4e9", "fedgp": "#009e73", "target_only": "#cc79a7"}
"""Okabe and Ito; the same for every map."""
TITLE = {"source_only": "source only", "fedda": "FedDA", "fedgp": "FedGP", "target_only": "target only"}
SIDE, FINE = 360.0, 60
"""Side of a map in drawing units, and into how many columns and rows its regions are cut."""
STYLE = (
    "text{font:12px sans-serif;fill:#444}.head{font-weight:600;fill:#222}.box{fill:none;stroke:#888}"
    ".spot{fill:#fff;stroke:#000;stroke-width:1.5}.reach{stroke:#000;stroke-opacity:.5;stroke-width:1}"
)


@dataclass(frozen=True)
class Spot:
    """A source on the map: sigma and d with their intervals, all above 0."""

    name: str
    x: tuple[float, float, float]
    """Value, low, high."""
    y: tuple[float, float, float]


def landscape(win: Callable[[float, float], str], spots: Sequence[Spot], title: str, axes: tuple[str, str]) -> str:
    """Regions by `win(sigma, d)` on logarithmic axes wide enough for the spots, with the spots on them."""
    xs, ys = [v for s in spots for v in s.x], [v for s in spots for v in s.y]
    low, high = math.log10(min(xs + ys)) - 0.4, math.log10(max(xs + ys)) + 0.4
    left, top = 70.0, 46.0

    def across(value: float) -> float:
        return left + (math.log10(value) - low) / (high - low) * SIDE

    def up(value: float) -> float:
        return top + SIDE - (math.log10(value) - low) / (high - low) * SIDE

    body, cell = [], SIDE / FINE
    centres = [10 ** (low + (i + 0.5) / FINE * (high - low)) for i in range(FINE)]
    for row, d in enumerate(centres):
        names = [win(sigma, d) for sigma in centres]
        start = 0
        for column in range(1, FINE + 1):
            if column == FINE or names[column] != names[start]:
                y = top + SIDE - (row + 1) * cell
                body.append(_cell(left + start * cell, y, (column - start) * cell, cell, names[start]))
                start = column
    for power in range(math.ceil(low), math.floor(high) + 1):
        body.append(f'<text x="{across(10.0**power):.1f}" y="{top + SIDE + 18}" text-anchor="middle">1e{power}</text>')
        body.append(f'<text x="{left - 8}" y="{up(10.0**power) + 4:.1f}" text-anchor="end">1e{power}</text>')
    for spot in spots:
        x, y = across(spot.x[0]), up(spot.y[0])
        body.append(f'<path class="reach" d="M{across(spot.x[1]):.1f},{y:.1f}H{across(spot.x[2]):.1f}"/>')
        body.append(f'<path class="reach" d="M{x:.1f},{up(spot.y[1]):.1f}V{up(spot.y[2]):.1f}"/>')
        body.append(f'<circle class="spot" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{escape(spot.name)}</title></circle>')
        body.append(f'<text x="{x + 8:.1f}" y="{y - 6:.1f}">{escape(spot.name)}</text>')
    body += _frame(left, top, title, axes)
    return _page(left + SIDE + 130, top + SIDE + 50, title, [*body, *_legend(left + SIDE + 14, top)])


def panels(maps: Mapping[str, Sequence[Sequence[str]]], columns: Sequence[str], rows: Sequence[str], title: str) -> str:
    """Maps of winners side by side, [row][column], the first row at the bottom."""
    top, gap, body = 46.0, 70.0, []
    for number, (name, winners) in enumerate(maps.items()):
        left = 70.0 + number * (SIDE + gap)
        wide, high = SIDE / len(columns), SIDE / len(rows)
        for r, line in enumerate(winners):
            for c, rule in enumerate(line):
                body.append(_cell(left + c * wide, top + SIDE - (r + 1) * high, wide, high, rule))
        for c, label in enumerate(columns):
            x = left + (c + 0.5) * wide
            body.append(f'<text x="{x:.1f}" y="{top + SIDE + 18}" text-anchor="middle">{escape(label)}</text>')
        for r, label in enumerate(rows):
            y = top + SIDE - (r + 0.5) * high + 4
            body.append(f'<text x="{left - 8}" y="{y:.1f}" text-anchor="end">{escape(label)}</text>')
        body += _frame(left, top, name, ("target variance (sigma)", "distance (d)"))
    end = 70.0 + len(maps) * (SIDE + gap)
    return _page(end + 80, top + SIDE + 50, title, [*body, *_legend(end - gap + 14, top)])


def _cell(x: float, y: float, width: float, height: float, rule: str) -> str:
    size = f'width="{width:.2f}" height="{height:.2f}"'
    return f'<rect x="{x:.2f}" y="{y:.2f}" {size} fill="{COLOUR[rule]}"><title>{TITLE[rule]}</title></rect>'


def _frame(left: float, top: float, title: str, axes: tuple[str, str]) -> list[str]:
    return [
        f'<rect class="box" x="{left}" y="{top}" width="{SIDE}" height="{SIDE}"/>',
        f'<text class="head" x="{left}" y="{top - 26}">{escape(title)}</text>',
        f'<text x="{left + SIDE / 2}" y="{top + SIDE + 38}" text-anchor="middle">{escape(axes[0])}</text>',
        f'<text x="{left - 40}" y="{top - 8}">{escape(axes[1])}</text>',
    ]


def _legend(x: float, top: float) -> list[str]:
    out = []
    for i, (rule, colour) in enumerate(COLOUR.items()):
        y = top + 20 * i
        out.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>')
        out.append(f'<text x="{x + 18}" y="{y + 11}">{TITLE[rule]}</text>')
    return out


def _page(width: float, height: float, title: str, body: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img"'
    return f'{head} aria-label="{escape(title)}"><style>{STYLE}</style>{"".join(body)}</svg>\n'
