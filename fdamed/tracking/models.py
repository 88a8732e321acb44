"""A study's adapted models in MLflow's registry: one for each target, selected on validation labels."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from fdamed.config.loader import catalog
from fdamed.config.study import Config
from fdamed.core.run_record import Record
from fdamed.tracking.payload import OURS

ALIAS = "adapted"
"""`models:/NAME@adapted` is the newest version."""
SCORES = ("val/auc", "val/acc")
"""Selection criteria: the first that every seed has."""
Save = Callable[[Record, Path, str], None]
"""Writes MLflow's model folder of a run, given the model's identity."""


@dataclass(frozen=True)
class Candidate:
    """The model that a study offers for a target: its name, its run, and how it was selected."""

    name: str
    record: Record
    why: str


def offered(config: Config, records: list[Record], targets: Sequence[str]) -> list[Candidate]:
    """One model for each of these targets: the best seed of the run with the best mean score on the validation part.

    Never selected by a test score; `targets`: those whose validation part is large enough to choose by. Runs that no
    real target could have (the oracle), that have no model (classical methods) or whose model stays with its client are
    not considered.
    """
    out = []
    for target in targets:
        runs = defaultdict(list)
        for record in records:
            if record.target == target and _may_leave(record):
                runs[record.run].append(record)
        for score in SCORES:
            values: dict[str, list[Any]] = {
                run: [r.rounds[-1].get(score) if r.rounds else None for r in seeds] for run, seeds in runs.items()
            }
            known = {run: found for run, found in values.items() if None not in found}
            if known:
                best = max(known, key=lambda run: mean(known[run]))
                _, record = max(zip(known[best], runs[best], strict=True), key=lambda pair: pair[0])
                # Without the score: a version stays when the smallest cell is changed.
                why = f"{record.run}, seed {record.seed}: best mean {score} over the seeds, on the validation part."
                out.append(Candidate(f"{config.study}-{target}", record, why))
                break
    return out


def _may_leave(record: Record) -> bool:
    methods = [catalog()[phase["method"]] for phase in record.phases]
    if any(method["every_target_label"] for method in methods):  # also in an earlier phase, whose model is trained on
        return False
    return not (methods[-1]["own_models"] or methods[-1].get("classical"))


def register(client: Any, experiment: str, candidate: Candidate, save: Save, run: str, folder: Path | None) -> int:
    """The version that holds the candidate; new weights make a new version. `folder`: artifacts of a local store.

    The same weights of a run that was replaced make one, too, and the one before is removed: its model card may have
    what is hidden now.
    """
    from mlflow.entities import LoggedModelOutput

    record = candidate.record
    if not client.search_registered_models(f"name = '{candidate.name}'"):
        client.create_registered_model(candidate.name)
    for version in client.search_model_versions(f"name = '{candidate.name}'"):
        if version.tags.get("weights_digest") == record.weights and version.run_id == run:
            client.set_registered_model_alias(candidate.name, ALIAS, version.version)
            return int(version.version)
        if version.tags.get("weights_digest") == record.weights and version.tags.get("run_key") == record.key:
            _remove(client, version, folder)
    tags = {"weights_digest": record.weights, "run_key": record.key}
    params = {"run": record.run, "method": record.method, "target": record.target, "seed": str(record.seed)}
    model = client.create_logged_model(
        experiment, name=candidate.name, source_run_id=run, tags=tags | OURS, params=params
    )
    with tempfile.TemporaryDirectory(prefix="fdamed-model-") as scratch:
        made = Path(scratch) / "model"
        save(record, made, model.model_id)
        if folder:
            shutil.copytree(made, folder / "models" / model.model_id / "artifacts")
        else:
            client.log_model_artifacts(model.model_id, str(made))
    client.finalize_logged_model(model.model_id, "READY")
    client.log_outputs(run, [LoggedModelOutput(model.model_id, 0)])
    source = f"models:/{model.model_id}"
    version = client.create_model_version(
        candidate.name, source, run, tags=tags, description=candidate.why, model_id=model.model_id
    )
    client.set_registered_model_alias(candidate.name, ALIAS, version.version)
    return int(version.version)


def _remove(client: Any, version: Any, folder: Path | None) -> None:
    model = version.source.removeprefix("models:/")
    client.delete_model_version(version.name, version.version)
    client.delete_logged_model(model)
    if folder:
        shutil.rmtree(folder / "models" / model, ignore_errors=True)
