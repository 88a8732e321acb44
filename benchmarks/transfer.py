"""CPU seconds of a round of FedGTST's variants and of FedIIR, as a ratio to FedAvg in the same run.

`python -m benchmarks.transfer` prints a table and one JSON line; the federation is that of `benchmarks.methods`. With
four sources one is in phi, a quarter of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import torch

from benchmarks.methods import SOURCES, hospitals
from fdamed.config.study import Model
from fdamed.data.loader import Labeled
from fdamed.federation.method import REGISTRY
from fdamed.models.backbone import build, initialize
from fdamed.models.flat import FlatModel

BASE = "fedavg"
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    BASE: ("fedavg", {}),
    "fediir": ("fediir", {}),
    "fedgtst": ("fedgtst", {}),
    "xi 0": ("fedgtst", {"xi": 0.0}),
    "exact": ("fedgtst", {"hessian": "exact"}),
    "full": ("fedgtst", {"guide": "full"}),
    "full, exact": ("fedgtst", {"guide": "full", "hessian": "exact"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=float, default=0.25, help="of the ResNet-18's blocks")
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--images", type=int, default=96, help="images of a hospital")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), help="these variants beside FedAvg")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rng, shape = np.random.default_rng(0), (given.images, given.side, given.side)
    y = np.arange(given.images) % 2
    sets = [Labeled(rng.integers(0, 256, shape, dtype=np.uint8), y, {}) for _ in range(SOURCES + 1)]
    net = build(Model(width=given.width))
    initialize(net, torch.Generator().manual_seed(0))
    model = FlatModel(net)
    theta = model.read()
    names = [BASE, *(n for n in given.only if n != BASE)]
    methods = {n: REGISTRY[VARIANTS[n][0]](**VARIANTS[n][1]) for n in names}
    servers = {n: hospitals(VARIANTS[n][0], sets, model, sgd=False) for n in names}
    states: dict[str, Any] = {n: m.start(theta) for n, m in methods.items()}
    seconds: dict[str, list[float]] = {n: [] for n in names}
    for repeat in range(given.repeats + 1):
        for n in names:
            servers[n].begin(repeat + 1, given.repeats + 1)
            begin = time.process_time()
            states[n] = methods[n].round(states[n], servers[n])
            seconds[n].append(time.process_time() - begin)
    median = {n: statistics.median(s[1:]) for n, s in seconds.items()}  # the first round warms up and has no guide
    ratio = {
        n: statistics.median(a / b for a, b in zip(s[1:], seconds[BASE][1:], strict=True)) for n, s in seconds.items()
    }
    print(f"{'variant':<20}{'s a round':>12}{'x ' + BASE:>12}")
    for n in sorted(names, key=lambda name: ratio[name]):
        print(f"{n:<20}{median[n]:>12.3f}{ratio[n]:>12.2f}")
    settings = {"width": given.width, "pixels": given.side, "images": given.images, "repeats": given.repeats}
    print(json.dumps({"benchmark": "transfer", **settings, "ratio": {n: round(r, 3) for n, r in ratio.items()}}))


if __name__ == "__main__":
    main()
