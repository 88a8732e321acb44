"""Attribute inference: how well a linear probe predicts sex, age, race and view from each model's features."""

from __future__ import annotations

from collections.abc import Sequence
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
        told = probe["attributes"]
        cells = {name: [found["runs"].get(name) for found in told.values()] for name in names}
        heads = [
            pair | {"attribute": attribute, "significant": pair["low"] > 0 or pair["high"] < 0}
            for attribute, found in told.items()
            for pair in found["heads"]
            if pair["run"] in names
        ]
        out[target] = {
            "images": probe["images"],
            "attributes": {name: found["classes"] for name, found in told.items()},
            "rows": [(name, row) for name, row in cells.items() if any(row)],
            "heads": sorted(heads, key=lambda pair: -float(pair["value"])),
        }
    return out


def plots(study: Study) -> dict[str, Markup]:
    return {f"attributes_{t}": plot_of(probe, names, study.index) for t, (probe, names) in probed(study).items()}


def plot_of(probe: Audit, names: Sequence[str], index: dict[str, int]) -> Markup:
    """One column for each attribute, one row for each model; crosses: permuted attributes."""
    columns = []
    every = [found for told in probe["attributes"].values() for name, found in told["runs"].items() if name in names]
    ends = [found[k] for found in every for k in ("low", "high")]
    low, high = max(0.0, min(0.4, *ends)), min(1.0, max(0.8, *ends))
    for attribute, told in probe["attributes"].items():
        rows = []
        for name in names:
            found = told["runs"].get(name)
            control = [Dot(found["shuffled"], kind="cross")] if found and found.get("shuffled") is not None else []
            rows.append([*control, estimate(found, index.get(name))] if found else [])
        columns.append(Column(linear(low, high, attribute, 3), rows, 0.5))
    return intervals.rows(names, columns, "AUC of attribute inference from the features")


def tables(study: Study) -> dict[str, pd.DataFrame]:
    known = [
        (target, attribute, told)
        for target, audit in study.audits.items()
        for attribute, told in ((audit.get("attributes") or {}).get("attributes") or {}).items()
    ]
    found = [
        (target, attribute, run, *(f[k] for k in ENDS), f.get("shuffled"), f.get("r2"))
        for target, attribute, told in known
        for run, f in told["runs"].items()
    ]
    heads = [
        (target, attribute, pair["run"], pair["base"], " + ".join(pair["heads"]), *(pair[k] for k in ENDS))
        for target, attribute, told in known
        for pair in told["heads"]
    ]
    return {
        "attributes": pd.DataFrame(found, columns=["target", "attribute", "run", *ENDS, "shuffled", "r2"]),
        "attributes_heads": pd.DataFrame(
            heads, columns=["target", "attribute", "run", "without_heads", "heads", *ENDS]
        ),
    }


SECTION = Section(82, "Attribute inference", probed, plots, tables, lambda study: {"shown": shown(study)})
