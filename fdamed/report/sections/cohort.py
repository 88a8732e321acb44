"""Cohort: sizes and label rates of the hospitals, the leakage check, and rejected files."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fdamed.data.manifest import PARTS
from fdamed.evaluation.protocol import TOTAL, rejects, sizes
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


def context(study: Study) -> dict[str, Any]:
    return {
        "parts": [*PARTS, TOTAL],
        "rows": rows(study),
        "rejects": rejects(study.ingest.get("rejected") or {}, study.smallest),
    }


SECTION = Section(90, "Cohort", tables=lambda study: {"cohort": frame(study)}, context=context)
