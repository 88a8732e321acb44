"""The Jacobian norms that FedGTST's sources send, by round."""

from __future__ import annotations

import pandas as pd

from fdamed.report.plots.lines import Line
from fdamed.report.round_charts import Chart, charts_section, logged
from fdamed.report.study import Study

NAMES = {
    "norm": "mean reported norm",
    "spread": "variance of the reported norms",
    "guide": "guide norm",
}
"""Statistic of the norms that the sources send -> its name."""


def frame(study: Study) -> pd.DataFrame:
    """The metrics `jacobian/{statistic}` that FedGTST logs."""
    found = logged(study, "jacobian").rename(columns={"name": "statistic"})
    return found[found["statistic"].isin(list(NAMES))][["target", "statistic", "run", "round", "value"]]


def charts(study: Study) -> list[Chart]:
    """One chart for each target and statistic, one line for each run."""
    out = []
    for target, here in frame(study).groupby("target", sort=False):
        for statistic, name in NAMES.items():
            runs = {str(run): v for run, v in here[here["statistic"] == statistic].groupby("run")}
            lines = [
                Line(i, run, list(runs[run]["round"]), list(runs[run]["value"]))
                for run, i in study.index.items()
                if run in runs
            ]
            words = f"{name} by round: target {target}"
            chart = Chart(f"jacobian_{statistic}_{target}", f"{name}, target {target}", words, name, lines)
            out += [chart] if lines else []
    return out


SECTION = charts_section(64, "Jacobian statistics", charts, "jacobians", frame)
