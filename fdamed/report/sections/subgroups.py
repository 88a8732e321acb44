"""Subgroups: scores by sex, age, race, view and scanner, and the gaps between groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation.formatting import ends, signed
from fdamed.report.audit import ENDS, SCORES, Audit, audited, best_run, group_name, pairwise
from fdamed.report.plots import figure, intervals
from fdamed.report.plots.intervals import Column, Dot, estimate
from fdamed.report.section import Section
from fdamed.report.study import Study

GAPS = ("auc", "sensitivity", "false_alarms")
Told = dict[str, Any]


def forest(audit: Audit, run: str, index: int) -> Markup:
    """AUC of the run and of the reference, and the gain, in all patients and in every group of one attribute."""
    reference = audit["reference"]
    lines: list[tuple[str, str, Told | None, Told | None, Told]] = []
    whole = pairwise(audit, run, reference, "auc")
    if whole:
        auc = audit["scores"].get("auc", {})
        gain = {"value": whole["points"], "low": whole["low"], "high": whole["high"]}
        lines.append(("all patients", "", auc.get(run), auc.get(reference), gain))
    for group in audit["groups"]:
        here, there = group["runs"].get(run, {}), group["runs"].get(reference, {})
        if len(group["by"]) == 1 and here.get("gain"):
            images = "" if group["n"] is None else f"{group['n']:,} images"
            gain = {k: 100 * here["gain"][k] for k in ENDS}
            lines.append((group_name(group), images, here.get("auc"), there.get("auc"), gain))
    if not lines:
        return Markup("")
    areas = [min(1.0, max(0.0, a[k])) for line in lines for a in line[2:4] if a for k in ("low", "high")]
    gains = [0.0, *(line[4][k] for line in lines for k in ("low", "high"))]
    low, high = figure.limits(areas) if areas else (0.0, 1.0)
    dots = [
        [
            *([Dot(other["value"], kind="ring")] if other else []),
            *([estimate(own, index)] if own else []),
        ]
        for _, _, own, other, _ in lines
    ]
    points = [[estimate(line[4], index)] for line in lines]
    columns = [
        Column(figure.linear(low, high, "AUC", 4), dots),
        Column(
            figure.linear(min(gains), max(gains), f"gain over {reference} in points", 4, figure.signed),
            points,
            0,
            "+.1f",
        ),
    ]
    notes = [(f"{signed(g['value'])} ({ends(g, 1, sign='+')})", images) for _, images, _, _, g in lines]
    title = f"AUC of {run} and gain over {reference} by subgroup"
    return intervals.rows([line[0] for line in lines], columns, title, notes, width=412)


def rows(audit: Audit, run: str, attributes: int) -> list[Told]:
    """The groups of so many attributes with their scores, as the table shows them."""
    out = []
    for group in audit["groups"]:
        here = group["runs"].get(run)
        if len(group["by"]) == attributes and here:
            brier = {"value": here.get("brier"), "low": here.get("brier_low"), "high": here.get("brier_high")}
            out.append(
                {"group": group_name(group), "n": group["n"], "gain": here.get("gain"), "brier": brier}
                | {k: here.get(k) for k in ("auc", "sensitivity", "false_alarms", "bias")}
                | {"error": here.get("calibration_error"), "limit": here.get("calibration_limit")}
            )
    return out


def gaps(audit: Audit, runs: list[str]) -> list[Told]:
    """The largest gap between two groups, by attribute, score and run, and its change against the reference."""
    found = [g for g in audit["gaps"] if g["metric"] in GAPS and g["run"] in runs]
    out = [
        {"by": g["by"], "run": g["run"], "metric": SCORES[g["metric"]], "best": g["best"], "worst": g["worst"]}
        | {"gap": {k: 100 * g[k] for k in ENDS}, "significant": g["low"] > 0}
        | {"change": {k: 100 * g["change"][k] for k in ENDS} if g.get("change") else None}
        for g in found
    ]
    return sorted(out, key=lambda row: -float(row["gap"]["value"]))


def shown(study: Study) -> dict[str, Told]:
    """Target -> what its part shows."""
    out = {}
    for view, audit, runs in audited(study):
        if audit["groups"] or audit["gaps"]:
            reference = audit["reference"]
            best = best_run(runs, study, without=reference)
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
    groups = ["target", "run", "by", "group", "images", "metric", *ENDS]
    wider = ["target", "run", "by", "metric", "best", "worst", *ENDS, "wider_by", "wider_low", "wider_high"]
    return {
        "subgroups": pd.DataFrame(list(_groups(study)), columns=groups),
        "gaps": pd.DataFrame(list(_gaps(study)), columns=wider),
    }


def _groups(study: Study) -> Iterator[tuple[Any, ...]]:
    for target, audit in study.audits.items():
        for group in audit["groups"]:
            for run, found in group["runs"].items():
                head = (target, run, " x ".join(group["by"]), " x ".join(group["are"]), group["n"])
                for metric in ("auc", "sensitivity", "false_alarms", "bias"):
                    if found.get(metric):
                        yield (*head, metric, *(found[metric][k] for k in ENDS))
                yield (*head, "brier", *(found.get(k) for k in ("brier", "brier_low", "brier_high")))
                yield (*head, "calibration_error", found.get("calibration_error"), None, None)
                yield (*head, "calibration_error_by_chance", found.get("calibration_limit"), None, None)
                for metric, gain in (found.get("gains") or {}).items():
                    yield (*head, f"gain_in_{metric}", *(gain[k] for k in ENDS))


def _gaps(study: Study) -> Iterator[tuple[Any, ...]]:
    for target, audit in study.audits.items():
        for g in audit["gaps"]:
            change = g.get("change") or {}
            head = (target, g["run"], g["by"], g["metric"], g["best"], g["worst"])
            yield (*head, *(g[k] for k in ENDS), *(change.get(k) for k in ENDS))


SECTION = Section(36, "Subgroups", shown, plots, tables, lambda study: {"shown": shown(study)})
