"""What speaks against using or sharing a model, from the study's own files: a score like guessing, members revealed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdamed.config.study import Config
from fdamed.core.files import read_json
from fdamed.core.run_record import Record
from fdamed.evaluation.intervals import listed
from fdamed.evaluation.membership_inference import GATE, reveals
from fdamed.evaluation.metrics import GUESS

Attacks = dict[str, Mapping[str, Any]]
"""Hospital -> the attacks on this run's models, and that on the untrained one."""


def cautions(config: Config, record: Record) -> list[str]:
    """Sentences for the export command and the model card; none: nothing speaks against it."""
    out = []
    auc = record.scores.get(record.target, {}).get("auc")
    audit = _optional(_root(config) / "audit" / f"{record.target}.json")
    known = audit.get("scores", {}).get("auc", {}).get(record.run) or {}
    if auc is not None and auc <= GUESS:
        out.append(f"its AUC on the test part of {record.target} is {auc:.3f}: no better than guessing ({GUESS})")
    elif known.get("low") is not None and known["low"] <= GUESS:
        ends = f"{known['value']:.3f} ({known['low']:.3f} to {known['high']:.3f} over patients and seeds)"
        out.append(f"the AUC of {record.run} cannot be distinguished from guessing ({GUESS}): {ends}")
    found = [client for client, attacks in attacked(config, record).items() if revealing(attacks)]
    if found:
        out.append(
            f"membership inference recognizes training patients of {listed(found)} (AUC above {GATE:.2f} and above the "
            "untrained model's): the model should not be released as it is"
        )
    return out


def attacked(config: Config, record: Record) -> Attacks:
    """The membership inference of each hospital on this run at this target, as far as the study has it."""
    out: Attacks = {}
    for client in config.split.clients if config.audit.membership else ():
        found = _optional(_root(config) / "membership" / f"{client}.json")
        here = found.get("targets", {}).get(record.target, {}).get("runs", {}).get(record.run)
        if here:
            out[client] = {"loss": here["loss"], "calibrated": here["calibrated"], "untrained": found["untrained"]}
    return out


def revealing(attacks: Mapping[str, Any]) -> bool:
    return any(reveals(attacks[name], attacks["untrained"]) for name in ("loss", "calibrated"))


def _root(config: Config) -> Path:
    return Path(config.results) / config.study


def _optional(path: Path) -> dict[str, Any]:
    return dict(read_json(path)) if path.is_file() else {}
