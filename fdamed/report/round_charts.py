"""Sections about metrics that methods log in each round: one chart for each group of lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from fdamed.report.plots.lines import Line, by_round
from fdamed.report.section import Section
from fdamed.report.study import Study

SHOWN = 8
"""Charts on the page at most; all are files."""


@dataclass(frozen=True)
class Chart:
    """File name, caption, description, name of the upright axis, and lines of a chart."""

    file: str
    title: str
    description: str
    axis: str
    lines: Sequence[Line]


def logged(study: Study, *prefixes: str) -> pd.DataFrame:
    """The metrics `prefix/name`, mean over seeds: run, target, prefix, name, round, value."""
    rows = [
        (r.run, r.target, *key.split("/", 1), int(row["round"]), float(value))
        for r in study.records
        for row in r.rounds
        for key, value in row.items()
        if key.partition("/")[0] in prefixes and key.partition("/")[2] and value is not None
    ]
    keys = ["run", "target", "prefix", "name", "round"]
    table = pd.DataFrame(rows, columns=[*keys, "value"]).astype({"round": "int64", "value": "float64"})
    return table.groupby(keys, sort=False)["value"].mean().reset_index().sort_values("round", kind="stable")


def charts_section(
    order: int, title: str, charts: Callable[[Study], list[Chart]], table: str, frame: Callable[[Study], pd.DataFrame]
) -> Section:
    """A section of charts, with their numbers as a table; left out where there is no chart."""
    return Section(
        order,
        title,
        charts,
        lambda study: {c.file: by_round(c.lines, c.description, c.axis, share=False) for c in charts(study)},
        lambda study: {table: frame(study)},
        lambda study: {"charts": charts(study)[:SHOWN], "more": max(0, len(charts(study)) - SHOWN)},
    )
