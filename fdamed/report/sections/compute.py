"""Compute cost of a round: parameters, extra work, seconds."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fdamed.evaluation.costs import Cost, compute_costs
from fdamed.report.paper_tables import paper_cohort, printed, table3
from fdamed.report.section import Section
from fdamed.report.study import Study


def rows(study: Study) -> list[Cost]:
    order = list(study.runs)
    records = sorted(study.records, key=lambda r: order.index(r.run))
    return compute_costs(records, study.runs, study.config.model, study.fold)


def tables(study: Study) -> dict[str, pd.DataFrame]:
    costs = rows(study)
    cells = [(c.run, c.method, c.parameters, c.work, c.seconds.mean, c.seconds.half, c.ratio) for c in costs]
    columns = ["run", "method", "parameters", "work", "seconds", "seconds_half", "ratio"]
    return {"costs": pd.DataFrame(cells, columns=columns).astype({"ratio": "float64"})}


def context(study: Study) -> dict[str, Any]:
    costs = rows(study)
    if paper_cohort(study.config) is None:  # another paper's costs say nothing about this study
        return {"costs": [{"run": cost.run, "cost": cost, "paper": None} for cost in costs], "source": ""}
    return {"costs": table3(costs), "source": printed()["costs"]["source"]}


SECTION = Section(78, "Compute cost", tables=tables, context=context)
