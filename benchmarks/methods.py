"""CPU seconds of a round of every registered method, as a ratio to `finetune` and to `fedavg` in the same run.

`python -m benchmarks.methods` prints a table and one JSON line. Four sources and a target in one process, ResNet-18 of
a quarter of the width on 64 pixels; `--full` is the papers' network on 224, or on `--side`. All methods take turns in
every repeat, and the ratio is the median of the ratios within a repeat. Hospitals have the same number of images each;
a target with labels has 1,000 of 2,800 of them labeled, as in config/chexpert.yaml, one
without has all, and the oracle all with labels.
finetune_offline is measured in its FedAvg phase. SCAFFOLD's sources always train with plain SGD, as its option II
needs; with `--sgd` those of every method do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import torch

import fdamed.methods  # noqa: F401  (registers the methods)
from fdamed.config.privacy import NO_MINIMUM
from fdamed.config.study import Model, Recipe
from fdamed.data.loader import Labeled
from fdamed.federation.client import Client, Role
from fdamed.federation.method import REGISTRY
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess
from fdamed.models.backbone import build, initialize
from fdamed.models.flat import FlatModel

SOURCES, BATCH, BASE, PLAIN = 4, 32, "finetune", "fedavg"
LABELED = 1000 / 2800
RELEASE = frozenset({"weights", "update", "statistic", "scalar", "count", "individual"})


def hospitals(name: str, sets: list[Labeled], model: FlatModel, sgd: bool) -> Server:
    """The federation as the method sees it."""
    kind = REGISTRY[name]
    recipe = Recipe(lr=1e-3, batch=BATCH, optimizer="adam" if kind.needs_sgd is None and not sgd else "sgd")
    clients = {}
    for i, data in enumerate(sets):
        client, seen = (f"s{i}", data) if i < SOURCES else ("target", target(data, kind))
        role: Role = "target" if client == "target" else "source"
        clients[client] = Client(client, seen, model, recipe, 0, RELEASE, role=role, minimum=NO_MINIMUM)  # type: ignore[arg-type]
    return Server(InProcess(clients), "target", name)


def target(data: Labeled, kind: Any) -> Any:
    if not kind.target_labels:
        return data.without_labels()
    few = len(data) if kind.every_target_label else max(2, round(len(data) * LABELED))
    return Labeled(data.images[:few], data.y[:few], {})


def ratios(seconds: dict[str, list[float]], base: str) -> dict[str, float]:
    """Median over the repeats, without the first, of a method's seconds over those of `base`."""
    pairs = {name: zip(s[1:], seconds[base][1:], strict=True) for name, s in seconds.items()}
    return {name: statistics.median(a / b for a, b in both) for name, both in pairs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="the whole ResNet-18 on 224 pixels")
    parser.add_argument("--side", type=int, default=0, help="pixels of a side; default: 64, with --full 224")
    parser.add_argument("--images", type=int, default=96, help="images of a hospital")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="these methods beside the two; default: all")
    parser.add_argument("--sgd", action="store_true", help="plain SGD for every method")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    side = given.side or (224 if given.full else 64)
    rng = np.random.default_rng(0)
    sets = [
        Labeled(rng.integers(0, 256, (given.images, side, side), dtype=np.uint8), np.arange(given.images) % 2, {})
        for _ in range(SOURCES + 1)
    ]
    net = build(Model() if given.full else Model(width=0.25))
    initialize(net, torch.Generator().manual_seed(0))
    model = FlatModel(net)
    theta = model.read()
    names = [BASE, PLAIN, *sorted(set(given.only or REGISTRY) - {BASE, PLAIN})]
    servers = {name: hospitals(name, sets, model, given.sgd) for name in names}
    states: dict[str, Any] = {name: REGISTRY[name]().start(theta) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    rounds = 4 * (given.repeats + 1)
    for repeat in range(given.repeats + 1):
        for name in names:
            servers[name].begin(repeat + 1, rounds)
            begin = time.process_time()
            states[name] = REGISTRY[name]().round(states[name], servers[name])
            seconds[name].append(time.process_time() - begin)
    median = {name: statistics.median(s[1:]) for name, s in seconds.items()}  # the first round warms up
    ratio, to_plain = ratios(seconds, BASE), ratios(seconds, PLAIN)
    print(f"{'method':<20}{'s a round':>12}{'x finetune':>12}{'x fedavg':>12}")
    for name in sorted(names, key=lambda n: ratio[n]):
        print(f"{name:<20}{median[name]:>12.3f}{ratio[name]:>12.2f}{to_plain[name]:>12.3f}")
    print(
        json.dumps(
            {
                "benchmark": "methods",
                "network": "resnet18" if given.full else "resnet18/4",
                "pixels": side,
                "images": given.images,
                "threads": given.threads,
                "repeats": given.repeats,
                "seconds": {name: round(median[name], 3) for name in names},
                "ratio": {name: round(ratio[name], 3) for name in names},
                "ratio_to_fedavg": {name: round(to_plain[name], 3) for name in names},
            }
        )
    )


if __name__ == "__main__":
    main()
