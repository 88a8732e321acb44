"""Efficiency: scores against bytes sent and against time."""

from __future__ import annotations

from typing import Any

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


def names(study: Study, view: View) -> tuple[str, str]:
    suffix = "" if view is study.views[0] else f"_{view.name}"
    return f"cost{suffix}", f"time{suffix}"


def plots(study: Study) -> dict[str, Markup]:
    found = tables(study)
    cpu = set(found["score_by_seconds"]["clock"]) == {"CPU"}
    clock = f"{'CPU' if cpu else 'Wall-clock'} seconds of a run, hospitals one after the other (log scale)"
    sent = "MB sent in a run, by hospitals and server (log scale)"
    out = {}
    for view in study.views:
        cost, time = names(study, view)
        of_bytes, of_time = (
            _paths(study, view, found["score_by_bytes"], "mb_sent"),
            _paths(study, view, found["score_by_seconds"], "seconds"),
        )
        out[cost] = against_cost(of_bytes, f"{study.name} at {view.name} against bytes", (sent, study.name), "MB")
        out[time] = against_cost(of_time, f"{study.name} at {view.name} against time", (clock, study.name), "s")
    return out


def _paths(study: Study, view: View, frame: pd.DataFrame, column: str) -> list[Path]:
    """Each run's cost and score after each round."""
    trails = {}
    here = frame[frame["target"] == view.name].dropna(subset=["mean"])
    for run, group in here.groupby("run", sort=False):
        part = thin(group)
        trails[str(run)] = [(float(c), float(s)) for c, s in zip(part[column], part["mean"], strict=True)]
    return [Path(r.index, r.run, r.scores[study.main], trails[r.run]) for r in view.ranked if r.run in trails]


def context(study: Study) -> dict[str, Any]:
    return {"names": {v.name: names(study, v) for v in study.views}}


SECTION = Section(74, "Score against bytes and time", plots=plots, tables=tables, context=context)
