"""How much FedGTST's regularizer adds to a step on Fashion-MNIST, and how near its probe is to the exact derivative.

`python -m benchmarks.fedgtst_regularizer` prints, for rounds of FedAvg with ten sources of two
classes (LeNet, plain SGD at 0.03, five sources a round), what the first batch of a round at every source would see:
medians and largest values over sources and seeds. The guide is that of `guide: path` and `cap: 2`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.fashion import PLACE, idx
from fdamed.methods.fedgtst import RegularizedGradient, norm_of
from fdamed.models.cnn import Cnn, default_init
from fdamed.models.flat import FlatModel

SOURCES, BATCH, LR, XI, CAP = 10, 64, 0.03, 5e-4, 2.0
SHOWN = (2, 10, 20)
COLUMNS = ("|J|", "guide", "|reg|/|J| exact", "|reg|/|J| probe", "cosine of both", "penalty/loss")
Set = tuple[Tensor, Tensor]


def sources(folder: Path, images: int, rng: np.random.Generator) -> list[Set]:
    """Images in [0, 1] and labels of two classes each."""
    x, y = (idx(folder / f"train-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1"))
    sets = []
    for first in range(SOURCES):
        classes = [first, int(rng.choice([c for c in range(10) if c != first]))]
        rows = rng.choice(np.flatnonzero(np.isin(y, classes)), images, replace=False)
        sets.append((torch.from_numpy(x[rows]).unsqueeze(1).float() / 255, torch.from_numpy(y[rows].astype(np.int64))))
    return sets


def batch_gradient(model: FlatModel, images: Tensor, labels: Tensor) -> Tensor:
    model.grad.zero_()
    F.cross_entropy(model.module(images), labels).backward()  # type: ignore[no-untyped-call]
    return model.grad


def one_round(model: FlatModel, x: Tensor, sets: list[Set], rng: np.random.Generator) -> tuple[Tensor, float]:
    """The average of five sources' models after an epoch each, and the guide of their paths."""
    models, norms = [], []
    for k in rng.choice(SOURCES, SOURCES // 2, replace=False):
        model.load(x)
        order = torch.from_numpy(rng.permutation(len(sets[k][1])))
        batches = order.split(BATCH)
        path = torch.zeros(model.layout.trainable)
        for rows in batches:
            path += batch_gradient(model, sets[k][0][rows], sets[k][1][rows])
            model.trainable.sub_(model.grad, alpha=LR)
        models.append(model.read())
        norms.append(norm_of(path / len(batches)))
    return torch.stack(models).mean(0), min(max(norms), CAP * float(np.median(norms)))


def first_step(model: FlatModel, x: Tensor, data: Set, guide: float) -> list[float]:
    """COLUMNS for one batch at the common model."""

    def objective() -> Tensor:
        return F.cross_entropy(model.module(data[0]), data[1])

    model.load(x)
    j, loss = batch_gradient(model, *data).clone(), float(objective().detach())
    added = []
    for exact in (True, False):
        model.load(x)
        model.grad.zero_()
        RegularizedGradient((model,), XI, guide, exact)(objective)
        added.append(model.grad - j)
    norm, (exact_norm, probe_norm) = float(j.norm()), (float(a.norm()) for a in added)
    cosine = float(added[0] @ added[1]) / max(exact_norm * probe_norm, 1e-20)
    return [norm, guide, exact_norm / norm, probe_norm / norm, cosine, XI * (norm - guide) ** 2 / loss]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=PLACE, help="the four zipped files of Fashion-MNIST")
    parser.add_argument("--images", type=int, default=1000, help="of a source")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[int, list[list[float]]] = {number: [] for number in SHOWN}
    for seed in range(given.seeds):
        rng = np.random.default_rng(seed)
        sets = sources(given.root, given.images, rng)
        network = Cnn()
        default_init(network, torch.Generator().manual_seed(seed))
        model = FlatModel(network)
        x = model.read()
        for number in range(1, max(SHOWN) + 1):
            x, guide = one_round(model, x, sets, rng)
            for images, labels in sets if number in SHOWN else ():
                rows = torch.from_numpy(rng.permutation(given.images)[:BATCH])
                found[number].append(first_step(model, x, (images[rows], labels[rows]), guide))
    print(f"| after round | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}")
    for number, rows_of in found.items():
        middle, largest = np.median(rows_of, axis=0), np.max(rows_of, axis=0)
        cells = (f"{a:.3g} (at most {b:.3g})" for a, b in zip(middle, largest, strict=True))
        print(f"| {number} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
