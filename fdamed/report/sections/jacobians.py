"""Jacobian statistics of the sources by round (Figure 2 of the FedGTST paper)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.report.plots.lines import Line, by_round
from fdamed.report.section import Section
from fdamed.report.study import Study

PREFIX = "jacobian/"
NAMES = {
    "together": "norm of the mean Jacobian",
    "variance": "variance of the Jacobians",
    "alone": "mean norm of the Jacobians",
    "norm": "mean reported norm",
    "spread": "variance of the reported norms",
    "guide": "guide norm",
}
"""Statistic -> its name. The first three need whole Jacobians (`watch`), the others the norms that FedGTST sends."""
SHOWN = 8


def frame(study: Study) -> pd.DataFrame:
    """One row per target, statistic, run and round: mean over seeds."""
    rows = [
        (r.target, key.removeprefix(PREFIX), r.run, int(row["round"]), float(value))
        for r in study.records
        for row in r.rounds
        for key, value in row.items()
        if key.removeprefix(PREFIX) in NAMES and key.startswith(PREFIX) and value is not None
    ]
    keys = ["target", "statistic", "run", "round"]
    table = pd.DataFrame(rows, columns=[*keys, "value"]).astype({"round": "int64", "value": "float64"})
    return table.groupby(keys, sort=False)["value"].mean().reset_index()


def charts(study: Study) -> Iterator[tuple[str, str, str, list[Line]]]:
    """File, statistic, target and lines of each plot, one line for each run."""
    for target, here in frame(study).groupby("target", sort=False):
        for statistic in (s for s in NAMES if s in set(here["statistic"])):
            part = here[here["statistic"] == statistic].sort_values("round")
            lines = [
                Line(study.index[str(run)], str(run), list(v["round"]), list(v["value"]))
                for run, v in part.groupby("run", sort=False)
            ]
            yield f"jacobian_{statistic}_{target}", statistic, str(target), sorted(lines, key=lambda line: line.index)


def plots(study: Study) -> dict[str, Markup]:
    return {
        file: by_round(lines, f"{NAMES[what]} by round: target {target}", NAMES[what], share=False)
        for file, what, target, lines in charts(study)
    }


def context(study: Study) -> dict[str, Any]:
    every = [{"file": f, "title": f"{NAMES[s]}, target {t}", "lines": lines} for f, s, t, lines in charts(study)]
    return {"charts": every[:SHOWN], "more": max(0, len(every) - SHOWN)}


def needs(study: Study) -> bool:
    return not frame(study).empty


SECTION = Section(64, "Jacobian statistics", needs, plots, lambda study: {"jacobians": frame(study)}, context)
