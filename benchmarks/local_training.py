"""Local training of ResNet-18 against a hand-written PyTorch loop in the best memory format, at 64, 128 and 224 pixels.

`python -m benchmarks.local_training [--repeats 3] [--threads 1]` prints one JSON line: for each size images a second of
`fit`, of the loop with contiguous and with channels_last tensors and, with --half, of the latter under bfloat16
autocast; `reach` = fit / best loop, all taken in turns in one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F

from fdamed.config.study import Model, Recipe
from fdamed.core.rng import Stream
from fdamed.data.loader import Labeled
from fdamed.models.backbone import build, initialize
from fdamed.models.flat import FlatModel
from fdamed.training.local import fit

BATCH = 32
IMAGES = {64: 96, 128: 64, 224: 32}


def data_of(side: int) -> Labeled:
    rng = np.random.default_rng(0)
    n = IMAGES[side]
    return Labeled(rng.integers(0, 255, (n, side, side), dtype=np.uint8), rng.integers(0, 2, n), {})


def by_hand(data: Labeled, memory_format: torch.memory_format, half: bool = False) -> Callable[[], None]:
    """Somebody's own loop: model, fused Adam, shuffled batches out of memory."""
    net = build(Model())
    initialize(net, torch.Generator().manual_seed(0))
    net = net.to(memory_format=memory_format)
    net.train()
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.y)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)

    def epoch() -> None:
        order = torch.randperm(len(data))
        for at in range(0, len(data), BATCH):
            rows = order[at : at + BATCH]
            x = images[rows].unsqueeze(1).float().div_(255.0).to(memory_format=memory_format)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = F.cross_entropy(net(x), labels[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return epoch


def ours(data: Labeled) -> Callable[[], None]:
    net = build(Model())
    initialize(net, torch.Generator().manual_seed(0))
    model = FlatModel(net)
    recipe = Recipe(lr=1e-3, batch=BATCH)
    return lambda: fit(model, data, recipe, Stream(0)) and None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--half", action="store_true", help="also bfloat16 autocast, which may be very slow")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    out: dict[str, object] = {"benchmark": "local", "threads": given.threads}
    for side, n in IMAGES.items():
        data = data_of(side)
        loops = {
            "fit": ours(data),
            "contiguous": by_hand(data, torch.contiguous_format),
            "channels_last": by_hand(data, torch.channels_last),
        }
        if given.half:
            loops["bfloat16"] = by_hand(data, torch.channels_last, half=True)
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        for turn in range(given.repeats + 1):
            for name, loop in loops.items():
                begin = time.process_time()
                loop()
                if turn:
                    seconds[name].append((time.process_time() - begin) / given.threads)
        speed = {name: round(n / statistics.median(s), 1) for name, s in seconds.items()}
        pairs = [min(seconds[k][i] for k in loops if k != "fit") / seconds["fit"][i] for i in range(given.repeats)]
        out[str(side)] = speed | {"reach": round(statistics.median(pairs), 3)}
        print(side, out[str(side)], file=sys.stderr, flush=True)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
