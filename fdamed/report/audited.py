"""What the audit found, for the page: who beats whom on the same patients, who gains, and whether chances are true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from fdamed.evaluate.ranking import Ranking, ranking
from fdamed.report.answer import CEILING
from fdamed.report.svg import colour, drawing, number, scale, ticks

SURE = 0.05
"""Holm's p-value below which two runs differ."""
RELIABILITY = 8
"""Diagrams on the page at most."""
Audit = Mapping[str, Any]


def block(audit: Audit, order: Sequence[str], methods: Mapping[str, str], index: Mapping[str, int]) -> dict[str, Any]:
    """The section of one target; `order` has its runs, best first, without those of sweeps."""
    runs = [run for run in order if run in audit["runs"]]
    metric = "auc" if "auc" in audit["scores"] else "acc"
    best = next((run for run in runs if methods[run] != CEILING and run != audit["reference"]), None)
    return {
        "suppressed": audit.get("suppressed", ""),
        "metric": "AUC" if metric == "auc" else "accuracy",
        "reference": audit["reference"],
        "matrix": matrix(audit, runs, metric),
        "forests": [
            {"run": run, "open": run == best, "drawing": forest(audit, run, index[run])}
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
                "drawing": reliability(run, audit["calibration"][run]["bins"], index[run]),
            }
            for run in runs
            if run in audit["calibration"] and audit["calibration"][run]["bins"]
        ][:RELIABILITY],
        "pairs_of_groups": sum(len(g["by"]) == 2 for g in audit["groups"]),
    }


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


def _cell(found: Mapping[tuple[str, str], Audit], run: str, other: str) -> dict[str, Any] | None:
    pair = found.get((run, other)) or found.get((other, run))
    if pair is None:
        return None
    sign = 1 if (run, other) in found else -1
    ends = sorted((sign * pair["low"], sign * pair["high"]))
    return {
        "other": other,
        "points": 100 * sign * pair["value"],
        "low": 100 * ends[0],
        "high": 100 * ends[1],
        "p": pair["p_holm"],
        "sure": pair["p_holm"] < SURE,
    }


def gaps(audit: Audit, runs: Sequence[str]) -> list[dict[str, Any]]:
    """A row an attribute and run: the widest gap of the AUC between two of its groups, those of the AUC alone."""
    return [
        {
            "by": g["by"],
            "run": g["run"],
            "points": 100 * g["value"],
            "low": 100 * g["low"],
            "high": 100 * g["high"],
            "best": g["best"],
            "worst": g["worst"],
            "sure": g["low"] > 0,
        }
        for g in audit["gaps"]
        if g["metric"] == "auc" and g["run"] in runs
    ]


def forest(audit: Audit, run: str, index: int) -> Markup:
    """The gain over the reference in all patients and in every group of one attribute."""
    rows: list[tuple[str, str, Mapping[str, float]]] = []
    for group in audit["groups"]:
        gain = group["runs"].get(run, {}).get("gain")
        if len(group["by"]) == 1 and gain:
            counted = "" if group["n"] is None else f"{group['n']:,} images"
            rows.append((f"{group['by'][0]}: {group['are'][0]}", counted, gain))
    whole = _cell(
        {(p["first"], p["second"]): p for p in audit["pairs"] if p["metric"] == "auc"}, run, audit["reference"]
    )
    if whole:
        rows.insert(
            0, ("all", "", {k: whole[n] / 100 for k, n in (("value", "points"), ("low", "low"), ("high", "high"))})
        )
    if not rows:
        return Markup("")
    ends = [100 * g[k] for _, _, g in rows for k in ("low", "high")]
    low, high = min(0.0, *ends), max(0.0, *ends)
    left, right, high_row = 190.0, 600.0, 24.0
    bottom = 8 + high_row * len(rows)
    x = scale(low, high, left, right)
    body = []
    for value in ticks(low, high):
        body.append(f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="4" y2="{bottom}"/>')
        label = f"{value:+.3g}" if value else "0"
        body.append(f'<text class="tick" x="{x(value):.1f}" y="{bottom + 16}" text-anchor="middle">{label}</text>')
    body.append(f'<line class="zero" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="2" y2="{bottom}"/>')
    for i, (name, counted, gain) in enumerate(rows):
        y = 8 + high_row * (i + 0.5)
        told = f"{name}: {100 * gain['value']:+.1f} points, {100 * gain['low']:+.1f} to {100 * gain['high']:+.1f}"
        span = f'x1="{x(100 * gain["low"]):.1f}" x2="{x(100 * gain["high"]):.1f}" y1="{y}" y2="{y}"'
        body.append(f'<text class="name" x="{left - 12}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        body.append(f'<line class="span" style="stroke:{colour(index)}" {span}/>')
        body.append(
            f'<circle style="fill:{colour(index)}" cx="{x(100 * gain["value"]):.1f}" cy="{y}" r="4.5">'
            f"<title>{escape(told)}</title></circle>"
        )
        body.append(f'<text class="tick" x="{right + 10}" y="{y + 4}">{counted}</text>')
    axis = f"points of AUC gained over {audit['reference']}"
    body.append(
        f'<text class="axis" x="{(left + right) / 2}" y="{bottom + 36}" text-anchor="middle">{escape(axis)}</text>'
    )
    return drawing(690, bottom + 44, f"Gain of {run} over {audit['reference']} by group", body)


def reliability(run: str, bins: Sequence[Mapping[str, float]], index: int) -> Markup:
    """Share of positives against what was said, a dot a bin, its area by images."""
    left, right, top, bottom = 34.0, 204.0, 8.0, 178.0
    x, y = scale(0, 1, left, right), scale(0, 1, bottom, top)
    body = [f'<line class="reference" x1="{x(0)}" y1="{y(0)}" x2="{x(1)}" y2="{y(1)}"/>']
    for value in (0, 0.5, 1):
        body.append(f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{top}" y2="{bottom}"/>')
        body.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        body.append(
            f'<text class="tick" x="{x(value):.1f}" y="{bottom + 16}" text-anchor="middle">{number(value)}</text>'
        )
        body.append(
            f'<text class="tick" x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{number(value)}</text>'
        )
    path = " ".join(f"{x(b['chance']):.1f},{y(b['rate']):.1f}" for b in bins)
    body.append(f'<polyline class="line" style="stroke:{colour(index)}" points="{path}"/>')
    most = max(b["n"] for b in bins)
    for b in bins:
        told = f"said {b['chance']:.2f}, true {b['rate']:.2f}, {b['n']} images"
        body.append(
            f'<circle style="fill:{colour(index)}" cx="{x(b["chance"]):.1f}" cy="{y(b["rate"]):.1f}" '
            f'r="{2 + 3 * (b["n"] / most) ** 0.5:.1f}"><title>{told}</title></circle>'
        )
    return drawing(214, 200, f"Calibration of {run}", body, "chart small")


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
        body.append(f'<line class="span" style="stroke:{colour(0)}" {span}/>')
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
