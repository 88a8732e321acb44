"""Published results beside ours: the healthcare paper's Table 2 and its order, and a paper that the study names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation import reproduction
from fdamed.evaluation.reproduction import CLOSE, Cell, within
from fdamed.evaluation.run_tables import hidden
from fdamed.report.paper_tables import ordering, table2
from fdamed.report.plots.figure import Scale, color, element, figure, linear, polyline, rule, text
from fdamed.report.section import Section
from fdamed.report.study import Study

WIDE, HIGH, ACROSS = 168.0, 112.0, 5
"""Size of a small plot, and how many are side by side."""
Row = tuple[str, list[tuple[str, Cell]]]
"""A method with its cells, each with what distinguishes it from its neighbors (a value, a target)."""


def cells(study: Study) -> list[Cell]:
    shown = [r for r in study.records if not hidden(r, study.smallest)]
    published = study.config.published
    return reproduction.cells(published, study.config.split.targets, shown) if published else []


def rows(found: Sequence[Cell], study: Study) -> list[Row]:
    """Cells of one run of the configuration side by side."""
    places, several = study.config.sweeps(), len({c.target for c in found}) > 1
    out: dict[str, list[tuple[str, Cell]]] = {}
    for cell in found:
        place = places.get(cell.run)
        values = [f"{option} {value}" for option, value in place.values.items()] if place else []
        label = ", ".join([cell.target, *values] if several or not values else values)
        out.setdefault(place.run if place else cell.run, []).append((label, cell))
    return list(out.items())


def plots(study: Study) -> dict[str, Markup]:
    found = cells(study)
    heights = [v for c in found for v in (*c.curve.values(), c.paper)]
    return {
        f"reproduction_{name}": _plot(name, part, i, min(heights), max(heights))
        for i, (name, part) in enumerate(rows(found, study))
    }


def _plot(name: str, part: Sequence[tuple[str, Cell]], index: int, low: float, high: float) -> Markup:
    """Small plots of all cells of a method, with one upright scale."""
    body: list[str] = []
    y = linear(low, high).between(96, 32)
    for i, (label, cell) in enumerate(part):
        place = f"translate({WIDE * (i % ACROSS):g},{HIGH * (i // ACROSS):g})"
        body.append(element("g", "", *_small(label, cell, index, y), transform=place))
    words = "; ".join(f"{label}: ours {_ours(cell)}, paper {cell.paper:.1f}" for label, cell in part) + "."
    size = WIDE * min(ACROSS, len(part)), HIGH * -(-len(part) // ACROSS)
    return figure(*size, f"{name}: our curves and the paper’s results", body, words=words)


def _ours(cell: Cell) -> str:
    return "–" if cell.last.mean is None else f"{cell.last.mean:.1f}"


def _small(label: str, cell: Cell, index: int, y: Scale) -> list[str]:
    """Our curve, and the paper's result as a dashed line."""
    left, right, level = 6.0, 140.0, y(cell.paper)
    out = [
        text(left, 12, label, anchor="start"),
        text(left, 27, f"{_ours(cell)} / {cell.paper:.1f}", "name", "start"),
        rule("rail", left, 102, right, 102),
        rule("reference", left, level, right, level),
    ]
    if cell.curve:
        x = linear(min(cell.curve), max(cell.curve)).between(left, right)
        last = max(cell.curve)
        out.append(polyline(f"line {color(index)}", [(x(r), y(v)) for r, v in cell.curve.items()]))
        out.append(element("circle", f"fill {color(index)}", r=3, cx=x(last), cy=y(cell.curve[last])))
    return out


def context(study: Study) -> dict[str, Any]:
    found, first = cells(study), study.views[0].name
    return {
        "table": table2(study.config, study.plain, study.summary, first),
        "ordering": ordering(study.config, study.plain, study.summary, first, study.main),
        "cells": found,
        "reached": {name: within(cell for _, cell in part) for name, part in rows(found, study)},
        "close": CLOSE,
        "total": within(found),
    }


def needs(study: Study) -> bool:
    found = context(study)
    return bool(found["table"] or found["ordering"] or found["cells"])


def tables(study: Study) -> dict[str, pd.DataFrame]:
    return {"reproduction": reproduction.table(cells(study))}


SECTION = Section(48, "Published results", needs, plots, tables, context)
