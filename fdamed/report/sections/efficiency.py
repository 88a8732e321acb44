"""Efficiency: scores against bytes sent and against time."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation import costs
from fdamed.report.plots.lines import Path, against_cost
from fdamed.report.section import Section
from fdamed.report.sections.rounds import thin
from fdamed.report.study import Study, View


def tables(study: Study) -> dict[str, pd.DataFrame]:
    spent = costs.by_round(study.records)
    return {
        "score_by_bytes": costs.score_against(study.rounds, spent, study.main, ["mb_sent"]),
        "score_by_seconds": costs.score_against(study.rounds, spent, study.main, ["seconds", "clock"]),
    }


def plots(study: Study) -> dict[str, Markup]:
    found, spent = tables(study), costs.by_round(study.records)
    cpu = set(found["score_by_seconds"]["clock"]) == {"CPU"}
    axes = {
        "cost": ("score_by_bytes", "mb_sent", "bytes", "MB", "MB sent in a run, by hospitals and server"),
        "time": ("score_by_seconds", "seconds", "time", "s", "seconds of a run, hospitals one after the other"),
    }
    out = {}
    for view in study.views:
        for file, (table, column, what, unit, axis) in axes.items():
            clock = "" if file == "cost" else "CPU " if cpu else "Wall-clock "
            names = f"{clock}{axis} (log scale)", study.name
            paths = _paths(study, view, found[table], spent, column)
            title = f"{study.name} at {view.name} against {what}"
            out[file + view.suffix] = against_cost(paths, title, names, unit)
    return out


def _paths(study: Study, view: View, frame: pd.DataFrame, spent: pd.DataFrame, column: str) -> list[Path]:
    """Each run's cost and score after each round; of a tuned run, whose rounds are not tested, at the end."""
    total = spent[spent["target"] == view.name].groupby("run", sort=False)[column].max()
    trails = {
        row.run: [(float(total[row.run]), row.height(study.main))]
        for row in view.ranked
        if row.run in study.candidates and row.run in total
    }
    here = frame[frame["target"] == view.name].dropna(subset=["mean"])
    for run, group in here.groupby("run", sort=False):
        part = thin(group)
        trails[str(run)] = [(float(c), float(s)) for c, s in zip(part[column], part["mean"], strict=True)]
    return [Path(r.index, r.run, r.scores[study.main], trails[r.run]) for r in view.ranked if r.run in trails]


SECTION = Section(74, "Score against bytes and time", plots=plots, tables=tables)
