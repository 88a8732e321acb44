"""Discriminators, and other small networks that train on a network's features, as flat models."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
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
    """DI: features (B, d) -> logit (B,) of "this is a source's image"; FADA's has one leaky layer, DANN's two."""

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


def domain_loss(logit: Tensor, source: float) -> Tensor:
    """-mean log DI where `source` is 1, -mean log(1 - DI) where it is 0, stable for every logit."""
    return F.binary_cross_entropy_with_logits(logit.float(), torch.full_like(logit, source, dtype=torch.float32))
