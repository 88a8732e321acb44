"""Auxiliary tasks: the gain of each set of heads over the same run without them."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation.ablations import Gain, auxiliary_gains, gain_table
from fdamed.report.plots import intervals
from fdamed.report.plots.figure import linear, signed
from fdamed.report.plots.intervals import Column, Dot
from fdamed.report.section import Section
from fdamed.report.study import Study, View


def gains(study: Study, view: View) -> list[Gain]:
    return auxiliary_gains(study.plain, study.scores, study.main, view.name)


def plots(study: Study) -> dict[str, Markup]:
    return {f"auxiliary_gain{v.suffix}": plot_of(gains(study, v), study.name, v.name) for v in study.views}


def plot_of(found: list[Gain], metric: str, target: str) -> Markup:
    several = len({g.base for g in found}) > 1
    known = [(g, g.score.mean) for g in found if g.score.mean is not None]
    if not known:
        return Markup("")
    labels = [(f"{g.base}: " if several else "") + " + ".join(g.heads) for g, _ in known]
    ends = [0.0, *(v for g, m in known for v in (m, g.score.low, g.score.high) if v is not None)]
    pad = max(0.005, 0.05 * (max(ends) - min(ends)))
    axis = linear(min(ends) - pad, max(ends) + pad, f"gain in {metric}", label=signed)
    column = Column(axis, [[Dot(m, g.score.low, g.score.high, 0)] for g, m in known], 0, "+.3f")
    return intervals.rows(labels, [column], f"Gain in {metric} at {target} by auxiliary task", width=450)


def tables(study: Study) -> dict[str, pd.DataFrame]:
    parts = [gain_table(gains(study, v), v.name, study.main) for v in study.views]
    return {"auxiliary_gain": pd.concat(parts, ignore_index=True)}


SECTION = Section(
    44,
    "Auxiliary tasks",
    lambda study: any(gains(study, view) for view in study.views),
    plots,
    tables,
    lambda study: {"gains": {v.name: gains(study, v) for v in study.views}},
)
