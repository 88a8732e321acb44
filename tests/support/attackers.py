"""A small federation that learns in seconds, with one client whose answers are altered on their way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fdamed.methods  # noqa: F401
from fdamed.config.privacy import NO_MINIMUM
from fdamed.config.study import Recipe
from fdamed.config.train import Directions, Norms, Validation
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled
from fdamed.evaluation.metrics import scores
from fdamed.federation.client import Client, Step
from fdamed.federation.messages import kinds
from fdamed.federation.method import REGISTRY, Method
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.storage.checkpoint import Record
from fdamed.federation.transport.base import InProcess
from fdamed.models.backbone import initialize
from fdamed.models.flat import FlatModel, Layout
from fdamed.pipeline.phases import join
from fdamed.training.local import predict
from tests.support.federation import RELEASE, SIDE, Altered, clients_of, no_judge, registered, suited

SOURCES = ("bern", "genoa", "lyon", "mallory")
ATTACKER, TARGET = "mallory", "target"
IMAGES = {"bern": 96, "genoa": 72, "lyon": 120, "mallory": 96, "target": 48}
ROUNDS = 8
ROBUST = Validation(norms=Norms(), directions=Directions())
"""Robust aggregation switched on."""
FASTER = {"kd3a": {"gate_begin": 0.6, "gate_end": 0.7, "heads": "average"}}
"""KD3A's defaults learn nothing in eight rounds, and what learns nothing cannot be spoiled; others have their own."""
WARMUP = 2
"""Rounds of FedAvg before methods that keep their own models, and before baselines that no source could spoil."""


# --- the federation ---------------------------------------------------------------------------------------------------


class Small(nn.Module):
    """A network of the real one's shape that sees where something is bright: about 800 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.hidden = nn.Linear(72, 8)
        self.head = nn.Linear(8, 2)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.hidden(torch.relu(self.norm(self.conv(x))).flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def model() -> FlatModel:
    network = Small()
    initialize(network, stream(0, "test").torch)
    return FlatModel(network)


def radiographs(name: str, n: int, seed: int, positives: float = 0.5) -> Labeled:
    """Positives are a little brighter in the middle, in noise; each hospital has an exposure of its own."""
    rng = stream(seed, "radiographs", name).numpy
    y = (rng.permutation(n) < positives * n).astype(np.int64)
    exposure = 12 * (SOURCES.index(name) if name in SOURCES else 2)
    x = rng.normal(90 + exposure, 30, (n, SIDE, SIDE))
    x[:, 2:6, 2:6] += 26 * y[:, None, None]
    return Labeled(x.clip(0, 255).astype(np.uint8), y, {})


def hospital(
    name: str, seed: int, resident: FlatModel, labels: bool = True, positives: float = 0.5, sgd: bool = False
) -> Client:
    data = radiographs(name, IMAGES[name], seed, positives)
    return Client(
        name=name,
        role="target" if name == TARGET else "source",
        data=data if labels or name != TARGET else data.without_labels(),
        model=resident,
        recipe=Recipe(lr=0.004 if name == TARGET else 0.01, batch=16, optimizer="sgd" if sgd else "adam"),
        seed=seed,
        release=RELEASE | {"individual"},
        smallest_batch=2,
        minimum=NO_MINIMUM,
    )


@dataclass
class Result:
    theta: Tensor
    record: Record
    auc: float
    memories: dict[str, dict[str, Tensor]]


@cache
def federate(
    name: str,
    seed: int,
    attack: str | None = None,
    sources: tuple[str, ...] = SOURCES,
    rounds: int = ROUNDS,
) -> Result:
    """The whole run of a method, its attacker with this attack; the AUC is on 400 other images of the target."""
    resident = model()
    clients = {p: hospital(p, seed, resident, **suited(name)) for p in (*sources, TARGET)}
    server = Attacked(clients, attack, seed)
    method = dataclasses.replace(registered(name), **FASTER.get(name, {}))
    done = WARMUP if method.keeps or (method.baseline and not method.asks_sources) else 0
    theta, record = model().read(), Record()
    if done:
        theta, record = run(REGISTRY["fedavg"](), server, theta, done, no_judge)
    theta, more = run(method, server, theta, rounds, no_judge, done=done)
    join(record, more, 0)
    judged = judge_model(method, server, theta)
    test = radiographs(TARGET, 400, seed + 1000)
    score = scores(test.y, predict(judged, test)[:, 1].astype(np.float64))["auc"]
    assert score is not None
    return Result(theta, record, score, {p: client.memory for p, client in clients.items()})


def judge_model(method: Method[Any], server: Server, theta: Tensor) -> FlatModel:
    if method.keeps:
        module = method.predictor(Small(), clients_of(server)[TARGET].memory)
    elif method.parts:
        module = method.predictor(Small(), method.named(theta, server.layout))
    else:
        judged = model()
        judged.load(theta)
        return judged
    assert module is not None
    return FlatModel(module)


# --- the attacks ------------------------------------------------------------------------------------------------------


@dataclass
class Change:
    """What of an answer's tensor is a change: the answer, and where the question had it begin (zeros: nowhere)."""

    value: Tensor
    base: Tensor
    rng: torch.Generator

    @property
    def own(self) -> Tensor:
        return self.value - self.base


