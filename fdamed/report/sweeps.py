"""Sweeps on the page: score against the value of an option, and tables of method x value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.run_tables import clipped
from fdamed.evaluation.sweeps import Sweep, Value, number
from fdamed.report.score_against_cost import apart
from fdamed.report.svg import Line, around, color, drawing, frame, mark, scale, stroke, ticks

Summary = Mapping[tuple[str, str, str], Interval]
NAMES = {"auc": "AUC", "acc": "accuracy"}
REFERENCES = ("fedavg", "finetune", "target_only", "oracle")
"""Methods that stand as lines beside a sweep when a study has many other runs."""
FEW = 4
LONGEST = 20
"""Letters of a name beside a drawing."""
NONE = Interval(None, None, 0)


def references(plain: Mapping[str, tuple[str, bool]]) -> list[str]:
    """The runs to draw as lines; `plain` are run -> method, with auxiliary heads or not."""
    if len(plain) <= FEW:
        return list(plain)
    return [r for m in REFERENCES for r in [n for n, entry in plain.items() if entry == (m, False)][:1]]


def levels(runs: Sequence[str], summary: Summary, target: str, metric: str) -> dict[str, float]:
    """Run -> height of its line, for those that have a score."""
    known = {run: summary.get((target, run, metric), NONE).mean for run in runs}
    return {run: mean for run, mean in known.items() if mean is not None}


def positions(sweep: Sweep) -> list[float]:
    """Where each value of a sweep over one option stands on the axis."""
    values = sweep.axis()
    if not sweep.numeric:
        return [float(i) for i in range(len(values))]
    return [math.log10(float(v)) if sweep.logarithmic else float(v) for v in values]


def sweep_lines(sweep: Sweep, summary: Summary, target: str, metric: str) -> list[Line]:
    """A curve a run; a value that a run does not have breaks none of the others."""
    place = dict(zip(sweep.axis(), positions(sweep), strict=True))
    out = []
    for i, (run, cells) in enumerate(sweep.runs.items()):
        values = [v for v in sweep.values if v in cells]
        scores = [summary.get((target, cells[v], metric), NONE) for v in values]
        ends = [clipped(s) for s in scores]
        x = [place[v[0]] for v in values]
        out.append(Line(i, run, x, [s.mean for s in scores], [e[0] for e in ends], [e[1] for e in ends]))
    return out


def chart(sweep: Sweep, lines: Sequence[Line], beyond: Mapping[str, float], title: str, name: str) -> Markup:
    """Curves with bands over the values, references as dashed lines, every name at the right."""
    means = [m for line in lines for m in line.mean if m is not None]
    if not means:
        return Markup("")
    ends = [v for line in lines for part in (line.low, line.high) for v in part if v is not None]
    low, high = around([*means, *beyond.values()], ends or means)
    box = (52.0, 410.0, 28.0, 300.0)
    at = positions(sweep)
    x, y = scale(min(at), max(at), box[0] + 14, box[1] - 14), scale(low, high, box[3], box[2])
    across = f"{sweep.options[0]}{' (log scale)' if sweep.logarithmic else ''}"
    body = frame(x, y, [], ticks(low, high), box, (across, name))
    for value, where in zip(sweep.axis(), at, strict=True):
        body.append(f'<line class="grid" x1="{x(where):.1f}" x2="{x(where):.1f}" y1="{box[3]}" y2="{box[3] + 5}"/>')
        body.append(
            f'<text class="tick" x="{x(where):.1f}" y="{box[3] + 18}" text-anchor="middle">{_text(value)}</text>'
        )
    wishes = []
    for reference, score in beyond.items():
        level = y(score)
        body.append(f'<line class="reference" x1="{box[0]}" x2="{box[1]}" y1="{level:.1f}" y2="{level:.1f}"/>')
        wishes.append((level, reference, "var(--muted)"))
    for line in lines:
        body.append(f"<g><title>{escape(line.name)}</title>{''.join(stroke(line, x, y, low, high))}")
        shown = [(a, m) for a, m in zip(line.x, line.mean, strict=True) if m is not None]
        body += [mark(line.index, x(a), y(m)) for a, m in shown]
        body.append("</g>")
        if shown:
            wishes.append((y(shown[-1][1]), line.name, color(line.index)))
    heights = apart([(wish[0], i) for i, wish in enumerate(wishes)], box[2], box[3], gap=17.0)
    for i, (level, text, paint) in enumerate(wishes):
        short = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
        kind = "tick" if paint == "var(--muted)" else "name"
        body.append(
            f'<path class="leader" style="stroke:{paint}" d="M{box[1]},{level:.1f}L{box[1] + 10},{heights[i]:.1f}h4"/>'
            f'<text class="{kind}" x="{box[1] + 19}" y="{heights[i] + 4:.1f}">{escape(short)}'
            f"<title>{escape(text)}</title></text>"
        )
    told = [f"{line.name}: {_steps(sweep, line, at)}" for line in lines]
    told += [f"{name}, not swept: {level:.3f}" for name, level in beyond.items()]
    return drawing(560, 345, title, body, told="; ".join(told) + ".")


def _steps(sweep: Sweep, line: Line, at: Sequence[float]) -> str:
    """A curve in words: the value of the option and the score there."""
    values = dict(zip(at, sweep.axis(), strict=True))
    known = [(values[x], m) for x, m in zip(line.x, line.mean, strict=True) if m is not None]
    return ", ".join(f"{m:.3f} at {value}" for value, m in known)


def _text(value: Value) -> str:
    return f"{value:,.10g}" if number(value) else str(escape(str(value)))


def block(
    sweep: Sweep,
    summary: Summary,
    target: str,
    metrics: Sequence[str],
    beside: Sequence[str],
    paper: Sequence[tuple[str, Mapping[str, float]]] = (),
) -> dict[str, Any]:
    """What the template shows of one sweep: drawings and a table by the first metric."""
    single = len(sweep.options) == 1
    drawings = []
    for metric in metrics if single else ():
        name, lines = NAMES[metric], sweep_lines(sweep, summary, target, metric)
        beyond = levels(beside, summary, target, metric)
        drawings.append(chart(sweep, lines, beyond, f"{name} at {target} by {sweep.options[0]}", name))
    first = metrics[0]
    rows = [
        {"run": run, "cells": [summary.get((target, cells.get(v, ""), first)) for v in sweep.values]}
        for run, cells in sweep.runs.items()
    ]
    steady = [(r, summary[target, r, first]) for r in beside if (target, r, first) in summary]
    heads = ["; ".join(str(v) for v in values) for values in sweep.values]
    printed = [(name, [numbers.get(h) for h in heads]) for name, numbers in paper]
    return {
        "name": sweep.name,
        "metric": NAMES[first],
        "drawings": [d for d in drawings if d],
        "heads": heads,
        "rows": rows,
        "steady": steady if single else [],
        "paper": [(name, cells) for name, cells in printed if any(c is not None for c in cells)],
        "grids": [_grid(sweep, run, summary, target, first) for run in sweep.runs] if len(sweep.options) == 2 else [],
        "options": sweep.options,
    }


def _grid(sweep: Sweep, run: str, summary: Summary, target: str, metric: str) -> dict[str, Any]:
    """Two options: one down, one across, the mean as shade from the lowest cell to the highest."""
    down, across, cells = sweep.axis(0), sweep.axis(1), sweep.runs[run]
    table = [[summary.get((target, cells.get((a, b), ""), metric), NONE) for b in across] for a in down]
    known = [s.mean for row in table for s in row if s.mean is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    wide = (high - low) or 1.0
    shades = [[None if s.mean is None else round((s.mean - low) / wide, 2) for s in row] for row in table]
    rows = [(str(a), list(zip(row, shade, strict=True))) for a, row, shade in zip(down, table, shades, strict=True)]
    return {"run": run, "across": [str(b) for b in across], "rows": rows}
