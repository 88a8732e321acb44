"""Auxiliary tasks: the gain of each set of heads over the same run without them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation.ablations import auxiliary_gains
from fdamed.report.plots import intervals
from fdamed.report.plots.figure import linear, signed
from fdamed.report.plots.intervals import Column, Dot
from fdamed.report.section import Section
from fdamed.report.study import Study, View


def frame(study: Study, view: View) -> pd.DataFrame:
    return auxiliary_gains(study.plain, study.scores, study.main, view.name)


def gains(study: Study, view: View) -> list[dict[Hashable, Any]]:
    """The rows of the table; None where a gain or its interval is undefined."""
    found = frame(study, view).astype(object)
    return found.where(found.notna(), None).to_dict("records")


def plots(study: Study) -> dict[str, Markup]:
    return {f"auxiliary_gain{v.suffix}": plot_of(gains(study, v), study.name, v.name) for v in study.views}


def plot_of(found: list[dict[Hashable, Any]], metric: str, target: str) -> Markup:
    known = [g for g in found if g["gain"] is not None]
    if not known:
        return Markup("")
    several = len({g["base"] for g in known}) > 1
    labels = [f"{g['base']}: {g['heads']}" if several else g["heads"] for g in known]
    ends = [0.0, *(g[k] for g in known for k in ("gain", "low", "high") if g[k] is not None)]
    pad = max(0.005, 0.05 * (max(ends) - min(ends)))
    axis = linear(min(ends) - pad, max(ends) + pad, f"gain in {metric}", label=signed)
    column = Column(axis, [[Dot(g["gain"], g["low"], g["high"], 0)] for g in known], 0, "+.3f")
    return intervals.rows(labels, [column], f"Gain in {metric} at {target} by auxiliary task", width=450)


SECTION = Section(
    44,
    "Auxiliary tasks",
    lambda study: any(gains(study, view) for view in study.views),
    plots,
    lambda study: {"auxiliary_gain": pd.concat([frame(study, v) for v in study.views], ignore_index=True)},
    lambda study: {"gains": {v.name: gains(study, v) for v in study.views}},
)
