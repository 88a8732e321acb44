"""Compute cost of a round: parameters, extra work, seconds."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fdamed.evaluation.costs import Cost, compute_costs
from fdamed.report.paper_tables import printed, table3
from fdamed.report.section import Section
from fdamed.report.study import Study


def rows(study: Study) -> list[Cost]:
    order = list(study.runs)
    records = sorted(study.records, key=lambda r: order.index(r.run))
    return compute_costs(records, study.runs, study.config.model, study.fold)


def tables(study: Study) -> dict[str, pd.DataFrame]:
    cells = [
        (c.run, c.method, c.parameters, c.work, c.multiply_adds, c.seconds.mean, c.seconds.half, c.ratio)
        for c in rows(study)
    ]
    columns = ["run", "method", "parameters", "work", "server_multiply_adds", "seconds", "seconds_half", "ratio"]
    frame = pd.DataFrame(cells, columns=columns)
    return {"costs": frame.astype({"server_multiply_adds": "Int64", "ratio": "float64"})}


def context(study: Study) -> dict[str, Any]:
    return {"costs": table3(rows(study)), "source": printed()["costs"]["source"]}


SECTION = Section(78, "Compute cost", tables=tables, context=context)
