"""Attribute inference: how well a linear probe predicts sex, age, race and view from each model's features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation.attribute_inference import UNTRAINED
from fdamed.report.audit import ENDS, Audit, audited
from fdamed.report.plots import intervals
from fdamed.report.plots.figure import linear
from fdamed.report.plots.intervals import Column, Dot, estimate
from fdamed.report.section import Section
from fdamed.report.study import Study


def probed(study: Study) -> dict[str, tuple[Audit, list[str]]]:
    """Target -> its probe and the probed models, the untrained one first."""
    out = {}
    for view, audit, runs in audited(study):
        probe = audit.get("attributes")
        if probe and probe["attributes"]:
            out[view.name] = (probe, [UNTRAINED, *(run for run in runs if run in probe["runs"])])
    return out


def shown(study: Study) -> dict[str, dict[str, Any]]:
    """Target -> what its part shows."""
    out = {}
    for target, (probe, names) in probed(study).items():
        attributes = probe["attributes"]
        heads = [
            pair | {"attribute": attribute, "significant": pair["low"] > 0 or pair["high"] < 0}
            for attribute, found in attributes.items()
            for pair in found["heads"]
            if pair["run"] in names
        ]
        out[target] = {
            "images": probe["images"],
            "attributes": {name: found["classes"] for name, found in attributes.items()},
            "heads": sorted(heads, key=lambda pair: -float(pair["value"])),
        }
    return out


def plots(study: Study) -> dict[str, Markup]:
    return {f"attributes_{t}": plot_of(probe, names, study.index) for t, (probe, names) in probed(study).items()}


def plot_of(probe: Audit, names: Sequence[str], index: Mapping[str, int]) -> Markup:
    """One column for each attribute, one row for each model; crosses: permuted attributes."""
    models = {attribute: found["runs"] for attribute, found in probe["attributes"].items()}
    ends = [found[name][k] for found in models.values() for name in names if name in found for k in ("low", "high")]
    low, high = max(0.0, min(0.4, *ends)), min(1.0, max(0.8, *ends))

    def dots(found: Audit | None, name: str) -> list[Dot]:
        if found is None:
            return []
        control = [] if found.get("shuffled") is None else [Dot(found["shuffled"], kind="cross")]
        return [*control, estimate(found, index.get(name))]

    columns = [
        Column(linear(low, high, attribute, 3), [dots(found.get(name), name) for name in names], 0.5)
        for attribute, found in models.items()
    ]
    return intervals.rows(names, columns, "AUC of attribute inference from the features")


def tables(study: Study) -> dict[str, pd.DataFrame]:
    known = [
        (target, attribute, found)
        for target, audit in study.audits.items()
        for attribute, found in ((audit.get("attributes") or {}).get("attributes") or {}).items()
    ]
    models = [
        {"target": target, "attribute": attribute, "run": run} | {k: scored.get(k) for k in (*ENDS, "shuffled", "r2")}
        for target, attribute, found in known
        for run, scored in found["runs"].items()
    ]
    heads = [
        {"target": target, "attribute": attribute, "run": pair["run"], "without_heads": pair["base"]}
        | {"heads": " + ".join(pair["heads"])}
        | {k: pair[k] for k in ENDS}
        for target, attribute, found in known
        for pair in found["heads"]
    ]
    return {"attributes": pd.DataFrame(models), "attributes_heads": pd.DataFrame(heads)}


SECTION = Section(82, "Attribute inference", probed, plots, tables, lambda study: {"shown": shown(study)})
