"""Hyperparameter sweeps: scores over the values of an option."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.config.loader import catalog
from fdamed.config.runs import Run
from fdamed.evaluation.ablations import Sweep, is_number, sweep_table, sweeps
from fdamed.evaluation.intervals import clipped
from fdamed.report.paper_tables import table4
from fdamed.report.plots.figure import Axis, number
from fdamed.report.plots.lines import Line, over_values
from fdamed.report.section import Section
from fdamed.report.study import METRICS, NONE, Study, View


def references(study: Study, sweep: Sweep) -> list[str]:
    """Baselines drawn as levels beside a sweep: those with the same labels, noise and second phase as its own runs."""
    own = [study.runs[run] for cells in sweep.runs.values() for run in cells.values()]
    plain = {n: run for n, run in study.plain.items() if n not in study.fold and catalog()[run.method]["baseline"]}
    few = {n: study.config.few_labels(run) for n, run in plain.items()}
    return [n for n, run in plain.items() if all(_alike(run, s, sweep.options, few[n]) for s in own)]


def _alike(run: Run, other: Run, swept: Sequence[str], few: bool) -> bool:
    labels = run.labeled == other.labeled or "labeled" in swept or not few
    return labels and run.then == other.then and (run.noise == other.noise or "noise" in swept)


def axis(sweep: Sweep) -> Axis:
    """The values of a sweep over one option; words are placed side by side."""
    values = [first for first, *_ in sweep.values]
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
    place = dict(zip(sweep.values, (x for x, _ in across.ticks), strict=True))
    lines = []
    for i, (run, cells) in enumerate(sweep.runs.items()):
        values = [v for v in sweep.values if v in cells]
        scores = [study.score(target, cells[v], metric) for v in values]
        low, high = zip(*(clipped(s) for s in scores), strict=True)
        lines.append(Line(i, run, [place[v] for v in values], [s.mean for s in scores], low, high))
    levels = {run: study.score(target, run, metric).mean for run in references(study, sweep)}
    known = {run: level for run, level in levels.items() if level is not None}
    return over_values(lines, known, f"{METRICS[metric]} at {target} by {sweep.options[0]}", across, METRICS[metric])


def files(study: Study, sweep: Sweep, view: View) -> dict[str, str]:
    """File of a plot -> its metric; sweeps of several options are only in the table."""
    metrics = study.metrics if len(sweep.options) == 1 else ()
    return {f"sweep_{sweep.options[0]}_{metric}{view.suffix}": metric for metric in metrics}


def plots(study: Study) -> dict[str, Markup]:
    return {
        file: curves(study, sweep, metric, view.name)
        for sweep in sweeps(study.config.sweeps())
        for view in study.views
        for file, metric in files(study, sweep, view).items()
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
