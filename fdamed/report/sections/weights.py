"""Source weights: how much a method weighs each source, by round."""

from __future__ import annotations

import pandas as pd

from fdamed.report.plots.lines import Line
from fdamed.report.round_charts import Chart, charts_section, logged
from fdamed.report.study import Study


def frame(study: Study) -> pd.DataFrame:
    """The metrics `weight/{source}` and `beta/{source}` that a method logs."""
    return logged(study, "weight", "beta").rename(columns={"prefix": "kind", "name": "source"})


def charts(study: Study) -> list[Chart]:
    """One chart for each run, target and kind of weight, one line for each source."""
    out = []
    for (run, target, kind), part in frame(study).groupby(["run", "target", "kind"], sort=False):
        lines = [
            Line(i, str(source), list(values["round"]), list(values["value"]))
            for i, (source, values) in enumerate(part.groupby("source"))
        ]
        title = f"{run}, target {target}"
        words = f"{kind} of each source by round: {title}"
        out.append(Chart(f"{kind}_{run}_{target}", title, words, str(kind), lines))
    return out


SECTION = charts_section(60, "Source weights", charts, "weights", frame)
