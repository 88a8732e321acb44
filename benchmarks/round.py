"""A FedAvg round through the whole machinery against a bare PyTorch loop that takes the same steps.

`python -m benchmarks.round` prints one JSON line; ratio = machinery / bare loop, the median over turns in the same run.
Seconds are CPU seconds of one thread: other work on the machine changes them less than the seconds of a clock.
"""

from __future__ import annotations

import json
import resource
import statistics
import time

import numpy as np
import torch
from torch.nn import functional as F

from fdamed.config.privacy import NO_MINIMUM
from fdamed.config.study import Model, Recipe
from fdamed.data.loader import Labeled
from fdamed.federation.client import Client
from fdamed.federation.method import Model as Weights
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess
from fdamed.methods.fedavg import FedAvg
from fdamed.models.backbone import Net, build, initialize
from fdamed.models.flat import FlatModel

SOURCES, IMAGES, SIDE, BATCH, REPEATS = 4, 128, 64, 32, 7


def fresh() -> Net:
    network = build(Model())
    initialize(network, torch.Generator().manual_seed(0))
    return network


def bare_round(network: Net, start: dict[str, torch.Tensor], sets: list[Labeled]) -> dict[str, torch.Tensor]:
    """What somebody would write by hand: load, Adam, average."""
    sums: dict[str, torch.Tensor] = {}
    for data in sets:
        network.load_state_dict(start)
        network.train()
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
        order = torch.randperm(len(data))
        images, labels = torch.from_numpy(data.images), torch.from_numpy(data.y)
        for at in range(0, len(data), BATCH):
            rows = order[at : at + BATCH]
            x = images[rows].unsqueeze(1).float().div_(255.0)
            loss = F.cross_entropy(network(x), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for name, tensor in network.state_dict().items():
            sums[name] = sums[name] + tensor / SOURCES if name in sums else tensor / SOURCES
    return sums


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    sets = [
        Labeled(rng.integers(0, 256, (IMAGES, SIDE, SIDE), dtype=np.uint8), np.arange(IMAGES) % 2, {})
        for _ in range(SOURCES + 1)
    ]
    model = FlatModel(fresh())
    names = [f"s{i}" for i in range(SOURCES)] + ["target"]
    released = frozenset({"weights", "count", "scalar"})
    clients = {
        name: Client(
            name,
            data,
            model,
            Recipe(lr=1e-3, batch=BATCH),
            0,
            released,
            role="target" if name == "target" else "source",
            minimum=NO_MINIMUM,
        )
        for name, data in zip(names, sets, strict=True)
    }
    server = Server(InProcess(clients), "target", "fedavg")
    by_hand = fresh().to(memory_format=torch.channels_last)
    start = {k: v.clone() for k, v in by_hand.state_dict().items()}
    state = Weights(x=model.read())
    pairs = []
    for repeat in range(REPEATS + 1):
        server.begin(repeat + 1, REPEATS + 1)
        begin = time.process_time()
        FedAvg().round(state, server)
        middle = time.process_time()
        bare_round(by_hand, start, sets[:SOURCES])
        pairs.append((middle - begin, time.process_time() - middle))
    counted = pairs[1:]
    ours, theirs = (statistics.median(column) for column in zip(*counted, strict=True))
    print(
        json.dumps(
            {
                "benchmark": "round",
                "fdamed_s": round(ours, 3),
                "bare_s": round(theirs, 3),
                "ratio": round(statistics.median(a / b for a, b in counted), 4),
                "images_per_s": round(SOURCES * IMAGES / ours, 1),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
