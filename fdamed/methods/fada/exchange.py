"""FADA's published wire: features of every batch go to the server, their gradients come back.

A step of a pair costs 4 b d bytes up from each side and as many down, 16 b d in all. A client keeps its model in its
memory between the questions of a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fdamed.core.rng import Stream
from fdamed.federation.absences import DroppedOut
from fdamed.federation.client import Client, step
from fdamed.federation.messages import ROWS, Check, Count, Features, Images, Scalar, Statistic, Weights, message
from fdamed.federation.server import Server
from fdamed.methods._shared.adversarial_training import Batch, numbered_batch, training_features
from fdamed.methods._shared.local_training import finite
from fdamed.methods.fada.disentanglement import branches, branches_layout, discriminator_for, side_of
from fdamed.models.adversarial import domain_loss, flat_part, frozen, half, shape_of
from fdamed.models.flat import FlatModel, Layout
from fdamed.training.optimizer import Optimizer, adam

X, KEY, PACE, D, RATES = (f"exchange.{name}" for name in ("x", "key", "pace", "d", "rates"))
"""In a client's memory during a round, beside the optimizers' moments."""


@message
class Start:
    """The model of the round, the branches and the weights of their losses; `apart` (0 or 1): model III."""

    x: Weights
    pace: Scalar
    d: Statistic
    rates: Statistic
    apart: Count


@message
class Ready:
    steps: Count


@message
class BatchNumber:
    """Which batch; at the end, how many pairs of batches there were."""

    number: Count


@message
class BatchFeatures:
    f: Annotated[Features, Check(shape=lambda _, layout: (ROWS, shape_of(layout).d))]


@message
class InvariantFeatures:
    f: Annotated[Features, Check(shape=lambda _, layout: (ROWS, half(shape_of(layout).d)))]


@message
class Gradients:
    """The gradient of each row of features that was sent."""

    number: Count
    g: Features


@message
class Loss:
    loss: Scalar


def _branches_shape(ask: BatchNumber, layout: Layout) -> tuple[int, ...]:
    return (branches_layout(layout).size,)


@message
class Ended:
    """The model after the round, with its branches where it has them."""

    x: Weights
    d: Annotated[Statistic, Check(shape=_branches_shape, module=branches_layout, optional=True)]
    n: Images


@step("feature_exchange.start")
def start(client: Client, ask: Start) -> Ready:
    """Remember the model and this round's order of images."""
    _forget(client)
    key = torch.randint(0, 2**62, (1,), generator=client.rng.torch)
    client.memory |= {X: ask.x.clone(), KEY: key, PACE: torch.tensor([ask.pace], dtype=torch.float64)}
    client.memory[RATES] = ask.rates.clone()
    if ask.apart:
        client.memory[D] = branches(client, ask.d).read()
    return Ready(steps=client.local_steps())


@step("feature_exchange.send_features")
def send_features(client: Client, ask: BatchNumber) -> BatchFeatures:
    """The features of one batch."""
    return BatchFeatures(f=_features(client, ask.number).cpu())


@step("feature_exchange.invariant.send_features")
def send_invariant(client: Client, ask: BatchNumber) -> InvariantFeatures:
    """Model III: the invariant half of the features of one batch."""
    f = _features(client, ask.number)
    d = branches(client, client.memory[D]).module.train(len(f) > 1)
    with torch.no_grad():
        return InvariantFeatures(f=d(f)[0].cpu())


@step("feature_exchange.receive_gradients")
def receive_gradients(client: Client, ask: Gradients) -> Loss:
    """One step on the client's own losses and on the gradient of the features that it sent."""
    client.model.load(client.memory[X])
    g, pace = ask.g.to(client.model.theta.device), float(client.memory[PACE])
    side = side_of(client, lambda f: (f * g).sum(), pace, client.memory.get(D), client.memory[RATES])
    side.local.resume("exchange.")
    loss = float(side.local.step(_batch(client, ask.number), side))
    side.local.keep("exchange.")
    client.memory[X] = client.model.read()
    if side.d:
        client.memory[D] = side.d.read()
    if side.own:
        client.memory["opponents"] = side.own.read()
    return Loss(loss=finite(client, loss))


