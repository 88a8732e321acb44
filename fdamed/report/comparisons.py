"""What the audit found, for the page: who beats whom on the same patients, who gains, and whether chances are true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from fdamed.evaluation.intervals import SURE
from fdamed.evaluation.ranking import Ranking, ranking
from fdamed.report import attribute_inference as leaks
from fdamed.report import subgroups
from fdamed.report.summary import is_ceiling
from fdamed.report.svg import color, drawing, scale

RELIABILITY = 8
"""Diagrams on the page at most."""
Audit = Mapping[str, Any]


NAMES = {
    "auc": "AUC",
    "acc": "Accuracy",
    "balanced_acc": "Balanced accuracy",
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "sens_at_spec90": "Sens. at spec. 0.9",
    "f1": "F1",
    "ap": "Average precision",
    "brier": "Brier score",
    "false_alarms": "False alarms",
    "bias": "Bias",
}
"""Scores as the page calls them, in its order."""
GAPS = ("auc", "sensitivity", "false_alarms")


def block(audit: Audit, order: Sequence[str], methods: Mapping[str, str], index: Mapping[str, int]) -> dict[str, Any]:
    """The section of one target; `order` has its runs, best first, without those of sweeps."""
    runs = [run for run in order if run in audit["runs"]]
    metric = "auc" if "auc" in audit["scores"] else "acc"
    best = next((run for run in runs if not is_ceiling(methods[run]) and run != audit["reference"]), None)
    shown = next((run for run in runs if not is_ceiling(methods[run])), None)
    return {
        "suppressed": audit.get("suppressed", ""),
        "metric": "AUC" if metric == "auc" else "accuracy",
        "reference": audit["reference"],
        "metrics": [NAMES[m] for m in NAMES if m in audit["scores"]],
        "scores": every_score(audit, runs),
        "matrix": matrix(audit, runs, metric),
        "forests": [
            {
                "run": run,
                "open": run == best,
                "drawing": subgroups.forest(audit, run, index[run]),
                "rows": subgroups.rows(audit, run, 1),
                "pairs": subgroups.rows(audit, run, 2) if run == best else [],
            }
            for run in runs
            if run != audit["reference"]
        ]
        if audit["groups"]
        else [],
        "gaps": gaps(audit, runs),
        "diagrams": [
            {
                "run": run,
                "error": audit["calibration"][run]["error"],
                "limit": audit["calibration"][run].get("limit"),
                "drawing": subgroups.reliability(run, audit["calibration"][run]["bins"], index[run]),
            }
            for run in runs
            if run in audit["calibration"] and audit["calibration"][run]["bins"]
        ][:RELIABILITY],
        "of_groups": {"run": shown, "diagrams": subgroups.diagrams_by_group(audit, shown, index[shown])}
        if shown
        else None,
        "several": "auc" not in audit["scores"],
        "pairs_of_groups": sum(len(g["by"]) == 2 for g in audit["groups"]),
        "probe": leaks.block(audit.get("probe"), runs, index),
    }


def every_score(audit: Audit, runs: Sequence[str]) -> list[dict[str, Any]]:
    """A row a run: all scores in the order of NAMES."""
    known = [m for m in NAMES if m in audit["scores"]]
    return [{"run": run, "cells": [audit["scores"][m].get(run) for m in known]} for run in runs]


def matrix(audit: Audit, runs: Sequence[str], metric: str) -> list[dict[str, Any]]:
    """A row a run: its difference to each other run in points, and how many it beats, equals and loses to."""
    found = {(p["first"], p["second"]): p for p in audit["pairs"] if p["metric"] == metric}
    rows = []
    for run in runs:
        cells = [_cell(found, run, other) for other in runs]
        won = sum(c is not None and c["sure"] and c["points"] > 0 for c in cells)
        lost = sum(c is not None and c["sure"] and c["points"] < 0 for c in cells)
        known = sum(c is not None for c in cells)
        rows.append({"run": run, "cells": cells, "won": won, "lost": lost, "tied": known - won - lost})
    return rows


SIZES = {"separation": "d′", "cohens_h": "Cohen’s h", "cliffs_delta": "Cliff’s δ over seeds"}


def _cell(found: Mapping[tuple[str, str], Audit], run: str, other: str) -> dict[str, Any] | None:
    pair = found.get((run, other)) or found.get((other, run))
    if pair is None:
        return None
    cell = subgroups.oriented(pair, run)
    effects = [f"{SIZES[k]} {v:+.2f}" for k, v in cell["sizes"].items()]
    return cell | {"sure": pair["p_holm"] < SURE, "effects": ", ".join(effects)}


def gaps(audit: Audit, runs: Sequence[str]) -> list[dict[str, Any]]:
    """A row an attribute, score and run: the widest gap between two groups, and how the reference's differs."""
    rows = [
        {
            "by": g["by"],
            "run": g["run"],
            "metric": NAMES[g["metric"]],
            "points": 100 * g["value"],
            "low": 100 * g["low"],
            "high": 100 * g["high"],
            "best": g["best"],
            "worst": g["worst"],
            "sure": g["low"] > 0,
            "change": _change(g.get("change")),
        }
        for g in audit["gaps"]
        if g["metric"] in GAPS and g["run"] in runs
    ]
    return sorted(rows, key=lambda row: -float(row["points"]))


