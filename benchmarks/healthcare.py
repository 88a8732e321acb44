"""What AuxInfo and gradient projection cost: seconds of a round against FedAvg_Finetune, ResNet-18, four sources.

`python -m benchmarks.healthcare [--side 64] [--width 1]` prints one JSON line; rounds are taken in turns in one run.
The paper's Table 3 has 31.53 s for FedAvg_Finetune and 34.38 s for AuxInfo + GP: a ratio of 1.09.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import torch

from fdamed.config.privacy import NO_MINIMUM
from fdamed.config.runs import Auxiliary
from fdamed.config.study import Model, Recipe
from fdamed.data.loader import Labeled
from fdamed.federation.client import Client
from fdamed.federation.method import Method
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess
from fdamed.methods.finetune import Finetune
from fdamed.methods.gp import GP
from fdamed.models import heads
from fdamed.models.backbone import build, initialize
from fdamed.models.flat import FlatModel

SOURCES, IMAGES, LABELED = 4, 96, 32
TASKS = {"sex": 2, "age": 10, "view": 2}


def hospitals(side: int, model: FlatModel, config: Model, auxiliary: bool) -> dict[str, Client]:
    rng = np.random.default_rng(0)
    out = {}
    for name in [*(f"source{i}" for i in range(SOURCES)), "target"]:
        source = name != "target"
        n = IMAGES if source else LABELED
        b = {k: rng.integers(0, c, n) for k, c in TASKS.items()}
        data = Labeled(rng.integers(0, 255, (n, side, side), dtype=np.uint8), rng.integers(0, 2, n), b)
        with_heads = auxiliary and source
        out[name] = Client(
            name=name,
            role="source" if source else "target",
            data=data,
            model=model,
            recipe=Recipe(lr=1e-3, batch=32) if source else Recipe(lr=2e-4, batch=16),
            seed=0,
            release=frozenset({"weights", "update", "scalar", "count"}),
            auxiliary=Auxiliary(heads=("sex", "age", "view"), share=False) if with_heads else None,
            heads=FlatModel(heads.build(config)) if with_heads else None,
            minimum=NO_MINIMUM,
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    config = Model(width=given.width, heads=("sex", "age", "view"))
    net = build(config)
    initialize(net, torch.Generator().manual_seed(0))
    model = FlatModel(net)
    theta = model.read()
    rows: dict[str, tuple[Method, bool]] = {  # type: ignore[type-arg]
        "finetune": (Finetune(), False),
        "auxinfo": (Finetune(), True),
        "gp": (GP(), False),
        "auxinfo_gp": (GP(), True),
    }
    made = {k: InProcess(hospitals(given.side, model, config, aux)) for k, (_, aux) in rows.items()}
    servers = {k: Server(transport, "target", k) for k, transport in made.items()}
    seconds: dict[str, list[float]] = {k: [] for k in rows}
    for turn in range(given.repeats + 1):
        for name, (method, _) in rows.items():
            servers[name].begin(turn + 1, given.repeats + 1)
            begin = time.process_time()
            method.round(method.start(theta), servers[name])
            if turn:
                seconds[name].append((time.process_time() - begin) / given.threads)
    base = seconds["finetune"]
    ratios = {k: statistics.median(a / b for a, b in zip(s, base, strict=True)) for k, s in seconds.items()}
    print(
        json.dumps(
            {
                "benchmark": "healthcare",
                "side": given.side,
                "width": given.width,
                "seconds": {k: round(statistics.median(s), 3) for k, s in seconds.items()},
                "ratio_to_finetune": {k: round(v, 3) for k, v in ratios.items()},
                "paper": {"auxinfo_gp": 1.09},
            }
        )
    )


if __name__ == "__main__":
    main()
