"""The sources' Jacobians by round (Figure 2 of the FedGTST paper), as far as a run let the server know them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from fdamed.core.run_record import Record
from fdamed.report.svg import Line, curves, dash

PREFIX = "jacobian/"
NAMES = {
    "together": "norm of the mean Jacobian",
    "variance": "variance of the Jacobians",
    "alone": "mean norm of the Jacobians",
    "norm": "mean norm that was told",
    "spread": "variance of the norms that were told",
    "guide": "guide norm",
}
"""Note -> what it is. The first three need whole Jacobians (`watch`), the others the norms that FedGTST sends."""
PLOTS = 8


def frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row a target, statistic, run and round: mean over seeds."""
    rows = [
        (r.target, key.removeprefix(PREFIX), r.run, int(row["round"]), float(value))
        for r in records
        for row in r.rounds
        for key, value in row.items()
        if key.removeprefix(PREFIX) in NAMES and key.startswith(PREFIX) and value is not None
    ]
    keys = ["target", "statistic", "run", "round"]
    table = pd.DataFrame(rows, columns=[*keys, "value"]).astype({"round": "int64", "value": "float64"})
    return table.groupby(keys, sort=False)["value"].mean().reset_index()


def drawings(table: pd.DataFrame, index: Mapping[str, int]) -> Iterator[tuple[str, str, list[Line]]]:
    """Target, statistic and a curve for each run, in its own color."""
    for target, here in table.groupby("target", sort=False):
        for statistic in NAMES:
            part = here[here["statistic"] == statistic]
            if len(part):
                yield str(target), statistic, _lines(part, index)


def _lines(part: pd.DataFrame, index: Mapping[str, int]) -> list[Line]:
    out = []
    for run, values in part.groupby("run", sort=False):
        ordered = values.sort_values("round")
        none: list[float | None] = [None] * len(ordered)
        out.append(Line(index[str(run)], str(run), list(ordered["round"]), list(ordered["value"]), none, none))
    return sorted(out, key=lambda line: line.index)


def block(table: pd.DataFrame, index: Mapping[str, int]) -> tuple[list[dict[str, Any]], int]:
    """What the page draws, and how many more there are."""
    made = list(drawings(table, index))
    out = []
    for target, statistic, lines in made[:PLOTS]:
        title = f"{NAMES[statistic]}, target {target}"
        names = [{"index": line.index, "name": line.name, "dash": dash(line.index)} for line in lines]
        drawing = curves(lines, f"{NAMES[statistic]} by round: target {target}", NAMES[statistic], share=False)
        out.append({"title": title, "drawing": drawing, "legend": names})
    return out, max(0, len(made) - PLOTS)
