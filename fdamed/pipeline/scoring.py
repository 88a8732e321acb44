"""The models of finished runs, and their scores at a client; the predictions stay in the client's folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json, write_json
from fdamed.core.rng import stream
from fdamed.data.loader import load
from fdamed.evaluation.bootstrap import bootstrap
from fdamed.evaluation.metrics import scores
from fdamed.federation.storage.client_state import read_state
from fdamed.models.flat import FlatModel, vector_from
from fdamed.pipeline.hospitals.homes import whole_model
from fdamed.pipeline.paths import Places, foreign_weights, needed, tensors_in, weights_in, write_rows
from fdamed.pipeline.selection import StudyRun, all_runs
from fdamed.training.local import predict

REPLICATES = 2000
"""Bootstrap samples behind an interval over patients: its ends are then certain to about 5 % of its width."""


def finished_runs(config: Config, target: str) -> Iterator[StudyRun]:
    """The federated runs of a target that have a model."""
    for run in all_runs(config):
        if run.target == target and not run.classical and (run.folder / "theta.safetensors").exists():
            yield run


def initial_model(config: Config, seed: int, model: FlatModel) -> FlatModel:
    """`model` with the initial weights."""
    model.load(weights_in(Places.of(config).init(seed) / "theta.safetensors", "init", model.layout))
    return model


def tensors_of(run: StudyRun, client: str) -> dict[str, Tensor]:
    """The tensors of the model that a run uses at a client: the run's, or the client's own."""
    if not run.method.keeps:
        return tensors_in(run.folder / "theta.safetensors", "federate")
    path = needed(run.own_model(client), "federate")
    kept = read_state(path)
    if all(name in kept for name in run.method.keeps):
        return kept
    fix = "Choose the target; a client that never took part has no model."
    if client == run.target:
        fix = "See the run's log for the messages that were lost; more rounds may help."
    raise FdamedError(f"{client} has no complete model of its own in this run", str(path), fix)


def trained_model(run: StudyRun, client: str, model: FlatModel) -> FlatModel:
    """The model with which a run predicts at a client: `model` with the run's weights, or one with more parts."""
    method, tensors = run.method, tensors_of(run, client)
    try:
        if not method.keeps and not method.parts:
            model.load(vector_from(tensors, model.layout))
            return model
        if whole := whole_model(run.config, method, tensors):
            return whole
    except (KeyError, ValueError):
        pass
    raise foreign_weights(run.folder / "theta.safetensors", "federate")


def score(run: StudyRun, client: str, model: FlatModel) -> None:
    """Predict the client's test images and write its scores."""
    noise = run.config.noise_of(run.spec) if client == run.target else 0.0
    data = load(run.places.client(client), parts=("test",), noise=noise)
    p = predict(trained_model(run, client, model), data, rng=stream(run.seed, client, "test", "noise"))
    write_scores(run, client, read_json(run.folder / "run.json")["title"], data.y, p)


def write_scores(run: StudyRun, client: str, title: str, y: NDArray[Any], p: NDArray[Any]) -> dict[str, Any]:
    """Score the probabilities of the client's test images; scores and predictions stay in its folder."""
    patient, found = _keep_predictions(run, client, y, p), scores(y, p)
    # The same draws for every run.
    intervals = bootstrap(y, p, patient, stream(0, run.config.study, client, "bootstrap"), REPLICATES)
    record = {
        "study": run.config.study,
        "run": run.name,
        "method": run.spec.method,
        "title": title,
        "target": run.target,
        "seed": run.seed,
        "client": client,
        "split": "test",
        "patients": len(set(patient.tolist())),
        **found,
        "bootstrap": intervals,
    }
    write_json(run.scores(client), record)
    return found


def _keep_predictions(run: StudyRun, client: str, y: NDArray[Any], p: NDArray[Any]) -> NDArray[Any]:
    """Write the predictions to the client's folder; the patients of the test images."""
    rows = pd.read_parquet(run.places.client(client) / "order.parquet")
    rows = rows[rows["split"] == "test"]
    known = [c for c in ("patient", "sex", "age", "race", "view", "scanner") if c in rows.columns]
    columns = {"score": p[:, 1]} if p.shape[1] == 2 else {f"score_{c}": p[:, c] for c in range(p.shape[1])}
    frame = rows[known].assign(y=y).assign(**columns)
    write_rows(run.predictions(client), frame)
    patients: NDArray[Any] = frame["patient"].to_numpy()
    return patients
