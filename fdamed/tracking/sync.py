"""Synchronizes entries with an experiment: creates new ones, replaces changed ones, keeps the rest."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdamed.core.errors import FdamedError
from fdamed.tracking.models import Candidate, register
from fdamed.tracking.payload import Entry
from fdamed.tracking.store import FIX, Store, connect, first_answer, place

BATCH = 1000
"""Metrics per call of MLflow."""


@dataclass(frozen=True)
class Tracked:
    """The result of an import."""

    experiment_id: str
    new: int
    replaced: int
    kept: int
    models: dict[str, int]
    """Registered model -> its version."""


def track(
    entries: Iterable[Entry], candidates: Iterable[Candidate], store: Store, cohort: str, tags: Mapping[str, str]
) -> Tracked:  # fmt: skip
    """Import everything into the experiment `cohort`; call it from one process at a time."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    done = {"new": 0, "replaced": 0, "kept": 0}
    runs: dict[str, str] = {}
    try:
        client = connect(store)
        first_answer(client, store, cohort)
        experiment = _experiment(client, store, cohort, tags)
        known = _known(client, experiment)
        for entry in entries:
            what, runs[entry.key] = _bring(client, experiment, entry, known.get(entry.key, []), store, cohort)
            done[what] += 1
        models = {c.name: register(client, experiment, c, runs[c.key], store, cohort) for c in candidates}
    except (MlflowException, SQLAlchemyError, OSError) as error:
        reason = type(error).__name__ if isinstance(error, OSError) else str(error).splitlines()[0][:200]
        shown = place(store.uri)
        raise FdamedError(f"MLflow refused: {reason.replace(store.uri, shown)}", shown, FIX) from None
    return Tracked(experiment, done["new"], done["replaced"], done["kept"], models)


def _experiment(client: Any, store: Store, cohort: str, tags: Mapping[str, str]) -> str:
    found = client.get_experiment_by_name(cohort)
    if found is None:
        location = f"mlflow-artifacts:/{cohort}" if store.artifacts else None
        identity = str(client.create_experiment(cohort, artifact_location=location))
    else:
        identity = str(found.experiment_id)
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(identity)
    present = found.tags if found else {}
    for key, value in tags.items():
        if present.get(key) != value:
            client.set_experiment_tag(identity, key, value)
    return identity


def _known(client: Any, experiment: str) -> dict[str, list[Any]]:
    """Key -> the active runs with it."""
    out: dict[str, list[Any]] = {}
    token = None
    while True:
        page = client.search_runs([experiment], max_results=1000, page_token=token)
        for run in page:
            out.setdefault(run.data.tags.get("run_key", ""), []).append(run)
        token = page.token
        if not token:
            return out


def _bring(
    client: Any, experiment: str, entry: Entry, old: list[Any], store: Store, cohort: str
) -> tuple[str, str]:  # fmt: skip
    """Import one entry; returns kept, replaced or new, and MLflow's id of the run."""
    same = [r for r in old if r.data.tags.get("content_digest") == entry.digest and r.info.status == "FINISHED"]
    for run in [r for r in old if r not in same[:1]]:
        client.delete_run(run.info.run_id)
        if store.artifacts:
            shutil.rmtree(store.artifacts / cohort / run.info.run_id, ignore_errors=True)
    if same:
        return "kept", same[0].info.run_id
    from mlflow.entities import Metric, Param

    begin, end = entry.span
    tags = {"run_key": entry.key, "content_digest": entry.digest, **entry.tags}
    identity = client.create_run(experiment, start_time=begin, tags=tags, run_name=entry.name).info.run_id
    content = entry.content()
    metrics = [Metric(key, value, when, step) for key, value, when, step in content.points]
    client.log_batch(identity, metrics[:BATCH], [Param(k, v) for k, v in content.params.items()])
    for start in range(BATCH, len(metrics), BATCH):
        client.log_batch(identity, metrics[start : start + BATCH])
    for path, text in content.files.items():
        _keep(client, identity, path, text, store.artifacts / cohort if store.artifacts else None)
    client.set_terminated(identity, "FINISHED", end_time=end)
    return ("replaced" if old else "new"), identity


def _keep(client: Any, run: str, path: str, text: str, folder: Path | None) -> None:
    if folder is None:
        client.log_text(run, text, path)
        return
    # Plain, not synced: a run that was cut short is not FINISHED and is imported again.
    file = folder / run / "artifacts" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
