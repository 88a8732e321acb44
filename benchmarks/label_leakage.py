"""How often the last layer's bias gives away how many of a batch were positive, after one plain step at the start.

`python -m benchmarks.label_leakage` prints one JSON line. The naive attacker takes every prediction for one half.
"""

from __future__ import annotations

import json

import numpy as np
import torch

from fdamed.config.study import Model, Recipe
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled
from fdamed.models.backbone import build, initialize
from fdamed.models.flat import FlatModel
from fdamed.training.local import fit

TRIALS, BATCHES, SIDE, RATE = 200, (1, 16, 64), 32, 0.1


def guessed(batch: int, trial: int) -> bool:
    """Whether the attacker has the exact number of positives of this batch."""
    net = build(Model(width=0.125, norm="group"))
    initialize(net, stream(trial, "net").torch)
    rng = stream(trial, "batch", batch).numpy
    y = rng.integers(0, 2, batch)
    images = rng.integers(0, 120, (batch, SIDE, SIDE))
    images[:, 8:24, 8:24] += 60 * y[:, None, None]
    model = FlatModel(net)
    before = net.head.bias.detach().clone()
    recipe = Recipe(lr=RATE, batch=max(2, batch), optimizer="sgd")
    fit(model, Labeled(images.astype(np.uint8), y, {}), recipe, stream(trial, "order"))
    gradient = float((before - net.head.bias.detach())[1]) / RATE  # mean(p - y)
    return round(batch * (0.5 - gradient)) == int(y.sum())


def main() -> None:
    torch.set_num_threads(1)
    print(json.dumps({str(b): sum(guessed(b, t) for t in range(TRIALS)) for b in BATCHES} | {"trials": TRIALS}))


if __name__ == "__main__":
    main()
