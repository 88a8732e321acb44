"""FADA's model III inside a client: the feature is split into what the domains share and what they do not.

Losses are in the paper's order (task, alignment, class confusion,
mutual information, reconstruction), all taken at the same weights with one pass through the extractor. D's invariant
branch is linear with a BatchNorm, so that branch and classifier are one linear layer (`folded_head`) and the learned
model keeps the network's own shape. Branches have half the feature's width: the paper's 157 thousand parameters for
four sources.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdamed.core.rng import stream
from fdamed.federation.client import Client
from fdamed.methods._shared.adversarial_training import Batch, Local, Pull
from fdamed.models.adversarial import Discriminator, flat_part, frozen, half, shape_of
from fdamed.models.flat import FlatModel, Layout, layout_of, sent


class Branches(nn.Module):
    """D and C: features (B, d) -> domain-invariant and domain-specific halves; the classifier reads the first."""

    def __init__(self, d: int, classes: int) -> None:
        super().__init__()
        r = half(d)
        self.invariant = nn.Linear(d, r)
        self.invariant_norm = nn.BatchNorm1d(r, affine=False)
        self.specific = nn.Linear(d, r)
        self.specific_norm = nn.BatchNorm1d(r, affine=False)
        self.classifier = nn.Linear(r, classes)

    def forward(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return self.invariant_norm(self.invariant(f)), torch.relu(self.specific_norm(self.specific(f)))


class Mine(nn.Module):
    """M: (f_di, f_ds) (B, r) -> score (B,), the critic of the mutual information (MINE)."""

    def __init__(self, r: int) -> None:
        super().__init__()
        self.x = nn.Linear(r, half(r))
        self.y = nn.Linear(r, half(r), bias=False)
        self.out = nn.Linear(half(r), 1)

    def forward(self, f_di: Tensor, f_ds: Tensor) -> Tensor:
        score: Tensor = self.out(F.leaky_relu(self.x(f_di) + self.y(f_ds), 0.2)).squeeze(1)
        return score


class Opponents(nn.Module):
    """Networks that stay at a source: class identifier CI, mutual-information critic M, reconstructor R."""

    def __init__(self, d: int, classes: int) -> None:
        super().__init__()
        r = half(d)
        self.identifier = nn.Linear(r, classes)
        self.mine = Mine(r)
        self.reconstructor = nn.Linear(2 * r, d)

    def information(self, f_di: Tensor, f_ds: Tensor, order: Tensor) -> Tensor:
        """The critic's estimate of the mutual information of the two halves, with f_ds shuffled by `order`."""
        return mutual_information(self.mine(f_di, f_ds), self.mine(f_di, f_ds[order]))


def uniformity(logits: Tensor) -> Tensor:
    """L_ent: cross-entropy to the uniform distribution, at least log C."""
    return -F.log_softmax(logits.float(), dim=1).mean()


def mutual_information(joint: Tensor, shuffled: Tensor) -> Tensor:
    """Donsker-Varadhan: mean T(joint) - log mean exp T(shuffled)."""
    return joint.float().mean() - (torch.logsumexp(shuffled.float(), 0) - math.log(len(shuffled)))


def branches_layout(layout: Layout) -> Layout:
    """The layout of D and C behind a network of this layout."""
    s = shape_of(layout)
    return layout_of(Branches(s.d, s.classes))


