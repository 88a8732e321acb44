"""Source weights: how much a method weighs each source, by round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.report.plots.lines import Line, by_round
from fdamed.report.section import Section
from fdamed.report.study import Study

PREFIXES = ("weight", "beta")
"""Metrics `weight/{source}` and `beta/{source}` are the weights that a method logs."""
SHOWN = 8


def frame(study: Study) -> pd.DataFrame:
    """One row per run, target, kind of weight, source and round: mean over seeds."""
    rows = [
        (r.run, r.target, *key.split("/", 1), int(row["round"]), float(value))
        for r in study.records
        for row in r.rounds
        for key, value in row.items()
        if key.partition("/")[0] in PREFIXES and key.partition("/")[2] and value is not None
    ]
    keys = ["run", "target", "kind", "source", "round"]
    table = pd.DataFrame(rows, columns=[*keys, "value"]).astype({"round": "int64", "value": "float64"})
    return table.groupby(keys, sort=False)["value"].mean().reset_index()


def charts(study: Study) -> Iterator[tuple[str, str, str, list[Line]]]:
    """File, title, name of the axis and lines of each plot."""
    for (run, target, kind), part in frame(study).groupby(["run", "target", "kind"], sort=False):
        lines = [
            Line(i, str(source), list(v["round"]), list(v["value"]))
            for i, (source, values) in enumerate(part.groupby("source", sort=True))
            for v in [values.sort_values("round")]
        ]
        yield f"{kind}_{run}_{target}", f"{run}, target {target}", str(kind), lines


def plots(study: Study) -> dict[str, Markup]:
    return {
        file: by_round(lines, f"{kind} of each source by round: {title}", kind, share=False)
        for file, title, kind, lines in charts(study)
    }


def context(study: Study) -> dict[str, Any]:
    every = [{"file": file, "title": title, "lines": lines} for file, title, _, lines in charts(study)]
    return {"charts": every[:SHOWN], "more": max(0, len(every) - SHOWN)}


def needs(study: Study) -> bool:
    return not frame(study).empty


SECTION = Section(60, "Source weights", needs, plots, lambda study: {"weights": frame(study)}, context)