@step("feature_exchange.end")
def end(client: Client, ask: BatchNumber) -> Ended:
    """The model after the round."""
    x, d = client.memory[X], client.memory.get(D, torch.empty(0))
    _forget(client)
    return Ended(x=x, d=d, n=len(client.data))


STEPS = (start, send_features, send_invariant, receive_gradients, end)


def _forget(client: Client) -> None:
    for name in [k for k in client.memory if k.startswith("exchange.")]:
        del client.memory[name]


def _features(client: Client, number: int) -> Tensor:
    client.model.load(client.memory[X])
    return training_features(client, _batch(client, number).x)


def _batch(client: Client, number: int) -> Batch:
    """Batch `number` of the round, the same in every question about it."""
    return numbered_batch(client, number, Stream(int(client.memory[KEY])))


@dataclass(frozen=True)
class Change:
    """How a round changed a client's model and branches, its number of images, and the mean loss of all sources."""

    g: Tensor
    d: Tensor
    n: int
    loss: float


def exchange(server: Server, ask: Start, di: Discriminators) -> tuple[dict[str, Change], Change]:
    """A round: as many steps of each pair as the source's epochs have -> the sources' changes and the target's.

    A source that drops out between two steps leaves the round. Without images at the target, sources train alone.
    """
    target = server.ask(server.target, start, ask)
    ready: dict[str, Ready] = server.ask_all(server.sources, start, ask)
    losses: list[float] = []
    number, send = 0, send_invariant if ask.apart else send_features
    for turn in range(max((r.steps for r in ready.values()), default=0)):
        for source in [s for s, r in ready.items() if turn < r.steps]:
            try:
                f_s, g_t = server.ask(source, send, BatchNumber(number=turn)).f, None
                g_s = torch.zeros_like(f_s)
                if target.steps:
                    f_t = server.ask(server.target, send, BatchNumber(number=number)).f
                    g_s, g_t = di.gradients(source, f_s, f_t)
                losses.append(server.ask(source, receive_gradients, Gradients(number=turn, g=g_s)).loss)
            except DroppedOut as absent:
                if absent.client == server.target:
                    raise
                del ready[source]
                continue
            if g_t is not None:
                server.ask(server.target, receive_gradients, Gradients(number=number, g=g_t))
            number += 1
    loss = sum(losses) / max(1, len(losses))

    def change(r: Ended) -> Change:
        return Change(g=r.x - ask.x, d=r.d, n=r.n, loss=loss)

    last = BatchNumber(number=number)
    ends = server.ask_all(ready, end, last)
    return {i: change(r) for i, r in ends.items()}, change(server.ask(server.target, end, last))


class Discriminators:
    """The server's discriminators, one for each source and the target, in training for one round."""

    def __init__(self, server: Server, di: Tensor, apart: bool, lr: float, pull: float) -> None:
        self._pull = pull
        self._all: dict[str, tuple[FlatModel, Optimizer]] = {}
        for i, source in enumerate(server.sources):
            module, rng = discriminator_for(server.layout, apart), server.stream("discriminator", source)
            part = flat_part(module, di[i] if di.numel() else di, rng, torch.device("cpu"))
            self._all[source] = (part, adam(part, lr))

    def gradients(self, source: str, f_s: Tensor, f_t: Tensor) -> tuple[Tensor, Tensor]:
        """DI learns to distinguish the domains (L_DI) -> the gradients of L_G, with which both pass for a source."""
        di, optimizer = self._all[source]
        di.grad.zero_()
        (domain_loss(di.module(f_s), 1.0) + domain_loss(di.module(f_t), 0.0)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        s, t = f_s.clone().requires_grad_(), f_t.clone().requires_grad_()
        with frozen(di.module):
            both = domain_loss(di.module(s), 1.0) + domain_loss(di.module(t), 1.0)
            g_s, g_t = torch.autograd.grad(self._pull * both, (s, t))
        return g_s, g_t

    def read(self) -> Tensor:
        """(K, P)."""
        return torch.stack([di.read() for di, _ in self._all.values()])
