"""Pairwise comparison of runs on the same patients, and their ranks over the targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation.comparison import power
from fdamed.evaluation.comparison.run_pairs import Ranking, ranking
from fdamed.evaluation.metrics import NAMES
from fdamed.report.audit import ENDS, Audit, audited, oriented, visible
from fdamed.report.plots.ranks import critical_difference
from fdamed.report.section import Section
from fdamed.report.study import Study


def context(study: Study) -> dict[str, Any]:
    shown = {}
    for view, audit, runs in audited(study):
        metrics = [m for m in NAMES if m in audit["scores"]]
        shown[view.name] = {
            "metric": "AUC" if "auc" in metrics else "accuracy",
            "metrics": [NAMES[m] for m in metrics],
            "scores": [(run, [audit["scores"][m].get(run) for m in metrics]) for run in runs],
            "visible": visibility(audit, runs, "auc" if "auc" in metrics else "acc"),
            "matrix": matrix(audit, runs, "auc" if "auc" in metrics else "acc"),
        }
    return {"shown": shown, "ranks": ranked(study.audits, list(study.plain))}


def matrix(audit: Audit, runs: Sequence[str], metric: str) -> list[dict[str, Any]]:
    """One row per run: its difference to each other run in points, and how many it wins, leaves open and loses."""
    found = {frozenset((p["first"], p["second"])): p for p in audit["pairs"] if p["metric"] == metric}
    rows = []
    for run in runs:
        pairs = [found.get(frozenset((run, other))) for other in runs]
        cells = [oriented(pair, run) if pair else None for pair in pairs]
        known = [cell["points"] if cell["significant"] else 0.0 for cell in cells if cell]
        won, lost = sum(p > 0 for p in known), sum(p < 0 for p in known)
        rows.append({"run": run, "cells": cells, "won": won, "lost": lost, "undecided": len(known) - won - lost})
    return rows


def visibility(audit: Audit, runs: Sequence[str], metric: str) -> dict[str, Any] | None:
    """The smallest differences that could have been seen, in points, and the observed correlations; each a range."""
    found = [p for p in audit["pairs"] if p["metric"] == metric and {p["first"], p["second"]} <= set(runs)]
    if not found or not audit.get("patients") or any("seeds_df" not in p for p in found):
        return None
    own = audit["scores"][metric]
    points = [100 * smallest(p, audit) for p in found]
    both = [power.correlation(own[p["first"]]["patients"], own[p["second"]]["patients"], p["patients"]) for p in found]
    known = [r for r in both if r is not None]
    return {
        "points": " to ".join(visible(p) for p in (min(points), max(points))),
        "correlation": (min(known), max(known)) if known else None,
        "patients": audit["patients"],
    }


def smallest(pair: Audit, audit: Audit) -> float:
    """The smallest difference that the comparison of this pair could have seen, with Holm's correction."""
    pairs = sum(p["metric"] == pair["metric"] for p in audit["pairs"])
    return power.observed(pair, audit["patients"]).smallest_difference(pairs)


def ranked(audits: Mapping[str, Audit], runs: Sequence[str]) -> Ranking | None:
    """Mean ranks, over the targets, of the runs that all of them have."""
    known = [a for a in audits.values() if a["scores"]]
    metric = "auc" if all("auc" in a["scores"] for a in known) else "acc"
    if not known or not all(metric in a["scores"] for a in known):
        return None
    common = [r for r in runs if all(r in a["scores"][metric] for a in known)]
    return ranking(common, [[a["scores"][metric][r]["value"] for r in common] for a in known])


def plots(study: Study) -> dict[str, Markup]:
    found = ranked(study.audits, list(study.plain))
    return {"ranks": critical_difference(found)} if found else {}


def tables(study: Study) -> dict[str, pd.DataFrame]:
    columns = ["target", "metric", "first", "second", "seeds", *ENDS, "p", "p_holm", "mcnemar", "smallest_visible"]
    rows = [
        (target, *(p.get(k) for k in columns[1:-1]), smallest(p, audit) if audit.get("patients") else None)
        for target, audit in study.audits.items()
        for p in audit["pairs"]
    ]
    return {"pairs": pd.DataFrame(rows, columns=columns)}


SECTION = Section(30, "Pairwise comparison", lambda study: study.audits, plots, tables, context)
