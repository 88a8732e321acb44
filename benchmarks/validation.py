"""What validation costs: its share of the CPU time of a FedAvg round, ResNet-18, four sources.

`python -m benchmarks.validation [--robust]` prints one JSON line; `share` is the time inside the checks over the whole
round, both from the same rounds; with --robust norms and directions are compared too.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import fdamed.federation.runner as loop
from benchmarks.round import BATCH, IMAGES, SIDE, SOURCES, fresh
from fdamed.config.privacy import NO_MINIMUM
from fdamed.config.study import Recipe
from fdamed.config.train import Directions, Norms, Validation
from fdamed.data.loader import Labeled
from fdamed.federation.client import Client, Role
from fdamed.federation.method import Model
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess
from fdamed.methods.fedavg import FedAvg
from fdamed.models.flat import FlatModel

REPEATS = 2
spent = [0.0]


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        begin = time.process_time()
        out = function(*arguments, **options)
        spent[0] += time.process_time() - begin
        return out

    return call


def main() -> None:
    torch.set_num_threads(1)
    robust = Validation(norms=Norms(), directions=Directions()) if "--robust" in sys.argv else Validation()
    healthy = timed(loop.healthy)
    rng = np.random.default_rng(0)
    model = FlatModel(fresh())
    names = [*(f"s{i}" for i in range(SOURCES)), "target"]
    release = frozenset({"weights", "count", "scalar"})
    clients = {}
    for name in names:
        data = Labeled(rng.integers(0, 256, (IMAGES, SIDE, SIDE), dtype=np.uint8), np.arange(IMAGES) % 2, {})
        role: Role = "target" if name == "target" else "source"
        clients[name] = Client(
            name, data, model, Recipe(lr=1e-3, batch=BATCH), 0, release, role=role, minimum=NO_MINIMUM
        )
    server = Server(InProcess(clients), "target", "fedavg", robust)
    server.validator.images = dict.fromkeys(names, IMAGES)
    server.validator.class_shares = dict.fromkeys(names, (0.5, 0.5))
    server.validator.check = timed(server.validator.check)  # type: ignore[method-assign]
    state, shares, rounds = Model(x=model.read()), [], []
    for repeat in range(REPEATS + 1):
        server.begin(repeat + 1, REPEATS + 1)
        spent[0], begin = 0.0, time.process_time()
        state = healthy(FedAvg().round(state, server), server.layout)
        whole = time.process_time() - begin
        shares.append(spent[0] / whole)
        rounds.append(whole)
    found = {"benchmark": "validation", "share": round(statistics.median(shares[1:]), 5)}
    print(json.dumps(found | {"round_cpu_s": round(statistics.median(rounds[1:]), 2), "images": SOURCES * IMAGES}))


if __name__ == "__main__":
    main()
