"""Subgroups: scores by sex, age, race, view and scanner, and the gaps between groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation.intervals import ends, signed
from fdamed.evaluation.metrics import NAMES
from fdamed.report.audit import ENDS, Audit, audited, group_name, pairwise
from fdamed.report.plots import figure, intervals
from fdamed.report.plots.intervals import Column, Dot, estimate
from fdamed.report.section import Section
from fdamed.report.study import Study, is_ceiling

GAPS = ("auc", "sensitivity", "false_alarms")
WITH_INTERVAL = ("auc", "sensitivity", "false_alarms", "bias", "brier")


def in_points(found: Audit | None) -> dict[str, float] | None:
    return {k: 100 * found[k] for k in ENDS} if found else None


def forest(audit: Audit, run: str, index: int) -> Markup:
    """AUC of the run and of the reference, and the gain, in all patients and in every group of one attribute."""
    reference, auc = audit["reference"], audit["scores"].get("auc", {})
    lines: list[tuple[str, str, Audit | None, Audit | None, dict[str, float]]] = []
    if whole := pairwise(audit, run, reference, "auc"):
        lines.append(("all patients", "", auc.get(run), auc.get(reference), whole | {"value": whole["points"]}))
    for group in audit["groups"]:
        here, there = group["runs"].get(run, {}), group["runs"].get(reference, {})
        if len(group["by"]) == 1 and (gain := in_points(here.get("gains", {}).get("auc"))):
            images = "" if group["n"] is None else f"{group['n']:,} images"
            lines.append((group_name(group), images, here.get("auc"), there.get("auc"), gain))
    if not lines:
        return Markup("")
    areas = [min(1.0, max(0.0, a[k])) for line in lines for a in line[2:4] if a for k in ("low", "high")]
    gains = [0.0, *(line[4][k] for line in lines for k in ("low", "high"))]
    low, high = figure.limits(areas) if areas else (0.0, 1.0)
    dots = [
        [*([Dot(other["value"], kind="ring")] if other else []), *([estimate(own, index)] if own else [])]
        for _, _, own, other, _ in lines
    ]
    axis = figure.linear(min(gains), max(gains), f"gain over {reference} in points", 4, figure.signed)
    columns = [
        Column(figure.linear(low, high, "AUC", 4), dots),
        Column(axis, [[estimate(line[4], index)] for line in lines], 0, "+.1f"),
    ]
    notes = [(f"{signed(g['value'])} ({ends(g, 1, sign='+')})", images) for _, images, _, _, g in lines]
    title = f"AUC of {run} and gain over {reference} by subgroup"
    return intervals.rows([line[0] for line in lines], columns, title, notes, width=412)


def rows(audit: Audit, run: str, attributes: int) -> list[dict[str, Any]]:
    """The groups of so many attributes with their scores, as the table shows them."""
    found = [(g, g["runs"][run]) for g in audit["groups"] if len(g["by"]) == attributes and g["runs"].get(run)]
    return [
        {"group": group_name(group), "n": group["n"], "gain": here["gains"].get("auc")}
        | {k: here.get(k) for k in WITH_INTERVAL}
        | {"error": here.get("calibration_error"), "limit": here.get("calibration_limit")}
        for group, here in found
    ]


def gaps(audit: Audit, runs: list[str]) -> list[dict[str, Any]]:
    """The largest gap between two groups, by attribute, score and run, and its change against the reference."""
    return [
        {k: g[k] for k in ("by", "run", "best", "worst")}
        | {"metric": NAMES[g["metric"]], "significant": g["low"] > 0}
        | {"gap": in_points(g), "change": in_points(g.get("change"))}
        for g in sorted(audit["gaps"], key=lambda g: -float(g["value"]))
        if g["metric"] in GAPS and g["run"] in runs
    ]


def shown(study: Study) -> dict[str, dict[str, Any]]:
    """Target -> what its part shows."""
    out = {}
    for view, audit, runs in audited(study):
        if audit["groups"] or audit["gaps"]:
            reference = audit["reference"]
            best = next((r for r in runs if not is_ceiling(study.methods[r]) and r != reference), None)
            entries = [
                {"run": run, "file": f"subgroups_{run}_{view.name}", "open": run == best, "rows": rows(audit, run, 1)}
                | {"pairs": rows(audit, run, 2) if run == best else []}
                for run in runs
                if run != reference and audit["groups"]
            ]
            out[view.name] = {"reference": reference, "runs": entries, "gaps": gaps(audit, runs)}
    return out


def plots(study: Study) -> dict[str, Markup]:
    return {
        f"subgroups_{run}_{view.name}": forest(audit, run, study.index[run])
        for view, audit, runs in audited(study)
        for run in runs
        if run != audit["reference"]
    }


def tables(study: Study) -> dict[str, pd.DataFrame]:
    head = ["run", "by", "metric", "best", "worst"]
    wider = [
        (target, *(g[k] for k in (*head, *ENDS)), *((g.get("change") or {}).get(k) for k in ENDS))
        for target, audit in study.audits.items()
        for g in audit["gaps"]
    ]
    groups = ["target", "run", "by", "group", "images", "metric", *ENDS]
    return {
        "subgroups": pd.DataFrame(list(_groups(study)), columns=groups),
        "gaps": pd.DataFrame(wider, columns=["target", *head, *ENDS, "wider_by", "wider_low", "wider_high"]),
    }


def _groups(study: Study) -> Iterator[tuple[Any, ...]]:
    """Every score of every group and run."""
    for target, audit in study.audits.items():
        for group in audit["groups"]:
            for run, found in group["runs"].items():
                head = (target, run, " x ".join(group["by"]), " x ".join(group["are"]), group["n"])
                scores = {metric: found[metric] for metric in WITH_INTERVAL if found.get(metric)} | {
                    "calibration_error": {"value": found.get("calibration_error")},
                    "calibration_error_by_chance": {"value": found.get("calibration_limit")},
                    **{f"gain_in_{metric}": gain for metric, gain in found["gains"].items()},
                }
                for metric, score in scores.items():
                    yield (*head, metric, *(score.get(k) for k in ENDS))


SECTION = Section(36, "Subgroups", shown, plots, tables, lambda study: {"shown": shown(study)})
