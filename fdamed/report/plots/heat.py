"""Heat maps: panels of cells whose color is the sign and whose opacity is the size of a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fdamed.report.plots.figure import color, element, figure, room, text

TOP = 24.0
LINE, HATCH, DENSE = 16.0, 9.0, 20.0
"""Height of a line of text in a cell, the distance between hatches, and the height below which labels are small."""


@dataclass(frozen=True)
class Cell:
    """Color, opacity, tooltip, a text of one or several lines to write into the cell, and whether it is hatched."""

    index: int
    opacity: float
    tip: str
    text: str = ""
    hatched: bool = False


@dataclass(frozen=True)
class Panel:
    name: str
    cells: Sequence[Sequence[Cell | None]]
    """Rows of cells; None: no value."""
    columns: Sequence[str] = ()
    """Labels below; two of them are put at the ends."""


def heat(
    panels: Sequence[Panel], names: Sequence[str], title: str, cell: tuple[float, float], words: str, axis: str
) -> Markup:
    """Panels side by side that share the names of their rows; `cell`: width and height."""
    wide, high = cell
    left, gap = room(names), 14.0
    foot = TOP + len(names) * high
    kind = "tick" if high < DENSE else "name"
    body = [text(left - 8, TOP + high * (i + 0.5) + 4, name, kind, "end") for i, name in enumerate(names)]
    begin = left
    for panel in panels:
        count = max(len(row) for row in panel.cells)
        body.append(text(begin, 14, panel.name, "name", "start"))
        for i, row in enumerate(panel.cells):
            for j, one in enumerate(row):
                if one is not None:
                    x, y, fill = begin + j * wide, TOP + i * high, f"fill {color(one.index)}"
                    look = {"width": f"{wide:.2f}", "fill_opacity": f"{one.opacity:.2f}"}
                    body.append(element("rect", fill, title=one.tip, x=x, y=y, height=high - 1, **look))
                    body += [_hatch(x, y, wide, high - 1)] if one.hatched else []
                    body += _lines(x + wide / 2, y + high / 2, one.text)
        if len(panel.columns) == count:
            body += [text(begin + (j + 0.5) * wide, foot + 14, label, kind) for j, label in enumerate(panel.columns)]
        elif panel.columns:
            body.append(text(begin, foot + 14, panel.columns[0], anchor="start"))
            body.append(text(begin + count * wide, foot + 14, panel.columns[-1], anchor="end"))
        begin += count * wide + gap
    body.append(text((left + begin - gap) / 2, foot + 32, axis, "axis"))
    return figure(max(begin, 420.0), foot + 40, title, body, "chart heat", words)


def _lines(x: float, y: float, content: str) -> list[str]:
    """Text in the middle of a cell; of several lines the first is bold."""
    lines = content.split("\n") if content else []
    kinds = ["value"] if len(lines) < 2 else ["value strong", *["value"] * (len(lines) - 1)]
    top = y + 4 - LINE * (len(lines) - 1) / 2
    return [text(x, top + LINE * k, line, kind) for k, (line, kind) in enumerate(zip(lines, kinds, strict=False))]


def _hatch(x: float, y: float, wide: float, high: float) -> str:
    """Parallel lines from the lower left to the upper right, cut off at the edges of a cell."""
    parts, at = [], HATCH
    while at < wide + high:  # the points of a line have the same sum of distances from the left and upper edge
        left, right = max(0.0, at - high), min(at, wide)
        parts.append(f"M{x + left:.1f},{y + at - left:.1f}L{x + right:.1f},{y + at - right:.1f}")
        at += HATCH
    return element("path", "hatch", d="".join(parts))
