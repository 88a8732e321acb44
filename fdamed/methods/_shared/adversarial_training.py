"""Local training against small networks: what FADA, f-DANN, f-DAN, FedSR and FedRF-TCA do inside a client.

The extractor runs forward and backward once a step, whatever the number of losses on its features: they are computed
on a leaf tensor with the features' values, whose gradient then continues into the extractor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdamed.core.rng import Stream, stream
from fdamed.federation.client import Client
from fdamed.methods._shared.local_training import auxiliary_tasks, finite, keep_auxiliary
from fdamed.models.adversarial import Discriminator, domain_loss, flat_part, frozen
from fdamed.models.flat import FlatModel, Layout, sent, wide
from fdamed.ops.aggregation import mean
from fdamed.training.input import held, prepared
from fdamed.training.local import AuxiliaryTasks, batches, epochs
from fdamed.training.optimizer import Optimizer
from fdamed.training.precision import autocast

if TYPE_CHECKING:
    from fdamed.data.loader import Labeled


@dataclass(frozen=True)
class Batch:
    """Images, at a source labels (B,) and auxiliary labels, and the batch's own random stream."""

    x: Tensor
    y: Tensor | None
    side: dict[str, Tensor]
    rng: Stream


Pull = Callable[[Tensor], Tensor]
"""Features (B, d) -> the scalar that draws them towards the other side."""
Objective = Callable[[Tensor, Batch], Tensor]
"""Features (B, d) -> the scalar whose gradient continues into the extractor; opponents may train on the way."""


