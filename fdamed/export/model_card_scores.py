"""The figures of a model card: scores with intervals, by subgroup, and calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fdamed.export.document import Block, Heading, Items, Table, Text
from fdamed.report.formatting import interval

if TYPE_CHECKING:
    from fdamed.export.model_card import Facts

NOT_MEASURED = "not measured"
NAMES = {
    "auc": "AUC",
    "acc": "accuracy",
    "balanced_acc": "balanced accuracy",
    "sensitivity": "sensitivity at the threshold",
    "specificity": "specificity at the threshold",
    "sens_at_spec90": "sensitivity at 90 % specificity",
    "f1": "F1",
    "ap": "average precision",
    "brier": "Brier score",
}


def scores(facts: Facts) -> list[Block]:
    """Scores of the exported seed, of all seeds, and of the same patients drawn anew."""
    out: list[Block] = [Heading("Scores on the target's test split")]
    if not facts.own:
        return [*out, Text(f"{NOT_MEASURED.capitalize()}: run `fdamed evaluate` for this run and export again.")]
    audited = (facts.audit or {}).get("scores", {})
    run = facts.study["run"]
    rows = []
    for metric, name in NAMES.items():
        if metric not in facts.own:
            continue
        patients = audited.get(metric, {}).get(run)
        rows.append(
            [
                name,
                _figure(facts.own[metric]),
                interval(facts.over_seeds.get(metric)).replace("–", "-") if len(facts.seeds) > 1 else NOT_MEASURED,
                _estimate(patients) if patients else NOT_MEASURED,
            ]
        )
    head = ["score", f"this model (seed {facts.study['seed']})", "mean of seeds ± 95 % t", "95 % over patients"]
    told = [
        f"± is the half-width of the t-interval over {len(facts.seeds)} seeds. `Over patients`, from the audit: the "
        "mean of the seeds, and an interval that takes patients and seeds as drawn at random."
    ]
    if facts.audit is None:
        told.append("No audit was there when the card was written: `fdamed audit` adds the intervals over patients.")
    elif "suppressed" in facts.audit:
        told.append(f"The audit tells nothing: {facts.audit['suppressed']}.")
    out += [Table(head, rows), Items(told)]
    if facts.elsewhere:
        shown = [m for m in NAMES if any(m in found for found in facts.elsewhere.values())]
        table = [[client, *(_figure(found.get(m)) for m in shown)] for client, found in facts.elsewhere.items()]
        out += [Text("The same model at other hospitals:"), Table(["hospital", *(NAMES[m] for m in shown)], table)]
    return out


def subgroups(facts: Facts) -> list[Block]:
    """Who is judged how well."""
    out: list[Block] = [Heading("Scores by subgroup")]
    run = facts.study["run"]
    groups = [g for g in (facts.audit or {}).get("groups", []) if run in g["runs"] and len(g["by"]) == 1]
    if not groups:
        why = "no audit" if facts.audit is None else "no group was large enough, or the attributes are not in the data"
        return [*out, Text(f"{NOT_MEASURED.capitalize()}: {why}.")]
    rows = []
    for group in groups:
        found = group["runs"][run]
        if group["n"] is None:  # its shares are not told either, and its AUC is rounded
            cells = ["hidden", _estimate(found.get("auc"), 2), *["hidden"] * 3]
        else:
            scored = [_estimate(found.get(k)) for k in ("auc", "sensitivity", "false_alarms")]
            cells = [f"{group['n']:,}", *scored, _figure(found["calibration_error"])]
        rows.append([f"{group['by'][0]}: {group['are'][0]}", *cells])
    head = ["group", "images", "AUC", "sensitivity", "false alarms", "calibration error"]
    known = {g["by"][0] for g in groups}
    absent = [a for a in ("sex", "age", "race", "view", "scanner") if a not in known]
    told = ["Mean of the seeds with 95 % intervals over patients; groups with few images of a class are left out."]
    gaps = [g for g in facts.audit.get("gaps", []) if g["run"] == run and g["metric"] == "auc"] if facts.audit else []
    told += [
        f"Widest gap in AUC by {g['by']}: {g['worst']} {g['value']:.3f} below {g['best']} "
        f"({g['low']:.3f} to {g['high']:.3f}; the interval ignores that it was picked)."
        for g in gaps
    ]
    if absent:
        told.append(f"By {', '.join(absent)}: {NOT_MEASURED} (not in the data, one group only, or groups too small).")
    return [*out, Table(head, rows), Items(told)]


def calibration(facts: Facts) -> list[Block]:
    """How far probabilities and frequencies are apart."""
    out: list[Block] = [Heading("Calibration")]
    found = (facts.audit or {}).get("calibration", {}).get(facts.study["run"])
    if not found:
        return [*out, Text(f"{NOT_MEASURED.capitalize()}.")]
    rows = [[f"{b['n']:,}", f"{b['chance']:.3f}", f"{b['rate']:.3f}"] for b in found["bins"]]
    told = f"Expected calibration error, mean of the seeds: {found['error']:.3f}. Bins of the first seed:"
    return [*out, Text(told), Table(["images", "mean probability", "share of positives"], rows)]


def _estimate(found: Mapping[str, Any] | None, digits: int = 3) -> str:
    if not found or found.get("value") is None:
        return NOT_MEASURED
    if found.get("low") is None or found.get("high") is None:
        return f"{found['value']:.{digits}f}"
    low, high = max(0.0, found["low"]), min(1.0, found["high"])  # every score that comes here lies between
    return f"{found['value']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _figure(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or NOT_MEASURED
    return f"{value:.3f}"
