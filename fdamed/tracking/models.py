"""A study's adapted models in MLflow's registry: one name per target, a new version if the weights are new."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdamed.tracking.payload import OURS
from fdamed.tracking.store import Store

ALIAS = "adapted"
"""`models:/NAME@adapted` is the newest version."""


@dataclass(frozen=True)
class Candidate:
    """The model that a study offers for a target."""

    name: str
    key: str
    """Of the run that it comes from."""
    digest: str
    """Of its weights."""
    why: str
    """How it was chosen."""
    params: Mapping[str, str]
    save: Callable[[Path, str], None]
    """Writes MLflow's model folder, given the model's identity."""


def register(client: Any, experiment: str, candidate: Candidate, run: str, store: Store, cohort: str) -> int:
    """The version that holds the candidate; an unchanged one is found again."""
    _name(client, candidate.name)
    versions = client.search_model_versions(f"name = '{candidate.name}'")
    for version in versions:
        if version.tags.get("weights_digest") == candidate.digest and version.run_id == run:
            client.set_registered_model_alias(candidate.name, ALIAS, version.version)
            return int(version.version)
    tags = {"weights_digest": candidate.digest, "run_key": candidate.key}
    model = client.create_logged_model(
        experiment, name=candidate.name, source_run_id=run, tags={**tags, **OURS}, params=dict(candidate.params)
    )
    with tempfile.TemporaryDirectory(prefix="fdamed-model-") as scratch:
        folder = Path(scratch) / "model"
        candidate.save(folder, model.model_id)
        if store.artifacts:
            place = store.artifacts / cohort / "models" / model.model_id / "artifacts"
            shutil.copytree(folder, place)
        else:
            client.log_model_artifacts(model.model_id, str(folder))
    client.finalize_logged_model(model.model_id, "READY")
    _show_in_run(client, run, model.model_id)
    made = client.create_model_version(
        candidate.name,
        source=f"models:/{model.model_id}",
        run_id=run,
        tags=tags,
        description=candidate.why,
        model_id=model.model_id,
    )
    client.set_registered_model_alias(candidate.name, ALIAS, made.version)
    return int(made.version)


def _name(client: Any, name: str) -> None:
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name)


def _show_in_run(client: Any, run: str, model: str) -> None:
    from mlflow.entities import LoggedModelOutput

    client.log_outputs(run, [LoggedModelOutput(model, 0)])
