"""fdamed evaluate: score one finished run at one hospital; the predictions stay in the hospital's folder."""

from __future__ import annotations

import argparse
from typing import Any

from fdamed.files import atomic, read_json, write_json
from fdamed.stages.places import Places, add_config, add_run, needed, read_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_run(parser)
    parser.add_argument("--party", required=True, help="the hospital whose test split judges")
    parser.add_argument("--threads", type=int, default=1)


def run(arguments: argparse.Namespace) -> None:
    import torch
    from safetensors.torch import load_file

    from fdamed.data.loader import load
    from fdamed.evaluate.metrics import scores
    from fdamed.models.flat import vector_from
    from fdamed.stages.federate import chosen, resident
    from fdamed.train import predict

    config = read_config(arguments)
    name, target, seed, party = arguments.run_name, arguments.target, arguments.seed, arguments.party
    spec = chosen(config, name, target, seed)
    places = Places.of(config)
    folder = places.run(name, target, seed)
    torch.set_num_threads(arguments.threads)
    model = resident(config)
    model.load(vector_from(load_file(needed(folder / "theta.safetensors", "federate")), model.layout))
    data = load(places.party(party), splits=("test",))
    p = predict(model, data)
    _keep_predictions(places, party, name, target, seed, data, p)
    record: dict[str, Any] = {
        "cohort": config.cohort,
        "run": name,
        "method": spec.method,
        "title": read_json(folder / "run.json")["title"],
        "target": target,
        "seed": seed,
        "party": party,
        "split": "test",
        "n": len(data),
        "positives": int(data.y.sum()),
        **scores(data.y, p),
    }
    write_json(folder / "scores" / f"{party}.json", record)


def _keep_predictions(places: Places, party: str, name: str, target: str, seed: int, data: Any, p: Any) -> None:
    import pandas as pd

    rows = pd.read_parquet(places.party(party) / "order.parquet")
    rows = rows[rows["split"] == "test"]
    frame = rows[["patient", "sex", "age", "race", "view"]].assign(y=data.y, score=p)
    with atomic(places.predictions(party, name, target, seed)) as draft:
        frame.to_parquet(draft, index=False)