def huge_at_random(c: Change) -> Tensor:
    noise = torch.randn(c.own.shape, generator=c.rng, dtype=c.own.dtype)
    return c.base + noise * (1e6 * c.own.norm() / noise.norm())


def hijacked(c: Change) -> Tensor:
    """1e6 times as long, and nearly orthogonal: the cosine with the honest update is 0.001."""
    if not float(c.own.norm()) > 0.0:
        return huge_at_random(c)
    u = (c.own / c.own.norm()).flatten()
    v = torch.randn(u.shape, generator=c.rng, dtype=u.dtype)
    v -= (v @ u) * u
    v /= v.norm()
    return c.base + (1e6 * c.own.norm() * (0.001 * u + v)).view(c.own.shape)


def one_infinite(c: Change) -> Tensor:
    out = c.value.clone()
    out.view(-1)[len(out.view(-1)) // 2] = float("inf")
    return out


TENSORS: dict[str, Callable[[Change], Tensor]] = {
    "nan": lambda c: torch.full_like(c.value, float("nan")),
    "infinite": one_infinite,
    "huge, aligned": lambda c: c.base + 1e6 * c.own,
    "huge, at random": huge_at_random,
    "huge, nearly orthogonal": hijacked,
    "sign flip": lambda c: c.base - c.own,
    "all zero": lambda c: c.base.clone(),
    "one number for all": lambda c: c.value.flatten()[:1].clone(),
    "one number too few": lambda c: c.value.flatten()[:-1].clone(),
    "double precision": lambda c: c.value.double() if c.value.dtype != torch.float64 else c.value.float(),
}
COUNTS: dict[str, int] = {"a count of 10^12": 10**12, "a count of 10^8": 10**8, "a negative count": -35}
BUFFERS: dict[str, float] = {"negative variances": -24.5, "nan buffers": float("nan")}
OTHERS = ("replayed", "scalars times 10^6", "scalars divided by 10^12")
ATTACKS = (*TENSORS, *COUNTS, *BUFFERS, *OTHERS)


def shares(data: Labeled) -> tuple[float, float]:
    """Of the two classes, as a cohort declares them."""
    rate = float(data.y.mean())
    return 1.0 - rate, rate


class Attacked(Server):
    """All clients in this process, norms and directions checked; what mallory answers is altered on its way."""

    def __init__(
        self, clients: dict[str, Client], attack: str | None, seed: int, validation: Validation = ROBUST
    ) -> None:
        super().__init__(InProcess(clients), TARGET, "test", validation)
        self.transport = Altered(self.transport, partial(self.answer, self.transport))
        self.validator.images = {name: len(client.data) for name, client in clients.items()}
        self.validator.class_shares = {c: shares(client.data) for c, client in clients.items() if c != TARGET}
        self.attack = attack
        self.rng = torch.Generator().manual_seed(seed)
        self.last: Tensor | None = None
        self.first: dict[str, Any] = {}

    def answer(self, honest: InProcess, client: str, step: Step, nth: int, msg: Any) -> Any:
        reply = honest.deliver(client, step, nth, msg)
        if client != ATTACKER or self.attack is None:
            return reply
        if "x" in kinds(type(msg)):
            self.last = msg.x
        if self.attack == "replayed":
            return self.first.setdefault(step.name, reply)
        return dataclasses.replace(reply, **altered(self, reply, msg))


def altered(server: Attacked, reply: Any, msg: Any) -> dict[str, Any]:
    """The fields of an answer that the attack changes."""
    out: dict[str, Any] = {}
    for name, kind in kinds(type(reply)).items():
        value = getattr(reply, name)
        if isinstance(value, Tensor) and value.numel():
            out[name] = tensor(server, name, kind, value, msg)
        elif kind == "count" and name == "n" and server.attack in COUNTS:
            out[name] = COUNTS[server.attack]
        elif kind == "scalar" and server.attack == "scalars times 10^6":
            out[name] = value * 1e6
        elif kind == "scalar" and server.attack == "scalars divided by 10^12":
            out[name] = value / 1e12
    return out


def tensor(server: Attacked, name: str, kind: str, value: Tensor, msg: Any) -> Tensor:
    attack = server.attack or ""
    if attack in BUFFERS:
        return with_buffers(server, kind, value, BUFFERS[attack]) if kind in ("weights", "update") else value
    if attack not in TENSORS:
        return value
    asked = getattr(msg, name, None)
    begun = server.last if kind == "weights" else asked if name in ("s", "di", "d") else None
    base = begun if isinstance(begun, Tensor) and begun.shape == value.shape else torch.zeros_like(value)
    return TENSORS[attack](Change(value, base, server.rng))


def with_buffers(server: Attacked, kind: str, value: Tensor, wrong: float) -> Tensor:
    out = value.clone()
    for segment in variances(server.layout):
        out[segment] = wrong
    return out


def variances(layout: Layout) -> list[slice]:
    return [slice(s.start, s.stop) for s in layout if s.name.endswith("running_var")]
