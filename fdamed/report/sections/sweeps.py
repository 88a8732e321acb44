"""Hyperparameter sweeps: scores over the values of one option, or of two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.config.loader import catalog
from fdamed.config.runs import Run
from fdamed.evaluation.ablations import Sweep, Value, is_number, sweep_table, sweeps
from fdamed.evaluation.formatting import interval
from fdamed.evaluation.run_tables import clipped
from fdamed.report.paper_tables import table4
from fdamed.report.plots.figure import Axis, number
from fdamed.report.plots.heat import Cell, Panel, heat
from fdamed.report.plots.lines import Line, over_values
from fdamed.report.section import Section
from fdamed.report.study import METRICS, NONE, Study, View

FEW = 4


def references(study: Study, sweep: Sweep) -> list[str]:
    """Runs drawn as levels beside a sweep: those with the same labels and noise as its own."""
    own = [study.runs[run] for cells in sweep.runs.values() for run in cells.values()]
    alike = [
        n
        for n, run in study.plain.items()
        if n not in study.fold and all(_alike(run, s, sweep.options) and run.then == s.then for s in own)
    ]
    if len(alike) <= FEW:
        return alike
    plain = {study.plain[n].method: n for n in reversed(alike) if study.plain[n].auxiliary is None}
    return [n for n in alike if n in plain.values() and catalog()[study.plain[n].method]["baseline"]]


def _alike(run: Run, other: Run, swept: Sequence[str]) -> bool:
    method = catalog()[run.method]
    few = method["target_labels"] and not method["every_target_label"]
    labels = run.labeled == other.labeled or "labeled" in swept or not few
    return labels and (run.noise == other.noise or "noise" in swept)


def axis(sweep: Sweep) -> Axis:
    """The values of a sweep over one option; words stand side by side."""
    values = sweep.axis()
    at = [float(i) for i in range(len(values))]
    if sweep.numeric:
        at = [math.log10(float(v)) if sweep.logarithmic else float(v) for v in values]
    low, wide = min(at), max(at) - min(at)
    name = f"{sweep.options[0]}{' (log scale)' if sweep.logarithmic else ''}"
    labels = [(x, number(float(v)) if is_number(v) else str(v)) for x, v in zip(at, values, strict=True)]
    return Axis(name, lambda x: (x - low) / wide if wide else 0.5, labels)


def lines(study: Study, sweep: Sweep, target: str, metric: str) -> list[Line]:
    """One line for each run of the sweep."""
    place: dict[Value, float] = {v: x for v, (x, _) in zip(sweep.axis(), axis(sweep).ticks, strict=True)}
    out = []
    for i, (run, cells) in enumerate(sweep.runs.items()):
        values = [v for v in sweep.values if v in cells]
        scores = [study.summary.get((target, cells[v], metric), NONE) for v in values]
        low, high = zip(*(clipped(s) for s in scores), strict=True)
        out.append(Line(i, run, [place[v[0]] for v in values], [s.mean for s in scores], low, high))
    return out


def plot_of(study: Study, sweep: Sweep, target: str, metric: str) -> Markup:
    levels = {r: study.summary.get((target, r, metric), NONE).mean for r in references(study, sweep)}
    known = {run: level for run, level in levels.items() if level is not None}
    title = f"{METRICS[metric]} at {target} by {sweep.options[0]}"
    return over_values(lines(study, sweep, target, metric), known, title, axis(sweep), METRICS[metric])


def grid(study: Study, sweep: Sweep, run: str, target: str) -> Markup:
    """Two options: the first downward, the second across; darker is higher."""
    down, across, cells = sweep.axis(0), sweep.axis(1), sweep.runs[run]
    table = [[study.summary.get((target, cells.get((a, b), ""), study.main), NONE) for b in across] for a in down]
    known = [s.mean for row in table for s in row if s.mean is not None]
    if not known:
        return Markup("")
    low, wide = min(known), (max(known) - min(known)) or 1.0
    drawn = [
        [
            None if s.mean is None else Cell(0, 0.05 + 0.6 * (s.mean - low) / wide, interval(s), [f"{s.mean:.3f}"])
            for s in row
        ]
        for row in table
    ]
    first, second = sweep.options
    title = f"{study.name} of {run} at {target} by {first} and {second}"
    panel = Panel(run, drawn, [str(b) for b in across])
    told = f"From {low:.3f} to {max(known):.3f}."
    return heat([panel], [f"{first} {a}" for a in down], title, (76, 34), told, second)


def names(study: Study, sweep: Sweep, view: View) -> list[str]:
    """The files of a sweep's plots; the first view has the plain names."""
    suffix = "" if view is study.views[0] else f"_{view.name}"
    if len(sweep.options) == 1:
        return [f"sweep_{sweep.options[0]}_{m}{suffix}" for m in study.metrics]
    return [f"sweep_{'_'.join(sweep.options)}_{run}{suffix}" for run in sweep.runs] if len(sweep.options) == 2 else []


def plots(study: Study) -> dict[str, Markup]:
    out: dict[str, Markup] = {}
    for sweep in sweeps(study.config.sweeps()):
        for view in study.views:
            if len(sweep.options) == 1:
                drawn = [plot_of(study, sweep, view.name, m) for m in study.metrics]
            else:
                drawn = [grid(study, sweep, run, view.name) for run in sweep.runs] if len(sweep.options) == 2 else []
            out |= dict(zip(names(study, sweep, view), drawn, strict=True))
    return out


def context(study: Study) -> dict[str, Any]:
    found = sweeps(study.config.sweeps())
    return {"shown": {v.name: [_shown(study, sweep, v) for sweep in found] for v in study.views}}


def _shown(study: Study, sweep: Sweep, view: View) -> dict[str, Any]:
    summary, target, main = study.summary, view.name, study.main
    heads = ["; ".join(str(v) for v in values) for values in sweep.values]
    paper: list[tuple[str, Mapping[str, float]]] = table4(study.config, sweep.options)
    printed = [(name, [numbers.get(h) for h in heads]) for name, numbers in paper]
    levels = [(r, summary[target, r, main]) for r in references(study, sweep) if (target, r, main) in summary]
    return {
        "name": sweep.name,
        "plots": names(study, sweep, view),
        "heads": heads,
        "rows": [
            (run, [summary.get((target, c.get(v, ""), main)) for v in sweep.values]) for run, c in sweep.runs.items()
        ],
        "levels": levels if len(sweep.options) == 1 else [],
        "paper": [(name, cells) for name, cells in printed if any(c is not None for c in cells)],
    }


def tables(study: Study) -> dict[str, pd.DataFrame]:
    found = sweeps(study.config.sweeps())
    return {"sweeps": sweep_table(found, study.summary, [v.name for v in study.views], study.metrics)}


SECTION = Section(40, "Hyperparameter sweeps", lambda study: study.config.sweeps(), plots, tables, context)
