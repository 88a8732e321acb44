"""Membership inference: how well a model reveals which patients it was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fdamed.evaluation.membership_inference import GATE, RATES
from fdamed.report.section import Section
from fdamed.report.study import Study

Told = Sequence[Mapping[str, Any]]
"""The membership/{client}.json of each client."""
ATTACKS = ("loss", "calibrated")
SCORES = ("auc", *RATES)
COLUMNS = ["hospital", "target", "run", "attack", *(f"{s}{e}" for s in SCORES for e in ("", "_low", "_high"))]


def frame(told: Told) -> pd.DataFrame:
    """One row per hospital, target, run and attack; a rate that stands for few patients has only an upper bound."""
    rows = [
        (one["client"], target, run, attack, *(end for s in SCORES for end in _ends(attacks[attack][s])))
        for one in told
        for target, found in one["targets"].items()
        for run, attacks in found["runs"].items()
        for attack in ATTACKS
        if attacks[attack]
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _ends(told: Mapping[str, float] | None) -> tuple[float | None, float | None, float | None]:
    if told is None:
        return None, None, None
    return (None, None, told["below"]) if "below" in told else (told["value"], told["low"], told["high"])


def context(told: Told) -> dict[str, Any]:
    """The rows of the page's table, and the runs that are above the gate."""
    every = [
        (one, target, run, attacks)
        for one in told
        for target, found in one["targets"].items()
        for run, attacks in found["runs"].items()
    ]
    above = [
        f"{run} at {one['client']}" + (f" (target {target})" if len(one["targets"]) > 1 else "")
        for one, target, run, attacks in every
        if any(_reveals(attacks[k], one["untrained"]) for k in ATTACKS)
    ]
    every += [(one, "", "untrained", {"loss": one["untrained"], "calibrated": None}) for one in told]
    return {"rows": [_row(*entry) for entry in every], "above": above, "gate": GATE}


def _reveals(attack: Mapping[str, Any] | None, untrained: Mapping[str, Any] | None) -> bool:
    """Whether an attack does better than the gate, than chance and than the same attack on the untrained model."""
    if not attack or not attack["auc"]:
        return False
    floor = max(0.5, untrained["auc"]["value"] if untrained and untrained["auc"] else 0.5)
    return bool(attack["auc"]["value"] > GATE and attack["auc"]["low"] > floor)


def _row(one: Mapping[str, Any], target: str, run: str, attacks: Mapping[str, Any]) -> dict[str, Any]:
    plain, calibrated = attacks["loss"] or {}, attacks["calibrated"] or {}
    rates = [(calibrated or plain).get(name) for name in RATES]
    return {
        "hospital": one["client"],
        "target": target,
        "run": run,
        "cells": [plain.get("auc"), calibrated.get("auc"), *rates],
    }


def needs(study: Study) -> bool:
    return any(found["runs"] for one in study.membership for found in one["targets"].values())


SECTION = Section(
    84,
    "Membership inference",
    needs,
    tables=lambda study: {"membership": frame(study.membership)},
    context=lambda study: context(study.membership),
)
