"""Small clients for tests: a few bright and dark images, a network with BatchNorm, nothing on disk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fdamed.methods  # noqa: F401  (a hospital in a process of its own must know the steps)
from fdamed.config.privacy import NO_MINIMUM
from fdamed.config.runs import Auxiliary
from fdamed.config.study import Recipe
from fdamed.config.train import Faults
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled
from fdamed.federation.client import Client, Step
from fdamed.federation.method import REGISTRY, Method, description
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess, Transport, Wrapper
from fdamed.federation.transport.faulty import Faulty
from fdamed.federation.transport.multiprocess import Processes
from fdamed.models.backbone import initialize
from fdamed.models.flat import AUXILIARY, FlatModel
from fdamed.models.heads import initial_heads

RELEASE = frozenset({"weights", "update", "statistic", "scalar", "count"})
NAMES = ("north", "east", "south", "target")
SIZES = {"north": 14, "east": 9, "south": 11, "target": 6}
SIDE = 8


class Tiny(nn.Module):
    """A network of the real one's shape: features, head, BatchNorm, a few hundred parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.hidden = nn.Linear(8, 4)
        self.head = nn.Linear(4, 2)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.hidden(torch.relu(self.norm(self.conv(x))).mean((2, 3))))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def model(share: bool = False, device: str = "cpu") -> FlatModel:
    """The network, with an auxiliary head for sex if it is shared."""
    network = Tiny()
    initialize(network, stream(0, "test").torch)
    if share:
        network.add_module(AUXILIARY, nn.ModuleDict({"sex": nn.Linear(4, 2)}))
        initial_heads(network, 5)
    return FlatModel(network, device)


def images(name: str) -> Labeled:
    """Positives are brighter in the middle, each hospital with its own exposure."""
    rng = stream(7, name).numpy
    n = SIZES[name]
    y = np.arange(n) % 2
    x = rng.integers(0, 90, (n, SIDE, SIDE)) + 10 * NAMES.index(name)
    x[:, 2:6, 2:6] += 60 * y[:, None, None]
    sex = np.where(np.arange(n) % 3 == 0, -1, np.arange(n) % 2)
    return Labeled(x.astype(np.uint8), y.astype(np.int64), {"sex": sex.astype(np.int64)})


def hospital(
    name: str,
    labels: bool = True,
    auxiliary: bool = False,
    share: bool = False,
    resident: FlatModel | None = None,
    sgd: bool = False,
    device: str = "cpu",
) -> Client:
    """`auxiliary`: a source has the task sex, with a head of its own or, if it is shared, with the network's."""
    target = name == "target"
    data = images(name)
    recipe = Recipe(lr=0.01 if target else 0.02, batch=4, optimizer="sgd" if sgd else "adam")
    own = FlatModel(nn.ModuleDict({"sex": nn.Linear(4, 2)}), device) if auxiliary and not share and not target else None
    return Client(
        name=name,
        role="target" if target else "source",
        data=data if labels or not target else data.without_labels(),
        model=resident or model(share, device),
        recipe=recipe,
        seed=5,
        release=RELEASE,
        smallest_batch=2,
        minimum=NO_MINIMUM,
        auxiliary=Auxiliary(heads=("sex",), alpha=0.5, share=share) if auxiliary and not target else None,
        heads=own,
    )


def in_process(names: tuple[str, ...] = NAMES, device: str = "cpu", **options: bool) -> Server:
    resident = model(options.get("share", False), device)
    clients = {n: hospital(n, resident=resident, device=device, **options) for n in names}
    return Server(InProcess(clients), "target", "test")


def processes(names: tuple[str, ...], release: frozenset[str] = RELEASE, **options: bool) -> Server:
    builders = {n: partial(hospital, n, **options) for n in names}
    layout = model(options.get("share", False)).layout
    transport = Processes(builders, layout, "test", dict.fromkeys(names, release))
    return Server(transport, "target", "test")


class Altered(Wrapper):
    """A transport on which `answer(client, step, nth, msg)` replaces `inner.deliver`, which it may call."""

    def __init__(self, inner: Transport, answer: Callable[[str, Step, int, Any], Any]) -> None:
        super().__init__(inner)
        self._answer = answer

    def deliver(self, client: str, step: Step, nth: int, msg: Any) -> Any:
        return self._answer(client, step, nth, msg)


def unreliable_server(server: Server, faults: Faults, seed: int, quorum: int = 1) -> Server:
    """The server, with these faults between it and its clients."""
    server.quorum = quorum
    server.transport = Faulty(server.transport, faults, server.target, seed)
    return server


def clients_of(server: Server) -> dict[str, Client]:
    """The clients of a server in this process, whatever wraps its transport."""
    transport = server.transport
    while isinstance(transport, Wrapper):
        transport = transport.inner
    assert isinstance(transport, InProcess)
    return transport.clients


def no_judge(theta: Tensor) -> dict[str, float | None]:
    return {}


def theta(share: bool = False) -> Tensor:
    return model(share).read()


def live_theta() -> Tensor:
    """A start whose features are above zero at every hospital, also without training; those of `theta` are zero."""
    resident = model()
    with torch.no_grad():
        resident.module.hidden.bias.fill_(0.5)
    return resident.read()


def registered(name: str) -> Method[Any]:
    """A method with its defaults; of choices that need plain SGD, with the first that does not."""
    options = description(REGISTRY[name])["options"]
    sgd = REGISTRY[name].needs_sgd or {}
    return REGISTRY[name](**{key: next(c for c in options[key]["choices"] if c != sgd[key]) for key in sgd})


def suited(name: str) -> dict[str, bool]:
    """The clients that `registered` of this method trains with."""
    return {"labels": REGISTRY[name].target_labels, "sgd": REGISTRY[name].needs_sgd == {}}


class Rebuilt(InProcess):
    """Every question meets a client that was just built; only its state and its release policy survived."""

    def deliver(self, client, step, nth, msg):
        old = self.clients[client]
        labels, sgd = isinstance(old.data, Labeled), old.recipe.optimizer == "sgd"
        tasks = {"auxiliary": old.auxiliary is not None, "share": bool(old.model.layout.heads)}
        self.clients[client] = hospital(client, labels=labels, sgd=sgd, **tasks)
        self.clients[client].memory = {k: v.clone() for k, v in old.memory.items()}
        self.clients[client].release = old.release
        return super().deliver(client, step, nth, msg)


def rebuilt(**options: bool) -> Server:
    return Server(Rebuilt({n: hospital(n, **options) for n in NAMES}), "target", "test")


def sources_and_target(server: Server) -> tuple[str, ...]:
    return (*server.sources, server.target)
