"""A round of auto-weighted FedGP and FedDA against a round of FedGP, in the same run, in turns.

`python -m benchmarks.auto_weighting` prints one JSON line. Two cases: ResNet-18 of a quarter of its width on 64-pixel
images, and a small one where everything is overhead. ratio = the auto-weighted round / the FedGP round, medians of CPU
seconds.
"""

from __future__ import annotations

import json
import os
import statistics
import time

import numpy as np
import torch

from fdamed.config.privacy import NO_MINIMUM
from fdamed.config.study import Model, Recipe
from fdamed.data.loader import Labeled
from fdamed.federation.client import Client, Role
from fdamed.federation.method import Model as Weights
from fdamed.federation.method import OneModel
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess
from fdamed.methods.auto_weighted import FedDAAuto, FedGPAuto
from fdamed.methods.fedgp import FedGP
from fdamed.models.backbone import build, initialize
from fdamed.models.flat import FlatModel

SOURCES, REPEATS = 4, 7
CASES = {
    "resnet18, quarter width, 64 px": (64, 0.25, 128, 64),
    "small": (32, 0.125, 64, 32),
}
"""Name -> side, width, images of a source, images of the target."""
RELEASE = frozenset({"weights", "update", "statistic", "scalar", "count"})


def hospitals(side: int, width: float, images: int, labeled: int) -> tuple[Server, Weights]:
    rng = np.random.default_rng(0)
    network = build(Model(width=width))
    initialize(network, torch.Generator().manual_seed(0))
    model = FlatModel(network)
    clients = {}
    for name in [f"s{i}" for i in range(SOURCES)] + ["target"]:
        n = labeled if name == "target" else images
        data = Labeled(rng.integers(0, 256, (n, side, side), dtype=np.uint8), np.arange(n) % 2, {})
        recipe = Recipe(lr=5e-4, batch=16) if name == "target" else Recipe(lr=1e-3, batch=32)
        role: Role = "target" if name == "target" else "source"
        clients[name] = Client(name, data, model, recipe, 0, RELEASE, role=role, minimum=NO_MINIMUM)
    return Server(InProcess(clients), "target", "auto"), Weights(x=model.read())


def measured(case: tuple[int, float, int, int]) -> dict[str, float]:
    server, state = hospitals(*case)
    methods: dict[str, OneModel] = {"fedgp": FedGP(), "fedgp_auto": FedGPAuto(), "fedda_auto": FedDAAuto()}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for repeat in range(REPEATS + 1):
        for name, method in methods.items():
            server.begin(repeat + 1, REPEATS + 1)
            begin = time.process_time()
            method.round(state, server)
            if repeat:
                seconds[name].append(time.process_time() - begin)
    middle = {name: statistics.median(column) for name, column in seconds.items()}
    return {
        "fedgp_s": round(middle["fedgp"], 4),
        "fedgp_auto_ratio": round(middle["fedgp_auto"] / middle["fedgp"], 3),
        "fedda_auto_ratio": round(middle["fedda_auto"] / middle["fedgp"], 3),
        "parameters": server.layout.trainable,
    }


def main() -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    cases = {name: measured(case) for name, case in CASES.items()}
    ratio = max(c[f"{m}_auto_ratio"] for c in cases.values() for m in ("fedgp", "fedda"))
    line = {"benchmark": "auto", "ratio": ratio, "cases": cases, "sources": SOURCES}
    print(json.dumps(line | {"threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()
