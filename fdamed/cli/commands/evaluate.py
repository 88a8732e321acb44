"""Score the finished seeds of one run on the test split of one client.

The predictions stay in the client's folder.

Examples:
    fdamed evaluate --config config/config.yaml --run gp --target edema --client edema --seeds 0 1 2
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fdamed.cli.options import add_config, add_run, read_config
from fdamed.config.runs import Run
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, read_json, write_json
from fdamed.pipeline.paths import Places, needed, weights_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fdamed.data.loader import Labeled
    from fdamed.models.flat import FlatModel

GROUP = "run", 5
REPLICATES = 2000
"""Draws behind an interval over patients: its ends are then sure to about a twentieth of its width."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_run(parser, several_seeds=True)
    parser.add_argument("--client", required=True, help="the hospital whose test split judges")
    parser.add_argument("--threads", type=int, default=1)


def run(arguments: argparse.Namespace) -> None:
    import torch

    from fdamed.cli.commands.federate import federated
    from fdamed.data.loader import load
    from fdamed.pipeline.clients import resident

    config = read_config(arguments)
    if arguments.client not in config.split.clients:
        fix = f"Choose one of: {', '.join(config.split.clients)}."
        raise FdamedError(f"the configuration has no hospital {arguments.client!r}", "command line", fix)
    specs = {s: federated(config, arguments.run_name, arguments.target, s) for s in arguments.seeds}
    torch.set_num_threads(arguments.threads)
    model = resident(config)
    at_target = arguments.client == arguments.target
    for seed, spec in specs.items():
        noise = config.noise_of(spec) if at_target else 0.0
        data = load(Places.of(config).client(arguments.client), splits=("test",), noise=noise)
        _score(config, arguments.run_name, spec, arguments.target, seed, arguments.client, model, data)


def _score(
    config: Config, name: str, spec: Run, target: str, seed: int, client: str, model: FlatModel, data: Labeled
) -> None:
    from fdamed.core.rng import stream
    from fdamed.evaluation.metrics import scores
    from fdamed.training.local import predict

    places = Places.of(config)
    folder = places.run(name, target, seed)
    model = trained(config, spec, name, target, seed, client, model)
    p = predict(model, data, rng=stream(seed, client, "test", "noise"))
    patient = keep_predictions(places, client, name, target, seed, data.y, p)
    record: dict[str, Any] = {
        "study": config.study,
        "run": name,
        "method": spec.method,
        "title": read_json(folder / "run.json")["title"],
        "target": target,
        "seed": seed,
        "client": client,
        "split": "test",
        **scores(data.y, p),
        "bootstrap": over_patients(config, client, data.y, p, patient),
    }
    write_json(folder / "scores" / f"{client}.json", record)


def trained(config: Config, spec: Run, name: str, target: str, seed: int, client: str, model: FlatModel) -> FlatModel:
    """The model with which a run predicts at a hospital: `model`, filled, or the hospital's own."""
    from fdamed.pipeline.personalized_models import kept_model, own_path, shared_model
    from fdamed.pipeline.phases import phases

    places = Places.of(config)
    folder = places.run(name, target, seed)
    method = phases(config, spec)[-1].method
    if method.keeps:
        path = needed(own_path(places, client, name, target, seed), "federate")
        kept = kept_model(config, method, path)
        if kept is None:
            fix = "Choose the target; a hospital that never took part has no model."
            if client == target:
                fix = "Look into the run's log for the messages that it missed; more rounds may help."
            raise FdamedError(f"{client} has no whole model of its own in this run", str(path), fix)
        return kept
    if method.parts:
        return shared_model(config, method, folder / "theta.safetensors")
    model.load(weights_in(folder / "theta.safetensors", "federate", model.layout))
    return model


def over_patients(
    config: Config, client: str, y: NDArray[Any], p: NDArray[Any], patient: NDArray[Any]
) -> dict[str, Any]:
    """Score -> 95 % interval when other patients of this hospital had come; the same draws for every run."""
    from fdamed.core.rng import stream
    from fdamed.evaluation.bootstrap import bootstrap

    return bootstrap(y, p, patient, stream(0, config.study, client, "bootstrap"), REPLICATES).told()


def keep_predictions(
    places: Places, client: str, name: str, target: str, seed: int, y: NDArray[Any], p: NDArray[Any]
) -> NDArray[Any]:
    """Keep the probabilities of the hospital's test images in its own folder, and tell whose images they are."""
    import pandas as pd

    rows = pd.read_parquet(places.client(client) / "order.parquet")
    rows = rows[rows["split"] == "test"]
    known = [c for c in ("patient", "sex", "age", "race", "view", "scanner") if c in rows.columns]
    frame = rows[known].assign(y=y)
    chances = {"score": p[:, 1]} if p.shape[1] == 2 else {f"score_{c}": p[:, c] for c in range(p.shape[1])}
    frame = frame.assign(**chances)
    with atomic(places.predictions(client, name, target, seed)) as draft:
        frame.to_parquet(draft, index=False)
    patients: NDArray[Any] = frame["patient"].to_numpy()
    return patients
