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
    order: int,
    title: str,
    table: str,
    frame: Callable[[Study], pd.DataFrame],
    by: Sequence[str],
    line: str,
    named: Callable[..., tuple[str, str, str, str]],
) -> Section:
    """A section with a chart for each group `by` of a frame, and the frame as a table; left out without charts.

    `line`: the column with one line for each value; `named`: group -> the first four fields of its chart.
    """

    def charts(study: Study) -> list[Chart]:
        out = []
        for group, part in frame(study).groupby(list(by), sort=False):
            members = {str(name): rows for name, rows in part.groupby(line)}
            index = study.index if line == "run" else {name: i for i, name in enumerate(members)}
            lines = [Line(index[name], name, list(m["round"]), list(m["value"])) for name, m in members.items()]
            out.append(Chart(*named(*group), sorted(lines, key=lambda one: one.index)))
        return out

    def too_small(study: Study) -> str:
        longest = max(len(one.x) for chart in charts(study) for one in chart.lines)
        return "" if longest > 2 else f"a curve needs 3 rounds, and no run logged more than {longest}"

    return Section(
        order,
        title,
        charts,
        lambda study: {c.file: by_round(c.lines, c.description, c.axis, share=False) for c in charts(study)},
        lambda study: {table: frame(study)},
        lambda study: {"charts": charts(study)[:SHOWN], "more": max(0, len(charts(study)) - SHOWN)},
        too_small,
    )