@dataclass
class Local:
    """A client's model with everything that trains beside it, for one question."""

    client: Client
    opponents: tuple[FlatModel, ...] = ()
    pace: float = 1.0
    """Share of the learning rate for a network whose only loss is the pull. Adam's steps do not shrink with the loss:
    without it the faintest pull moves the target as fast as the sources' task moves them (decision 0013)."""
    auxiliary: AuxiliaryTasks | None = field(init=False)
    players: tuple[FlatModel, ...] = field(init=False)
    optimizers: tuple[Optimizer, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.auxiliary = auxiliary_tasks(self.client)
        heads = (self.auxiliary.private,) if self.auxiliary and self.auxiliary.private else ()
        self.players = (self.client.model, *heads, *self.opponents)
        recipe = self.client.recipe
        if recipe.optimizer == "adam" and self.client.role == "target":
            recipe = recipe.model_copy(update={"lr": recipe.lr * self.pace})
        others = tuple(Optimizer(p, self.client.recipe) for p in self.players[1:])
        self.optimizers = (Optimizer(self.client.model, recipe), *others)

    def step(self, batch: Batch, objective: Objective) -> Tensor:
        """One step of all players on one batch -> the objective without the auxiliary heads' losses.

        A single image trains with running statistics.
        """
        for p in self.players:
            p.grad.zero_()
            train_mode(p.module, len(batch.x))
        f = features(self.client, batch.x)
        leaf = f.detach().float().requires_grad_()
        value = objective(leaf, batch)
        value.backward()  # type: ignore[no-untyped-call]
        if leaf.grad is not None:
            f.backward(leaf.grad.to(f.dtype))  # type: ignore[no-untyped-call]
        for o in self.optimizers:
            o.step()
        return value.detach() - self.auxiliary.settle() if self.auxiliary else value.detach()

    def task(self, f: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy of the main head and the auxiliary losses; 0 without labels."""
        if batch.y is None:
            return f.sum() * 0.0
        return F.cross_entropy(self.client.model.module.head(f), batch.y) + self.auxiliary_losses(f, batch)  # type: ignore[operator]

    def auxiliary_losses(self, f: Tensor, batch: Batch) -> Tensor | float:
        """alpha times the auxiliary losses."""
        return self.auxiliary.loss(f, batch.side) if self.auxiliary else 0.0

    def epochs(self, objective: Objective) -> float:
        """Train for the client's epochs -> the mean of the objective; 0 without images."""
        total, steps = zero_sum(self.client), 0
        for batch in all_batches(self.client, self.client.rng):
            total, steps = total + self.step(batch, objective), steps + 1
        keep_auxiliary(self.client, self.auxiliary)
        return finite(self.client, float(total) / max(1, steps))

    def resume(self, prefix: str) -> None:
        """Continue with the optimizers' moments that `keep` left in the client's memory."""
        for i, optimizer in enumerate(self.optimizers):
            optimizer.restore(self.client.memory, f"{prefix}{i}.")

    def keep(self, prefix: str) -> None:
        """Keep the auxiliary tasks and the optimizers' moments in the client's memory."""
        keep_auxiliary(self.client, self.auxiliary)
        for i, optimizer in enumerate(self.optimizers):
            optimizer.keep(self.client.memory, f"{prefix}{i}.")


def zero_sum(client: Client) -> Tensor:
    """What losses of steps are added to: a number on the client's device, which nobody waits for."""
    device = client.model.theta.device
    return torch.zeros((), dtype=wide(device), device=device)


def features(client: Client, x: Tensor) -> Tensor:
    """G(x), (B, d), in the client's precision."""
    with autocast(x.device, client.precision):
        f: Tensor = client.model.module.features(x)  # type: ignore[operator]  # every network here has features
    return f


def train_mode(module: nn.Module, images: int) -> None:
    """Training mode, evaluation mode for a single image; a walk over all layers only where the mode changes."""
    if module.training != (images > 1):
        module.train(images > 1)


def all_batches(client: Client, rng: Stream) -> Iterator[Batch]:
    """The batches of the client's epochs, in the order of `fit`."""
    for epoch, drawn in epochs(len(client.data), client.recipe, rng):
        for number, rows in enumerate(drawn):
            yield batch_of(client, rows, rng, epoch, number)


def batch_of(client: Client, rows: Tensor, rng: Stream, epoch: int, number: int) -> Batch:
    """The rows as the client trains on them."""
    data, device, at = client.data, client.model.theta.device, (epoch, number)
    x = prepared(held(data, device), rows, device, rng, *at, augment=client.recipe.augment, noise=data.noise)
    own = rng.child("batch", *at)
    if client.role == "target":
        return Batch(x, None, {}, own)
    known = cast("Labeled", data)
    heads: tuple[str, ...] = client.auxiliary.heads if client.auxiliary else ()
    side = {k: sent(torch.from_numpy(known.auxiliary[k])[rows], device) for k in heads}
    return Batch(x, sent(torch.from_numpy(known.y)[rows], device), side, own)


def numbered_batch(client: Client, number: int, rng: Stream) -> Batch:
    """Batch `number` of an endless training, whose every epoch is shuffled anew."""
    n, size = len(client.data), client.recipe.batch
    epoch, nth = divmod(number, sum(1 for _ in batches(n, size, rng)))
    return batch_of(client, list(batches(n, size, rng.child("order", epoch)))[nth], rng, epoch, nth)


@torch.no_grad()
def training_features(client: Client, x: Tensor) -> Tensor:
    """Features of a batch in training mode, with the running statistics left as they were."""
    before = client.model.theta[client.model.layout.trainable :].clone()
    train_mode(client.model.module, len(x))
    f = features(client, x).float()
    client.model.theta[client.model.layout.trainable :] = before
    return f


def discriminator(client: Client, module: Discriminator, vector: Tensor) -> FlatModel:
    """DI with the weights in `vector`, or with the initial weights that all clients share."""
    return flat_part(module, vector, stream(client.seed, "discriminator"), client.model.theta.device)


@dataclass(frozen=True)
class Game:
    """One side of the game: features step on `pull` times the loss of passing for `toward`; DI learns `label`.

    FADA (L_G): both sides pass for the source, pull > 0. DANN (gradient reversal): each side passes for what it is,
    with pull = -lambda/2. A discriminator whose loss exceeds `saturation` does not pull.
    """

    di: FlatModel
    label: float
    toward: float
    pull: float
    saturation: float = math.inf

    def play(self, seen: Tensor) -> Tensor:
        """The features' loss; DI gets its own gradient on the way."""
        own = domain_loss(self.di.module(seen.detach()), self.label)
        own.backward()  # type: ignore[no-untyped-call]
        if self.pull == 0.0:
            return seen.sum() * 0.0
        with frozen(self.di.module):
            pull = torch.where(own.detach() > self.saturation, 0.0, self.pull)  # the host need not know
            return pull * domain_loss(self.di.module(seen), self.toward)


def progress(round: int, rounds: int) -> float:
    """DANN's ramp 2/(1 + exp(-10 p)) - 1, with p the share of the rounds so far."""
    return 2.0 / (1.0 + math.exp(-10.0 * round / max(1, rounds))) - 1.0


def combined(x: Tensor, layout: Layout, g_s: list[Tensor], w: list[float], g_t: Tensor | None) -> Tensor:
    """x + g_T + sum_i w_i g_i; running statistics are the target's own."""
    out = mean(g_s, w).add_(x)
    if g_t is not None:
        p = layout.trainable
        out[:p] += g_t[:p]
        out[p:] = x[p:] + g_t[p:]
    return out
