"""Cohort: sizes and label rates of the hospitals, the leakage check, and rejected files."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fdamed.core.counts import flows
from fdamed.data.manifest import PARTS
from fdamed.evaluation.protocol import HIDDEN, TOTAL, rejects, sizes
from fdamed.report.section import Section
from fdamed.report.sections.communication import MANY, smallest_median_largest
from fdamed.report.study import Study


def frame(study: Study) -> pd.DataFrame:
    return sizes(study.cohort, study.smallest)


def rows(study: Study) -> list[dict[str, Any]]:
    """One row per hospital: images and label rate by part, patients in all."""
    config, out = study.config, {}
    for client, part in frame(study).groupby("hospital", sort=False):
        rates = [f"{r:.0%} pos." if isinstance(r, float) and config.model.classes == 2 else "" for r in part["rate"]]
        out[str(client)] = {
            "hospital": client,
            "meaning": config.split.clients.get(str(client), ""),
            "cells": list(zip(part["images"], rates, strict=True)),
            "patients": part["patients"].iloc[-1],
        }
    sources = [client for client in out if client not in config.split.targets]
    if len(sources) <= MANY:
        return list(out.values())
    totals = {client: row["cells"][-1][0] for client, row in out.items()}
    few = smallest_median_largest(sources, lambda c: float(totals[c]) if isinstance(totals[c], int) else 0.0)
    return [out[c] for c in out if c not in sources] + [out[c] | {"meaning": what} for c, what in few.items()]


def flow(study: Study) -> pd.DataFrame:
    """One row per hospital, from its rows in the tables to its images; text where a count is hidden."""
    few, found, known = f"<{study.smallest}", [], flows(study.folder, study.smallest)
    for client in [client for client in study.cohort["clients"] if client in known]:
        one = known[client]
        steps = {"rows": one["rows"], **one["left_out"], "images": one["images"]}
        bad = ", ".join(f"{reason} {few if n is None else n}" for reason, n in one["unreadable"].items())
        shown = {step: HIDDEN if n is None else n for step, n in steps.items()}
        found.append({"hospital": client, **shown, "unreadable": bad or 0})
    return pd.DataFrame(found, dtype=object)


def context(study: Study) -> dict[str, Any]:
    shown, steps = rows(study), flow(study)
    few = steps[steps["hospital"].isin([row["hospital"] for row in shown])] if len(steps) else steps
    return {
        "parts": [*PARTS, TOTAL],
        "rows": shown,
        "steps": list(few.columns[1:]),
        "flow": few.to_numpy().tolist(),
        "rejects": rejects(study.ingest.get("rejected") or {}, study.smallest),
    }


def tables(study: Study) -> dict[str, pd.DataFrame]:
    found = flow(study)
    return {"cohort": frame(study)} | ({"flow": found} if len(found) else {})


SECTION = Section(90, "Cohort", tables=tables, context=context)
