"""Calibration: reliability diagrams and the expected calibration error."""

from __future__ import annotations

from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation.calibration import PER_BIN, POINTS
from fdamed.report.audit import audited
from fdamed.report.plots.lines import reliability
from fdamed.report.section import Section
from fdamed.report.study import Study

SHOWN = 8
"""Diagrams of runs at most."""


def diagrams(study: Study) -> dict[str, list[dict[str, Any]]]:
    """Target -> diagrams of its runs."""
    out = {}
    for view, audit, runs in audited(study):
        found = audit["calibration"]
        of_runs = [
            {"run": run, "file": f"calibration_{run}_{view.name}"}
            | {"bins": found[run]["bins"], "error": found[run]["error"], "limit": found[run].get("limit")}
            for run in runs
            if len(bins := found.get(run, {}).get("bins", ())) >= POINTS and min(b["n"] for b in bins) >= PER_BIN
        ]
        if of_runs:
            out[view.name] = of_runs[:SHOWN]
    return out


def too_small(study: Study) -> str:
    return "" if diagrams(study) else f"no run has {POINTS} groups of at least {PER_BIN} test images of both classes"


def plots(study: Study) -> dict[str, Markup]:
    every = [one for found in diagrams(study).values() for one in found]
    return {one["file"]: reliability(one["run"], one["bins"], study.index[one["run"]]) for one in every}


def tables(study: Study) -> dict[str, pd.DataFrame]:
    rows = [
        (t, run, c["error"], c.get("limit"))
        for t, audit in study.audits.items()
        for run, c in audit["calibration"].items()
    ]
    return {"calibration": pd.DataFrame(rows, columns=["target", "run", "error", "by_chance"])}


def context(study: Study) -> dict[str, Any]:
    return {"shown": diagrams(study), "binary": {v.name: "auc" in audit["scores"] for v, audit, _ in audited(study)}}


SECTION = Section(34, "Calibration", lambda study: audited(study), plots, tables, context, too_small)
