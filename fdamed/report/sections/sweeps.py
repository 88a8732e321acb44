"""Hyperparameter sweeps: scores over the values of one option, or of two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.config.loader import catalog
from fdamed.config.runs import Run
from fdamed.evaluation.ablations import Sweep, is_number, sweep_table, sweeps
from fdamed.evaluation.formatting import interval
from fdamed.evaluation.intervals import Interval
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
    """The values of a sweep over one option; words are placed side by side."""
    values = sweep.axis()
    at = [float(i) for i in range(len(values))]
    if sweep.numeric:
        at = [math.log10(float(v)) if sweep.logarithmic else float(v) for v in values]
    low, wide = min(at), max(at) - min(at)
    name = f"{sweep.options[0]}{' (log scale)' if sweep.logarithmic else ''}"
    labels = [(x, number(float(v)) if is_number(v) else str(v)) for x, v in zip(at, values, strict=True)]
    return Axis(name, lambda x: (x - low) / wide if wide else 0.5, labels)


def curves(study: Study, sweep: Sweep, metric: str, target: str) -> Markup:
    """One option: one line for each run of the sweep, and runs that are not swept as levels."""
    across = axis(sweep)
    place = dict(zip(sweep.axis(), (x for x, _ in across.ticks), strict=True))
    lines = []
    for i, (run, cells) in enumerate(sweep.runs.items()):
        values = [v for v in sweep.values if v in cells]
        scores = [study.score(target, cells[v], metric) for v in values]
        low, high = zip(*(clipped(s) for s in scores), strict=True)
        lines.append(Line(i, run, [place[v[0]] for v in values], [s.mean for s in scores], low, high))
    levels = {run: study.score(target, run, metric).mean for run in references(study, sweep)}
    known = {run: level for run, level in levels.items() if level is not None}
    return over_values(lines, known, f"{METRICS[metric]} at {target} by {sweep.options[0]}", across, METRICS[metric])


def grid(study: Study, sweep: Sweep, run: str, target: str) -> Markup:
    """Two options: the first downward, the second across; darker is higher."""
    (first, second), down, across = sweep.options, sweep.axis(0), sweep.axis(1)
    table = [[study.score(target, sweep.runs[run].get((a, b), ""), study.main) for b in across] for a in down]
    known = [s.mean for row in table for s in row if s.mean is not None]
    if not known:
        return Markup("")
    low, wide = min(known), (max(known) - min(known)) or 1.0

    def cell(score: Interval) -> Cell | None:
        mean = score.mean
        return None if mean is None else Cell(0, 0.05 + 0.6 * (mean - low) / wide, interval(score), [f"{mean:.3f}"])

    panel = Panel(run, [[cell(score) for score in row] for row in table], [str(b) for b in across])
    title = f"{study.name} of {run} at {target} by {first} and {second}"
    words = f"From {low:.3f} to {max(known):.3f}."
    return heat([panel], [f"{first} {a}" for a in down], title, (76, 34), words, second)


def files(study: Study, sweep: Sweep, view: View) -> dict[str, str]:
    """File of a plot -> its metric (one option) or its run (two options); more options are only in the table."""
    parts = {1: study.metrics, 2: tuple(sweep.runs)}.get(len(sweep.options), ())
    return {f"sweep_{'_'.join(sweep.options)}_{part}{view.suffix}": part for part in parts}


def plots(study: Study) -> dict[str, Markup]:
    return {
        file: (curves if len(sweep.options) == 1 else grid)(study, sweep, part, view.name)
        for sweep in sweeps(study.config.sweeps())
        for view in study.views
        for file, part in files(study, sweep, view).items()
    }


def context(study: Study) -> dict[str, Any]:
    found = sweeps(study.config.sweeps())
    return {"shown": {v.name: [_shown(study, sweep, v) for sweep in found] for v in study.views}}


def _shown(study: Study, sweep: Sweep, view: View) -> dict[str, Any]:
    target, main = view.name, study.main
    heads = ["; ".join(str(v) for v in values) for values in sweep.values]
    levels = [(run, study.score(target, run, main)) for run in references(study, sweep)]
    paper = [(name, [printed.get(h) for h in heads]) for name, printed in table4(study.config, sweep.options)]
    return {
        "name": sweep.name,
        "plots": list(files(study, sweep, view)),
        "heads": heads,
        "rows": [
            (run, [study.score(target, cells.get(v, ""), main) for v in sweep.values])
            for run, cells in sweep.runs.items()
        ],
        "levels": [(run, score) for run, score in levels if score is not NONE] if len(sweep.options) == 1 else [],
        "paper": [(name, cells) for name, cells in paper if any(c is not None for c in cells)],
    }


def tables(study: Study) -> dict[str, pd.DataFrame]:
    found = sweeps(study.config.sweeps())
    return {"sweeps": sweep_table(found, study.summary, [v.name for v in study.views], study.metrics)}


SECTION = Section(40, "Hyperparameter sweeps", lambda study: study.config.sweeps(), plots, tables, context)
