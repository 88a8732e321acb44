"""The 837 source batches of a round of the FedGP paper's Fashion-MNIST study against a bare PyTorch loop.

`python -m benchmarks.fashion` prints one JSON line: CPU seconds a round, ratio = fdamed / bare loop. They take turns,
93 batches (one source's epoch) at a time, in one process with one thread. Images: the Debian package
dataset-fashion-mnist where it is installed, random bytes of the same shape elsewhere (the convolutions' backward pass
skips what ReLU turned off, so the figures differ a little).
"""

from __future__ import annotations

import gzip
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from fdamed.config.study import Recipe
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled
from fdamed.models.cnn import Cnn, default_init
from fdamed.models.flat import FlatModel
from fdamed.training.local import fit

PLACE = Path("/usr/share/datasets/fashion-mnist")
SOURCES, BATCHES, BATCH, LR = 9, 93, 64, 0.01
EACH = BATCHES * BATCH


def idx(path: Path) -> NDArray[np.uint8]:
    """An array in the IDX format of MNIST, compressed."""
    with gzip.open(path) as file:
        content = file.read()
    shape = np.frombuffer(content, ">i4", content[3], 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def sources() -> tuple[str, list[Labeled]]:
    """Nine hospitals of 5,952 images."""
    if PLACE.is_dir():
        kind = "fashion-mnist"
        images, labels = idx(PLACE / "train-images-idx3-ubyte.gz"), idx(PLACE / "train-labels-idx1-ubyte.gz")
    else:
        kind, rng = "random bytes", np.random.default_rng(0)
        images = rng.integers(0, 256, (SOURCES * EACH, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, SOURCES * EACH, dtype=np.uint8)
    cuts = [slice(at, at + EACH) for at in range(0, SOURCES * EACH, EACH)]
    return kind, [Labeled(images[cut].copy(), labels[cut].astype(np.int64), {}) for cut in cuts]


def plain() -> nn.Sequential:
    """The same network as anybody would write it."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def bare_epoch(net: nn.Module, data: Labeled) -> float:
    """Data in memory, a fresh fused Adam; the mean loss."""
    optimizer = torch.optim.Adam(net.parameters(), lr=LR, fused=True)
    images, labels, order = torch.from_numpy(data.images), torch.from_numpy(data.y), torch.randperm(len(data))
    total = 0.0
    for at in range(0, len(data), BATCH):
        rows = order[at : at + BATCH]
        loss = F.cross_entropy(net(images[rows].unsqueeze(1).float().div_(255.0)), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return total / BATCHES


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind, sets = sources()
    bare, ours = plain(), Cnn()
    default_init(bare, torch.Generator().manual_seed(0))
    default_init(ours, torch.Generator().manual_seed(0))
    model, recipe = FlatModel(ours), Recipe(lr=LR, batch=BATCH)
    start, bare_start = model.read(), {k: v.clone() for k, v in bare.state_dict().items()}
    pairs, losses = [], []
    for number, data in enumerate([sets[0], *sets]):
        model.load(start), bare.load_state_dict(bare_start)
        begin = time.process_time()
        theirs = bare_epoch(bare, data)
        middle = time.process_time()
        outcome = fit(model, data, recipe, stream(0, "fashion", number))
        pairs.append((time.process_time() - middle, middle - begin))
        losses.append((outcome.loss, theirs))
    fdamed_s, bare_s = (sum(column) for column in zip(*pairs[1:], strict=True))
    print(
        json.dumps(
            {
                "benchmark": "fashion",
                "fdamed_s": round(fdamed_s, 3),
                "bare_s": round(bare_s, 3),
                "ratio": round(fdamed_s / bare_s, 4),
                "ratio_median": round(statistics.median(a / b for a, b in pairs[1:]), 4),
                "fdamed_ms_a_batch": round(1000 * fdamed_s / SOURCES / BATCHES, 3),
                "bare_ms_a_batch": round(1000 * bare_s / SOURCES / BATCHES, 3),
                "losses": [round(statistics.fmean(column), 3) for column in zip(*losses, strict=True)],
                "threads": torch.get_num_threads(),
                "images": kind,
            }
        )
    )


if __name__ == "__main__":
    main()
