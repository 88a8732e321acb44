"""The published wire of FADA, f-DANN and f-DAN: features of every batch go to the server, their gradients come back.

A step of a pair costs 4 b d bytes up from each side and as many down, 16 b d in all. A hospital keeps its model between
the questions of a round in its memory. Features are asked for as such: a hospital that does not release them refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fdamed.config.study import Recipe
from fdamed.core.rng import Stream, stream
from fdamed.federation.absences import DroppedOut
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Check, Count, Features, Knowledge, Scalar, Statistic, Weights, message
from fdamed.federation.server import Server
from fdamed.methods._shared.adversarial_training import Batch, Local, batch_of, shown
from fdamed.methods._shared.local_training import finite
from fdamed.methods.fada.disentangle import Rates, branches, branches_layout, disentangle, opponents, passing
from fdamed.models.adversarial import Discriminator, domain_loss, flat_part, frozen, half, shape_of
from fdamed.models.flat import FlatModel
from fdamed.training.local import batches
from fdamed.training.optimizer import Optimizer

Critic = Callable[[str, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(source, its features, the target's) -> gradients for both."""
_KEPT = "exchange."


@message
class Start:
    """Where a round begins; `d` with rates (entropy, information, reconstruction) where the feature is taken apart."""

    x: Weights
    d: Statistic
    rates: Statistic
    pace: Scalar
    apart: Count
    on_f: Count


@message
class Ready:
    n: Count
    steps: Count


@message
class Turn:
    number: Count


@message
class Shown:
    f: Features


@message
class Felt:
    """The gradient of each row that was shown."""

    number: Count
    g: Features


@message
class Learned:
    loss: Scalar
    skipped: Count


@message
class Ended:
    """The model after the round, with its branches where it has them."""

    x: Weights
    d: Annotated[Tensor, Knowledge("statistic"), Check(module=branches_layout)]
    n: Count


@step("feature_exchange.start")
def start(client: Client, ask: Start) -> Ready:
    """Remember the model and this round's order of images."""
    forget(client)
    n, size = len(client.data), client.recipe.batch
    key = torch.randint(0, 2**62, (1,), generator=client.rng.torch)
    client.memory |= {f"{_KEPT}x": ask.x.clone(), f"{_KEPT}key": key, f"{_KEPT}on_f": torch.tensor([ask.on_f])}
    client.memory[f"{_KEPT}pace"] = torch.tensor([ask.pace], dtype=torch.float64)
    if ask.apart:
        client.memory |= {f"{_KEPT}d": branches(client, ask.d).read(), f"{_KEPT}rates": ask.rates.clone()}
    steps = sum(1 for _ in batches(n, size, client.rng)) * client.recipe.epochs
    return Ready(n=n, steps=steps)


@step("feature_exchange.send_features")
def show(client: Client, ask: Turn) -> Shown:
    """The features of one batch."""
    client.model.load(client.memory[f"{_KEPT}x"])
    batch = _batch(client, ask.number)
    return Shown(f=shown(client, batch.x, _sees(client)).cpu())


@step("feature_exchange.receive_gradients")
def feel(client: Client, ask: Felt) -> Learned:
    """One step on the hospital's own losses and on the gradient of what it showed."""
    local, objective, skipped = _resume(client, ask.g.to(client.model.theta.device))
    loss = float(local.step(_batch(client, ask.number), objective))
    for i, (player, optimizer) in enumerate(zip(local.players, local.optimizers, strict=True)):
        client.memory |= {f"{_KEPT}{i}.{k}": v.clone() for k, v in optimizer.memory().items()}
        if player is client.model:
            client.memory[f"{_KEPT}x"] = player.read()
    local.keep_heads()
    if f"{_KEPT}d" in client.memory:
        client.memory[f"{_KEPT}d"] = local.opponents[0].read()
        if len(local.opponents) > 1:
            client.memory["opponents"] = local.opponents[1].read()
    return Learned(loss=finite(client, loss), skipped=skipped[0])


@step("feature_exchange.end")
def end(client: Client, ask: Turn) -> Ended:
    """The model that the round has made."""
    x, d = client.memory[f"{_KEPT}x"], client.memory.get(f"{_KEPT}d", torch.empty(0))
    forget(client)
    return Ended(x=x, d=d, n=len(client.data))


STEPS = (start, show, feel, end)


@dataclass(frozen=True)
class Change:
    """What a round has made of a hospital's model and branches, from n images, and the mean loss of all sources."""

    g: Tensor
    d: Tensor
    n: int
    loss: float


def exchange(server: Server, ask: Start, critic: Critic, limit: int = 0) -> tuple[dict[str, Change], Change]:
    """A round of `limit` steps (0: each source's epochs) of every pair: the sources' changes and the target's.

    Who drops out between two steps is out of this round. Without an image at the target sources only learn their task.
    """
    target = server.ask(server.target, start, ask)
    ready: dict[str, Ready] = server.ask_all(server.sources, start, ask)
    losses: list[float] = []
    number = 0
    for turn in range(limit or max((r.steps for r in ready.values()), default=0)):
        for source in [s for s, r in ready.items() if limit or turn < r.steps]:
            try:
                f_s = server.ask(source, show, Turn(number=turn)).f
                if target.steps:
                    g_s, g_t = critic(source, f_s, server.ask(server.target, show, Turn(number=number)).f)
                else:
                    g_s, g_t = torch.zeros_like(f_s), None
                losses.append(server.ask(source, feel, Felt(number=turn, g=g_s)).loss)
            except DroppedOut as absent:
                if absent.client == server.target:
                    raise
                del ready[source]
                continue
            if g_t is not None:
                server.ask(server.target, feel, Felt(number=number, g=g_t))
            number += 1
    loss = sum(losses) / max(1, len(losses))

    def change(r: Ended) -> Change:
        return Change(g=r.x - ask.x, d=r.d, n=r.n, loss=loss)

    ends = server.ask_all(ready, end, Turn(number=0))
    return {i: change(r) for i, r in ends.items()}, change(server.ask(server.target, end, Turn(number=0)))


