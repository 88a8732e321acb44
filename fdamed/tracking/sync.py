"""Synchronizes entries with an experiment: creates new ones, replaces changed ones, keeps the rest."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fdamed.tracking.models import Candidate, Save, register
from fdamed.tracking.payload import Entry
from fdamed.tracking.store import BATCH, Store, connect, forget, found_runs, mlflow_errors


class Tracked(NamedTuple):
    """The result of an import."""

    experiment_id: str
    counts: Mapping[str, int]
    """Number of entries: new, replaced, kept."""
    models: dict[str, int]
    """Registered model -> its version."""


def track(
    entries: Iterable[Entry],
    candidates: Iterable[Candidate],
    save: Save,
    store: Store,
    study: str,
    tags: Mapping[str, str],
) -> Tracked:
    """Import everything into the experiment `study`; call it from one process at a time."""
    counts: Counter[str] = Counter(new=0, replaced=0, kept=0)
    runs: dict[str, str] = {}
    folder = store.artifacts / study if store.artifacts else None
    with mlflow_errors(store):
        client = connect(store)
        experiment = _experiment(client, study, tags, local=folder is not None)
        known = _known(client, experiment)
        for entry in entries:
            what, runs[entry.key] = _import(client, experiment, entry, known[entry.key], folder)
            counts[what] += 1
        forget(store, client, experiment)
        models = {c.name: register(client, experiment, c, save, runs[c.record.key], folder) for c in candidates}
    return Tracked(experiment, counts, models)


def _experiment(client: Any, study: str, tags: Mapping[str, str], local: bool) -> str:
    found = client.get_experiment_by_name(study)
    if found is None:
        location = f"mlflow-artifacts:/{study}" if local else None
        identity = str(client.create_experiment(study, artifact_location=location))
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
    out: dict[str, list[Any]] = defaultdict(list)
    for run in found_runs(client, experiment):
        out[run.data.tags.get("run_key", "")].append(run)
    return out


def _import(client: Any, experiment: str, entry: Entry, old: list[Any], folder: Path | None) -> tuple[str, str]:
    """Import one entry; returns kept, replaced or new, and MLflow's id of the run."""
    same = [r for r in old if r.data.tags.get("content_digest") == entry.digest and r.info.status == "FINISHED"][:1]
    for run in [r for r in old if r not in same]:
        client.delete_run(run.info.run_id)
        if folder:
            shutil.rmtree(folder / run.info.run_id, ignore_errors=True)
    if same:
        return "kept", same[0].info.run_id
    from mlflow.entities import Metric, Param

    begin, end = entry.span
    tags = {"run_key": entry.key, "content_digest": entry.digest, **entry.tags}
    identity = client.create_run(experiment, start_time=begin, tags=tags, run_name=entry.name).info.run_id
    content = entry.content()
    client.log_batch(identity, params=[Param(k, v) for k, v in content.params.items()])
    metrics = [Metric(key, value, when, step) for key, value, when, step in content.points]
    for start in range(0, len(metrics), BATCH):
        client.log_batch(identity, metrics[start : start + BATCH])
    for path, text in content.files.items():
        if folder is None:
            client.log_text(identity, text, path)
        else:  # plain, not synced: a run that was cut short is not FINISHED and is imported again
            file = folder / identity / "artifacts" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    client.set_terminated(identity, "FINISHED", end_time=end)
    return ("replaced" if old else "new"), identity
