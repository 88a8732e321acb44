"""What noise at the sources costs in accuracy and time: FedAvg over two hospitals of 800 drawn images, one a patient.

`python -m benchmarks.private_training` prints one JSON line: AUC on 1,000 other images, the larger epsilon, seconds of
CPU; and for two networks how much a private gradient of 64 images costs beside a plain one, with all 64 differentiated
at once and with eight at a time, as ratios taken in one run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from fdamed.config.study import Model, Recipe
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled
from fdamed.evaluation.metrics import scores
from fdamed.federation.client import Client
from fdamed.federation.privacy_budget import log_costs
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess
from fdamed.methods.fedavg import FedAvg
from fdamed.models.backbone import build, initialize
from fdamed.models.flat import FlatModel
from fdamed.training import dp_sgd as private
from fdamed.training.dp_sgd import Mechanism
from fdamed.training.local import predict

IMAGES, SIDE, ROUNDS, RECIPE = 800, 28, 4, Recipe(lr=2e-3, batch=32)
SETTINGS: dict[str, tuple[float, bool] | None] = {
    "none": None,
    "0.5": (0.5, False),
    "1": (1.0, False),
    "1, secure": (1.0, True),
    "2": (2.0, False),
}
RELEASE = frozenset({"weights", "count", "scalar"})


def drawn(name: str, n: int) -> Labeled:
    """Noise in which positives are a little brighter in the middle."""
    rng = stream(0, name).numpy
    y = np.arange(n) % 2
    x = rng.integers(0, 200, (n, SIDE, SIDE))
    x[:, 8:20, 8:20] += 14 * y[:, None, None]
    return Labeled(x.astype(np.uint8), y.astype(np.int64), {})


def measured(setting: tuple[float, bool] | None) -> dict[str, Any]:
    net = build(Model(backbone="cnn", side=SIDE))
    initialize(net, stream(0, "net").torch)
    model, clients = FlatModel(net), {}
    for name in ("north", "south", "target"):
        clients[name] = Client(
            name, drawn(name, IMAGES), model, RECIPE, 0, RELEASE, role="target" if name == "target" else "source"
        )
        if setting and name != "target":
            clients[name].noise = Mechanism(setting[0], 1.0, np.arange(IMAGES), secure=setting[1])
    begin = time.process_time()
    after = log_costs if setting else None
    server = Server(InProcess(clients), "target", "fedavg")
    theta, record = run(FedAvg(), server, model.read(), ROUNDS, lambda theta: {}, after=after)
    seconds = time.process_time() - begin
    model.load(theta)
    test = drawn("test", 1000)
    spent = [v for k, v in record.metrics[-1].items() if k.startswith("privacy/epsilon/") and v is not None]
    auc = scores(test.y, predict(model, test))["auc"]
    return {"auc": auc, "epsilon": max(spent) if spent else None, "seconds": round(seconds, 1)}


def ratios(settings: Model, side: int, repeats: int = 5) -> dict[str, float]:
    """CPU of a private gradient beside that of a plain one on the same 64 images; the least of some repeats."""
    net = build(settings)
    initialize(net, stream(0, "net").torch)
    model, mechanism = FlatModel(net), Mechanism(1.0, 1.0, np.arange(64))
    x, y = torch.rand(64, 1, side, side), torch.arange(64) % 2

    def plain() -> None:
        model.grad.zero_()
        functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]

    def clipped() -> None:
        mechanism.gradient(model, x, y, 64, stream(0, "noise"))

    usual, least = private.MOST, _least(plain, repeats)
    out = {"at once": _least(clipped, repeats) / least}
    private.MOST = private.FEWEST
    out["by eights"] = _least(clipped, repeats) / least
    private.MOST = usual
    return {name: round(value, 1) for name, value in out.items()}


def _least(work: Callable[[], None], repeats: int) -> float:
    work()
    found = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return min(found)


def main() -> None:
    torch.set_num_threads(1)
    slower = {
        "cnn": ratios(Model(backbone="cnn", side=SIDE), SIDE),
        "resnet18": ratios(Model(width=0.125, norm="group"), 32),
    }
    print(json.dumps({name: measured(setting) for name, setting in SETTINGS.items()} | {"slower": slower}))


if __name__ == "__main__":
    main()