class Judges:
    """The server's discriminators, one for each source and the target, in training for one round."""

    def __init__(self, server: Server, di: Tensor, width: int, depth: int, halved: bool, lr: float) -> None:
        d = shape_of(server.layout).d
        self._all: dict[str, tuple[FlatModel, Optimizer]] = {}
        for i, source in enumerate(server.sources):
            module = Discriminator(half(d) if halved else d, width, depth, slope=0.2 if depth == 1 else 0.0)
            start_of = stream(0, "discriminator", source)
            part = flat_part(module, di[i] if di.numel() else di, start_of, torch.device("cpu"))
            self._all[source] = (part, Optimizer(part, Recipe(lr=lr)))

    def versus(self, source: str, f_s: Tensor, f_t: Tensor, pull: float, reverse: bool) -> tuple[Tensor, Tensor]:
        """DI learns to tell the sides apart; the gradients that make the features harder to tell.

        `reverse`: DANN, the reversed gradient of the joint mean, at the same weights. Otherwise FADA: L_DI, then L_G.
        """
        di, optimizer = self._all[source]
        s, t = f_s.clone().requires_grad_(), f_t.clone().requires_grad_()
        if reverse:
            with frozen(di.module):
                joint = (domain_loss(di.module(s), 1.0) + domain_loss(di.module(t), 0.0)) / 2
                g_s, g_t = torch.autograd.grad(-pull * joint, (s, t))
            self._learn(di, optimizer, f_s, f_t, 0.5)
            return g_s, g_t
        self._learn(di, optimizer, f_s, f_t, 1.0)
        with frozen(di.module):
            passing_for_source = domain_loss(di.module(s), 1.0) + domain_loss(di.module(t), 1.0)
            g_s, g_t = torch.autograd.grad(pull * passing_for_source, (s, t))
        return g_s, g_t

    def _learn(self, di: FlatModel, optimizer: Optimizer, f_s: Tensor, f_t: Tensor, share: float) -> None:
        di.grad.zero_()
        loss = share * (domain_loss(di.module(f_s), 1.0) + domain_loss(di.module(f_t), 0.0))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def read(self) -> Tensor:
        """(K, P)."""
        return torch.stack([di.read() for di, _ in self._all.values()])


def forget(client: Client) -> None:
    for name in [k for k in client.memory if k.startswith(_KEPT)]:
        del client.memory[name]


def _batch(client: Client, number: int) -> Batch:
    """Batch `number` of the round, the same in every question about it."""
    rng = Stream(int(client.memory[f"{_KEPT}key"]))
    size = client.recipe.batch
    each = sum(1 for _ in batches(len(client.data), size, rng))
    epoch, nth = divmod(number, each)
    rows = list(batches(len(client.data), size, rng.child("order", epoch)))[nth]
    return batch_of(client, rows, rng, epoch, nth)


def _sees(client: Client) -> Callable[[Tensor], Tensor] | None:
    """What the server is shown: the feature, or its invariant half where the feature is taken apart."""
    if f"{_KEPT}d" not in client.memory or int(client.memory[f"{_KEPT}on_f"]):
        return None
    d = branches(client, client.memory[f"{_KEPT}d"])

    def sees(f: Tensor) -> Tensor:
        d.module.train(len(f) > 1)
        half: Tensor = d.module(f)[0]
        return half

    return sees


def _resume(client: Client, g: Tensor) -> tuple[Local, Callable[[Tensor, Batch], Tensor], list[int]]:
    client.model.load(client.memory[f"{_KEPT}x"])

    def pull(seen: Tensor) -> Tensor:
        return (seen * g).sum()

    skipped, pace = [0], float(client.memory[f"{_KEPT}pace"])
    if f"{_KEPT}d" not in client.memory:
        local = Local(client, (), pace)
        objective: Callable[[Tensor, Batch], Tensor] = lambda f, batch: local.task(f, batch) + pull(f)  # noqa: E731
    else:
        d, on_f = branches(client, client.memory[f"{_KEPT}d"]), bool(int(client.memory[f"{_KEPT}on_f"]))
        labeled = client.role == "source"
        others: tuple[FlatModel, ...] = (d, opponents(client)) if labeled else (d,)
        local = Local(client, others, pace)
        if labeled:
            rates = Rates(*client.memory[f"{_KEPT}rates"].tolist())
            objective, skipped = disentangle(d, others[1], rates, local.beside, pull, on_f)
        else:
            objective = passing(d, pull, on_f)
    for i, optimizer in enumerate(local.optimizers):
        start_of = f"{_KEPT}{i}."
        optimizer.remember({k.removeprefix(start_of): v for k, v in client.memory.items() if k.startswith(start_of)})
    return local, objective, skipped
