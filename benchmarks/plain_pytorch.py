"""The target's own rows of the FedGP paper's Table 6 in plain PyTorch: a witness for docs/results/fashion_mnist.md.

`python -m benchmarks.plain_pytorch --seed 0` prints, for Target Only (step 1) and half of its step (0.5), the accuracy
of the last of 50 rounds, the mean of the last five and the mean of rounds 3, 6 and 9. Layers, initialization,
partition, Adam and loop are PyTorch's and NumPy's; nothing of fdamed is used. Two rounds of FedAvg on nine sources come
first, as in the authors' code. Needs the Debian package dataset-fashion-mnist, or `--root`.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

SHOWN = (3, 6, 9, *range(46, 51))


def read(root: Path, name: str, head: int) -> Tensor:
    with gzip.open(root / f"{name}.gz") as file:
        return torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=head).copy())


def network() -> nn.Sequential:
    first, second = (nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)), (nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2))
    linear = (nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
    return nn.Sequential(*first, *second, nn.Flatten(), *linear)


def seen(x: Tensor, noise: float) -> Tensor:
    clean = x.float() / 255
    return clean + noise * torch.randn_like(clean) if noise else clean


def epoch(net: nn.Module, x: Tensor, y: Tensor, lr: float, batch: int, noise: float = 0.0) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    for rows in torch.randperm(len(x)).split(batch):
        optimizer.zero_grad()
        F.cross_entropy(net(seen(x[rows], noise)), y[rows]).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(net: nn.Module, x: Tensor, y: Tensor, noise: float) -> float:
    parts = zip(x.split(500), y.split(500), strict=True)
    return 100 * sum(int((net(seen(a, noise)).argmax(1) == b).sum()) for a, b in parts) / len(y)


def between(a: nn.Module, b: nn.Module, share: float) -> dict[str, Tensor]:
    other = b.state_dict()
    return {k: v + share * (other[k] - v) for k, v in a.state_dict().items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, nargs="+", default=[0.005], help="the target's learning rate")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.4, 0.8])
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    x, x_test = (read(given.root, f"{p}-images-idx3-ubyte", 16).view(-1, 1, 28, 28) for p in ("train", "t10k"))
    y, y_test = (read(given.root, f"{p}-labels-idx1-ubyte", 8).long() for p in ("train", "t10k"))
    parts = np.array_split(np.random.default_rng(given.seed).permutation(len(x)), 10)
    start = network()
    for _ in range(2):
        trained = []
        for rows in parts[:9]:
            trained.append(copy.deepcopy(start))
            epoch(trained[-1], x[rows], y[rows], 0.01, 64)
        states = [net.state_dict() for net in trained]
        start.load_state_dict({k: torch.stack([s[k] for s in states]).mean(0) for k in states[0]})
    few = torch.from_numpy(parts[9])[torch.randperm(len(parts[9]))[:100]]
    for lr in given.lr:
        for noise in given.noise:
            for step in (1.0, 0.5):
                net, curve = copy.deepcopy(start), {}
                for r in range(1, 51):
                    moved = copy.deepcopy(net)
                    epoch(moved, x[few], y[few], lr, 16, noise)
                    net.load_state_dict(between(net, moved, step))
                    if r in SHOWN:
                        curve[r] = accuracy(net, x_test, y_test, noise)
                found = {
                    "last": curve[50],
                    "last_five": float(np.mean([curve[r] for r in range(46, 51)])),
                    "early": float(np.mean([curve[r] for r in (3, 6, 9)])),
                }
                row = {"seed": given.seed, "lr": lr, "noise": noise, "step": step}
                print(json.dumps(row | {k: round(v, 1) for k, v in found.items()}), flush=True)


if __name__ == "__main__":
    main()
