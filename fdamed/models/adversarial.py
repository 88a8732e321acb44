"""Discriminators and other adversarial networks on features, with their losses (FADA, DANN).

`Branches` is FADA's disentangler with its classifier. Its invariant branch is linear with a BatchNorm, so that
classifier and branch together are one linear layer (`folded`) and the learned model keeps the network's own shape.
The branches have half the feature's width, which gives the paper's 157 thousand parameters for four sources.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdamed.core.errors import FdamedError
from fdamed.core.rng import Stream
from fdamed.models.backbone import initialize
from fdamed.models.flat import FlatModel, Layout


class Discriminator(nn.Module):
    """DI: features (B, d) -> logit (B,) of "this is a source's image"."""

    def __init__(self, d: int, width: int, depth: int = 1, slope: float = 0.2) -> None:
        super().__init__()
        sizes = [d, *[width] * depth]
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(sizes)])
        self.out = nn.Linear(width, 1)
        self.slope = slope

    def forward(self, f: Tensor) -> Tensor:
        for layer in self.layers:
            f = F.leaky_relu(layer(f), self.slope)
        logit: Tensor = self.out(f).squeeze(1)
        return logit


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


def count(module: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(p.numel() for p in module.parameters())


def half(d: int) -> int:
    return max(2, d // 2)


@dataclass(frozen=True)
class Shape:
    """Width of the feature and number of classes, as the main head has them."""

    d: int
    classes: int


def shape_of(layout: Layout) -> Shape:
    """The shape of the main head, which must be one linear layer."""
    for s in layout:
        if s.name == "head.weight" and len(s.shape) == 2:
            return Shape(s.shape[1], s.shape[0])
    raise FdamedError("the network has no linear layer `head`", "model", "Choose a backbone with features and a head.")


def flat_part(module: nn.Module, vector: Tensor, start: Stream, device: torch.device) -> FlatModel:
    """A flat model with the weights in `vector`; if it is empty, with the initial weights that all clients share."""
    initialize(module, start.torch)
    part = FlatModel(module, device)
    if vector.numel():
        part.load(vector)
    return part


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Gradients pass through the module but do not reach its parameters."""
    parameters = list(module.parameters())
    for p in parameters:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in parameters:
            p.requires_grad_(True)


@contextmanager
def measured_anew(modules: Sequence[nn.Module]) -> Iterator[None]:
    """In training mode every BatchNorm resets its running statistics and averages them over the batches."""
    norms = [n for m in modules for n in m.modules() if isinstance(n, nn.modules.batchnorm._BatchNorm)]
    before = [n.momentum for n in norms]
    for module in modules:
        module.train()
    for n in norms:
        n.reset_running_stats()
        n.momentum = None
    try:
        yield
    finally:
        for n, momentum in zip(norms, before, strict=True):
            n.momentum = momentum


def domain_loss(logit: Tensor, source: float) -> Tensor:
    """-mean log DI where `source` is 1, -mean log(1 - DI) where it is 0, stable for every logit."""
    return F.binary_cross_entropy_with_logits(logit.float(), torch.full_like(logit, source, dtype=torch.float32))


def uniformity(logits: Tensor) -> Tensor:
    """L_ent: cross-entropy to the uniform distribution, at least log C."""
    return -F.log_softmax(logits.float(), dim=1).mean()


def mutual_information(joint: Tensor, shuffled: Tensor) -> Tensor:
    """Donsker-Varadhan: mean T(joint) - log mean exp T(shuffled), the largest score taken out of the exponentials."""
    return joint.float().mean() - (torch.logsumexp(shuffled.float(), 0) - math.log(len(shuffled)))


@torch.no_grad()
def folded(branches: Branches) -> tuple[Tensor, Tensor]:
    """Classifier and invariant branch as one layer: weight (C, d) and bias (C,), exact in evaluation mode."""
    norm, c = branches.invariant_norm, branches.classifier
    if norm.running_mean is None or norm.running_var is None:
        raise TypeError("the invariant branch keeps no running statistics")
    scaled = c.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = scaled @ branches.invariant.weight
    bias = scaled @ (branches.invariant.bias - norm.running_mean) + c.bias
    return weight, bias
