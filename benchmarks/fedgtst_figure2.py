"""Figure 2 of the FedGTST paper on small data: |mean J_k| and sigma^2 at the common model, round by round.

`python -m benchmarks.fedgtst_figure2` trains FedAvg (xi 0) and FedGTST with several xi and prints one line a round. Ten
sources of two digits each (scikit-learn's digits at 16 pixels), the small CNN, Adam 1e-3, half of the sources a round.
FedGTST's server never sees a Jacobian; here all clients are in this process, and each computes its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from fdamed.config.privacy import NO_MINIMUM
from fdamed.config.study import Model, Recipe
from fdamed.data.loader import Labeled
from fdamed.federation.client import Client
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess
from fdamed.methods._shared.full_gradient import mean_gradient
from fdamed.methods.fedgtst import FedGTST
from fdamed.models.backbone import build, initialize
from fdamed.models.flat import FlatModel

CLASSES, SIDE = 10, 16
RELEASE = frozenset({"weights", "update", "statistic", "scalar", "count"})


def statistics(j: Sequence[Tensor]) -> tuple[float, float]:
    """|mean J_k| and sigma^2 = mean |J_k|^2 - |mean J_k|^2 of Jacobians (P,) (Definition 4)."""
    rows = torch.stack(list(j)).double()
    together = float(rows.mean(0).norm())
    return together, max(0.0, float(rows.square().sum(1).mean()) - together**2)


def clients(model: FlatModel) -> dict[str, Client]:
    """Source k has the digits k and k + 1; the target, which FedGTST does not ask, has all."""
    digits = load_digits()
    images = np.kron(digits.images / 16 * 255, np.ones((2, 2))).astype(np.uint8)
    y = digits.target.astype(np.int64)
    rows = {f"s{k}": np.isin(y, (k, (k + 1) % CLASSES)) for k in range(CLASSES)} | {"target": y >= 0}
    recipe = Recipe(lr=1e-3, batch=32, optimizer="adam")
    return {
        name: Client(
            name,
            Labeled(images[chosen], y[chosen], {}),
            model,
            recipe,
            0,
            RELEASE,
            role="target" if name == "target" else "source",
            minimum=NO_MINIMUM,
        )
        for name, chosen in rows.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--xi", type=float, nargs="*", default=[0.0, 5e-4, 1e-3, 1e-2])
    given = parser.parse_args()
    net = build(Model(backbone="cnn", side=SIDE, classes=CLASSES))
    initialize(net, torch.Generator().manual_seed(0))
    model = FlatModel(net)
    theta = model.read()
    print(f"{'xi':>8}{'round':>8}{'|mean J|':>12}{'sigma^2':>12}")
    for xi in given.xi:
        made = clients(model)
        server = Server(InProcess(made), "target", "fedgtst")
        server.invite(0.5, 0)
        method = FedGTST(xi=xi)
        state = method.start(theta)
        for round in range(1, given.rounds + 1):
            server.begin(round, given.rounds)
            state = method.round(state, server)
            model.load(state.x)
            together, variance = statistics([mean_gradient(made[k]).clone() for k in server.sources])
            print(f"{xi:>8g}{round:>8}{together:>12.4g}{variance:>12.4g}")


if __name__ == "__main__":
    main()