def discriminator_for(layout: Layout, apart: bool) -> Discriminator:
    """DI of the network's features, in model III of their invariant half; as wide as a quarter of the feature."""
    d = shape_of(layout).d
    return Discriminator(half(d) if apart else d, max(2, d // 4))


def branches(client: Client, vector: Tensor) -> FlatModel:
    """D and C with the weights in `vector`, or with the initial weights that all clients share."""
    s = shape_of(client.model.layout)
    return flat_part(Branches(s.d, s.classes), vector, stream(client.seed, "branches"), client.model.theta.device)


def opponents(client: Client) -> FlatModel:
    """CI, M and R, which never leave this client."""
    s, rng = shape_of(client.model.layout), stream(client.seed, client.name, "opponents")
    vector = client.memory.get("opponents", torch.empty(0))
    return flat_part(Opponents(s.d, s.classes), vector, rng, client.model.theta.device)


@torch.no_grad()
def folded_head(d: Tensor, layout: Layout) -> Tensor:
    """Invariant branch and classifier as one linear head, weight (C, d) and bias (C,) flat, exact in evaluation."""
    s = shape_of(layout)
    parts = Branches(s.d, s.classes)
    FlatModel(parts).load(d)
    norm, c = parts.invariant_norm, parts.classifier
    scaled = c.weight / torch.sqrt(norm.running_var + norm.eps)  # type: ignore[arg-type, operator]  # tracked
    bias = scaled @ (parts.invariant.bias - norm.running_mean) + c.bias  # type: ignore[operator]
    return torch.cat([(scaled @ parts.invariant.weight).flatten(), bias])


@dataclass
class Side:
    """One side of the adversarial game, a source's or the target's, for one question: `local.step(batch, side)`."""

    local: Local
    pull: Pull
    d: FlatModel | None = None
    """The branches, in model III."""
    own: FlatModel | None = None
    """CI, M and R, at a source in model III."""
    rates: tuple[float, ...] = ()
    """Weights of class confusion, mutual information and reconstruction."""
    skipped: int = 0
    """Steps without mutual information, because it was not finite."""

    def __call__(self, f: Tensor, batch: Batch) -> Tensor:
        """The loss on features (B, d); all parts but the extractor get their gradients on the way."""
        if self.d is None:
            return self.local.task(f, batch) + self.pull(f)
        if self.own is None:  # the target: its features are pulled, through branches that stay as they are
            with frozen(self.d.module):
                return self.pull(self.d.module(f)[0])
        parts, rivals, y = cast(Branches, self.d.module), cast(Opponents, self.own.module), cast(Tensor, batch.y)
        entropy, information, reconstruction = self.rates
        f_di, f_ds = parts(f)
        task = F.cross_entropy(parts.classifier(f_di), y) + F.cross_entropy(rivals.identifier(f_ds), y)
        with frozen(rivals.identifier):
            confusion = uniformity(rivals.identifier(f_ds))
        apart = reconstruction * F.mse_loss(rivals.reconstructor(torch.cat([f_di, f_ds], 1)), f.detach())
        order = sent(torch.randperm(len(f), generator=batch.rng.child("shuffle").torch), f.device)
        estimate = rivals.information(f_di.detach(), f_ds.detach(), order)
        if not torch.isfinite(estimate):
            self.skipped += 1
        else:
            (-estimate).backward()  # type: ignore[no-untyped-call]  # M maximizes what the branches minimize
            if information:
                apart = apart + information * rivals.information(f_di, f_ds, order)
        # These two shape the branches and the reconstructor; `inputs` keeps them from the extractor and the critic.
        shaped = [p for m in (parts.invariant, parts.specific, rivals.reconstructor) for p in m.parameters()]
        apart.backward(retain_graph=True, inputs=shaped)  # type: ignore[no-untyped-call]
        return task + self.local.auxiliary_losses(f, batch) + entropy * confusion + self.pull(f_di)


def side_of(
    client: Client, pull: Pull, pace: float, d: Tensor | None, rates: Tensor, others: tuple[FlatModel, ...] = ()
) -> Side:
    """The client's side: its task and the pull, in model III through branches `d` (empty: the initial ones)."""
    if d is None:
        return Side(Local(client, others, pace), pull)
    parts = branches(client, d)
    if client.role == "target":
        return Side(Local(client, (parts, *others), pace), pull, parts)
    own = opponents(client)
    return Side(Local(client, (parts, own, *others), pace), pull, parts, own, tuple(rates.tolist()))
