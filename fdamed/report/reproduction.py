"""A paper's cells on the page: each with our whole curve, because some scores rise or fall with the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from fdamed.evaluation.reproduction import CLOSE, Cell, within
from fdamed.report.svg import Scale, color, drawing, scale

if TYPE_CHECKING:
    from fdamed.config.runs import Swept

WIDTH, HEIGHT = 168.0, 112.0
TOP, BOTTOM, LEFT, RIGHT = 32.0, 96.0, 6.0, 140.0


@dataclass(frozen=True)
class Row:
    """The cells of one method, in the order of the paper's columns."""

    name: str
    cells: Sequence[tuple[str, Cell]]
    """What tells a cell from its neighbors (a value, a target), and the cell."""


def rows(found: Sequence[Cell], swept: Mapping[str, Swept]) -> list[Row]:
    """Cells of one run of the configuration side by side."""
    targets = len({c.target for c in found})
    out: dict[str, list[tuple[str, Cell]]] = {}
    for cell in found:
        place = swept.get(cell.run)
        values = [f"{option} {value}" for option, value in place.values.items()] if place else []
        label = ", ".join(values if values and targets == 1 else [cell.target, *values])
        out.setdefault(place.run if place else cell.run, []).append((label, cell))
    return [Row(name, cells) for name, cells in out.items()]


def block(shown: Sequence[Row]) -> dict[str, Any]:
    """What the template shows: a row of small drawings a method, and how many cells were reached."""
    found = [cell for row in shown for _, cell in row.cells]
    heights = [v for c in found for v in (*c.curve.values(), c.paper)]
    y = scale(min(heights), max(heights), BOTTOM, TOP)
    return {
        "rows": [
            {
                "name": row.name,
                "reached": _reached(row),
                "panels": [panel(label, cell, i, y) for label, cell in row.cells],
            }
            for i, row in enumerate(shown)
        ],
        "close": CLOSE,
        "reached": within(found),
    }


def _reached(row: Row) -> str:
    close, ran = within(cell for _, cell in row.cells)
    return f"{close} of {ran} within {CLOSE:g}" if ran else "not run"


def panel(label: str, cell: Cell, index: int, y: Scale) -> Markup:
    """Our curve, the paper's figure as a dashed line, a ring where they cross; ours / paper above."""
    level = y(cell.paper)
    ours = "–" if cell.last.mean is None else f"{cell.last.mean:.1f}"
    body = [
        f'<text class="tick" x="{LEFT}" y="12">{escape(label)}</text>',
        f'<text class="name" x="{LEFT}" y="27">{ours}<tspan class="tick"> / {cell.paper:.1f}</tspan></text>',
        f'<line class="rail" x1="{LEFT}" x2="{RIGHT}" y1="{BOTTOM + 6}" y2="{BOTTOM + 6}"/>',
        f'<line class="reference" x1="{LEFT}" x2="{RIGHT}" y1="{level:.1f}" y2="{level:.1f}"/>',
    ]
    if cell.curve:
        x = scale(min(cell.curve), max(cell.curve), LEFT, RIGHT)
        points = " ".join(f"{x(r):.1f},{y(v):.1f}" for r, v in cell.curve.items())
        last = max(cell.curve)
        body.append(f'<polyline class="line" style="stroke:{color(index)}" points="{points}"/>')
        body.append(f'<circle style="fill:{color(index)}" r="3" cx="{x(last):.1f}" cy="{y(cell.curve[last]):.1f}"/>')
        if cell.crossed is not None:
            where = f'cx="{x(cell.crossed):.1f}" cy="{y(cell.curve[cell.crossed]):.1f}"'
            body.append(f'<circle class="ring" style="stroke:{color(index)}" r="4" {where}/>')
            body.append(f'<text class="tick" x="{RIGHT + 6}" y="{level + 4:.1f}">r{cell.crossed}</text>')
    return drawing(WIDTH, HEIGHT, f"{cell.run} at {cell.target}: ours {ours}, paper {cell.paper:.1f}", body, "cell")