def _change(told: Mapping[str, float] | None) -> dict[str, Any] | None:
    if not told:
        return None
    low, high = 100 * told["low"], 100 * told["high"]
    return {"points": 100 * told["value"], "low": low, "high": high, "sure": low > 0 or high < 0}


def ranked(audits: Mapping[str, Audit], runs: Sequence[str]) -> Ranking | None:
    """Mean ranks over the targets of the runs that all of them have."""
    told = [a for a in audits.values() if a["scores"]]
    if not told:
        return None
    metric = "auc" if all("auc" in a["scores"] for a in told) else "acc"
    if not all(metric in a["scores"] for a in told):
        return None
    common = [r for r in runs if all(r in a["scores"][metric] for a in told)]
    return ranking(common, [[a["scores"][metric][r]["value"] for r in common] for a in told])


def critical_difference(found: Ranking) -> Markup:
    """Mean ranks on a line; bars join what cannot be told apart."""
    k = len(found.names)
    left, right, top = 150.0, 610.0, 58.0
    x = scale(1, k, left, right)
    half = -(-k // 2)
    foot = top + 26 + 20 * half + 10 * len(found.cliques)
    body = [f'<line class="zero" x1="{left}" x2="{right}" y1="{top}" y2="{top}"/>']
    for place in range(1, k + 1):
        body.append(f'<line class="zero" x1="{x(place):.1f}" x2="{x(place):.1f}" y1="{top - 5}" y2="{top}"/>')
        body.append(f'<text class="tick" x="{x(place):.1f}" y="{top - 10}" text-anchor="middle">{place}</text>')
    wide = min(found.apart, k - 1)
    body.append(f'<line class="span" style="stroke:var(--ink)" x1="{left}" x2="{x(1 + wide):.1f}" y1="20" y2="20"/>')
    body.append(f'<text class="tick" x="{left}" y="13">critical difference {found.apart:.2f}</text>')
    for i, (first, last) in enumerate(found.cliques):
        y = top + 10 + 10 * i
        span = f'x1="{x(found.ranks[first]) - 4:.1f}" x2="{x(found.ranks[last]) + 4:.1f}" y1="{y}" y2="{y}"'
        body.append(f'<line class="span" style="stroke:{color(0)}" {span}/>')
    for i, (name, rank) in enumerate(zip(found.names, found.ranks, strict=True)):
        on_left = i < half
        y = top + 30 + 10 * len(found.cliques) + 20 * (i if on_left else k - 1 - i)
        end, anchor = (left - 10, "end") if on_left else (right + 10, "start")
        corner = f"{x(rank):.1f},{top} {x(rank):.1f},{y} {end + (4 if on_left else -4)},{y}"
        body.append(f'<polyline class="leader" style="stroke:var(--muted)" points="{corner}"/>')
        body.append(
            f'<text class="name" x="{end}" y="{y + 4}" text-anchor="{anchor}">{escape(name)} '
            f'<tspan class="tick">{rank:.2f}</tspan></text>'
        )
    return drawing(760, foot + 16, "Mean ranks of the runs over the targets", body)
