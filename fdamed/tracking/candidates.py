"""Selects, on validation labels, the model of each target for MLflow's registry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from fdamed.config.loader import catalog
from fdamed.config.study import Config
from fdamed.core.run_record import Record
from fdamed.tracking.models import Candidate

SCORES = ("val/auc", "val/acc")
"""Selection criteria: the first that every seed has."""


Save = Callable[[Record, Path, str], None]
"""Writes MLflow's model folder of a run, given the model's identity."""


def offered(config: Config, records: list[Record], save: Save) -> list[Candidate]:
    """One model per target: the best seed of the run with the best mean score on the validation split.

    Never selected by a test score. Runs that no real target could have (the oracle), that have no model (classical
    methods) or whose model stays with its client are not considered.
    """
    known = catalog()
    out = []
    for target in config.split.targets:
        standing = defaultdict(list)
        for record in records:
            facts = [known[phase["method"]] for phase in record.phases]
            seen = any(each["every_target_label"] for each in facts)  # also by an earlier phase: its model goes on
            barred = seen or facts[-1]["own_models"] or facts[-1].get("classical")
            if record.target == target and not barred:
                standing[record.run].append(record)
        best = chosen(standing)
        if best:
            record, score, value = best
            out.append(_candidate(config, record, f"best mean {score} over the seeds, {value:.3f} in this one", save))
    return out


def chosen(standing: dict[str, list[Record]]) -> tuple[Record, str, float] | None:
    """The record, the score that selected it, and its value; None: no run has a validation score."""
    for score in SCORES:
        values = {run: [_last(r, score) for r in seeds] for run, seeds in standing.items()}
        judged = {run: [v for v in found if v is not None] for run, found in values.items() if None not in found}
        if judged:
            run = max(judged, key=lambda name: mean(judged[name]))
            value, record = max(zip(judged[run], standing[run], strict=True), key=lambda pair: pair[0])
            return record, score, value
    return None


def _last(record: Record, score: str) -> float | None:
    value = record.rounds[-1].get(score) if record.rounds else None
    return None if value is None else float(value)


def _candidate(config: Config, record: Record, why: str, save: Save) -> Candidate:
    return Candidate(
        name=f"{config.study}-{record.target}",
        key=record.key,
        digest=record.weights,
        why=f"{record.run}, seed {record.seed}: {why}, chosen on the validation split.",
        params={"run": record.run, "method": record.method, "target": record.target, "seed": str(record.seed)},
        save=lambda folder, identity: save(record, folder, identity),
    )
