"""The figures that are written as files beside the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fdamed.report import figures, jacobians
from fdamed.report import rounds_log as notes
from fdamed.report import sweeps as swept
from fdamed.report.aggregate import Frames, Known, gain_rows, steady
from fdamed.report.sweeps import NAMES
from fdamed.report.target_view import ALL_BYTES, clock_name, trails


def pictures(study: Known, frames: Frames) -> Iterator[tuple[str, Any]]:
    """Name and figure of each file in figures/: those of the first view under plain names."""
    first, found = study.views[0], study.found
    shown = first.plain or first.swept
    best = [row.run for row in shown]
    here = frames.rounds[frames.rounds["target"] == first.name]
    name = NAMES[found.main]
    scores = {row.run: row.scores[found.main] for row in shown}
    ways = trails(found.by_bytes[found.by_bytes["target"] == first.name])
    times = trails(found.by_seconds[found.by_seconds["target"] == first.name], "seconds")
    drawn = {
        "headline": figures.headline(scores, study.index, best, name, first.name),
        "rounds_auc": figures.rounds(here[here["metric"] == "test/auc"], study.index, best, "AUC", first.name),
        "rounds_acc": figures.rounds(here[here["metric"] == "test/acc"], study.index, best, "accuracy", first.name),
        "cost": figures.cost(scores, ways, study.index, (f"{ALL_BYTES}, log scale", name), first.name),
        "time": figures.cost(scores, times, study.index, (f"{clock_name(found)}, log scale", name), first.name),
        "sent": figures.sent(study.by_kind),
        "auxiliary_gain": figures.gains(gain_rows(study.gains[first.name]), f"gain in {name}", first.name),
        "reproduction": figures.cells(study.repeated_rows),
    }
    for sweep in (s for s in study.sweeps if len(s.options) == 1):
        ticks = [(x, str(v)) for x, v in zip(swept.positions(sweep), sweep.axis(), strict=True)]
        for metric in study.metrics:
            lines = swept.sweep_lines(sweep, found.summary, first.name, metric)
            levels = swept.levels(steady(study, sweep), found.summary, first.name, metric)
            names = (sweep.name, NAMES[metric])
            drawn[f"sweep_{sweep.options[0]}_{metric}"] = figures.curves(lines, names, first.name, ticks, levels)
    for (run, target, kind), part in frames.weights.groupby(["run", "target", "kind"], sort=False):
        title = f"{run}, target {target}"
        drawn[f"{kind}_{run}_{target}"] = figures.curves(notes.weight_lines(part), ("round", str(kind)), title)
    for target, statistic, lines in jacobians.drawings(frames.jacobians, study.index):
        names = ("round", jacobians.NAMES[statistic])
        drawn[f"jacobian_{statistic}_{target}"] = figures.curves(lines, names, f"target {target}")
    yield from ((name, figure) for name, figure in drawn.items() if figure is not None)
