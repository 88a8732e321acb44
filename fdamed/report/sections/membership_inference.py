"""Membership inference: how well a model reveals which patients it was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fdamed.evaluation.membership_inference import GATE, RATES, reveals
from fdamed.report.section import Section

Attacked = Sequence[Mapping[str, Any]]
"""The membership/{client}.json of each client."""
ATTACKS = ("loss", "calibrated")
SCORES = ("auc", *RATES)
COLUMNS = ["hospital", "target", "run", "attack", *(f"{s}{e}" for s in SCORES for e in ("", "_low", "_high"))]


def models(attacked: Attacked) -> list[tuple[Mapping[str, Any], str, str, Mapping[str, Any]]]:
    """Hospital, target, run and attacks of each attacked model."""
    return [
        (one, target, run, attacks)
        for one in attacked
        for target, found in one["targets"].items()
        for run, attacks in found["runs"].items()
    ]


def frame(attacked: Attacked) -> pd.DataFrame:
    """One row per hospital, target, run and attack; a rate of few patients has only an upper bound."""
    rows = [
        (one["client"], target, run, name, *(end for s in SCORES for end in _ends(attacks[name][s] or {})))
        for one, target, run, attacks in models(attacked)
        for name in ATTACKS
        if attacks[name]
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _ends(found: Mapping[str, float]) -> tuple[float | None, float | None, float | None]:
    return found.get("value"), found.get("low"), found.get("below", found.get("high"))


def context(attacked: Attacked) -> dict[str, Any]:
    """The rows of the page's table, and the runs that are above the gate."""
    every = models(attacked)
    found_in = [any(reveals(attacks[name], one["untrained"]) for name in ATTACKS) for one, _, _, attacks in every]
    above = [
        f"{run} at {one['client']}" + (f" (target {target})" if len(one["targets"]) > 1 else "")
        for (one, target, run, _), found in zip(every, found_in, strict=True)
        if found
    ]
    every += [(one, "", "untrained", {"loss": one["untrained"], "calibrated": None}) for one in attacked]
    rows = []
    found_in += [False] * len(attacked)
    for (one, target, run, attacks), found in zip(every, found_in, strict=True):
        plain, calibrated = attacks["loss"] or {}, attacks["calibrated"] or {}
        rates = [(calibrated or plain).get(name) for name in RATES]
        cells = [plain.get("auc"), calibrated.get("auc"), *rates]
        rows.append({"hospital": one["client"], "target": target, "run": run, "cells": cells, "above": found})
    return {"rows": rows, "above": above, "gate": GATE}


SECTION = Section(
    84,
    "Membership inference",
    lambda study: models(study.membership),
    tables=lambda study: {"membership": frame(study.membership)},
    context=lambda study: context(study.membership),
)
