"""Auxiliary heads on the 128-d feature, and losses that ignore missing labels.

Shared heads are the last part of the network and are averaged with it; private ones are a model of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdamed.config.model import HEAD_CLASSES, Model
from fdamed.core.rng import stream
from fdamed.models.backbone import feature_size, initialize
from fdamed.models.flat import AUXILIARY


def build(model: Model, names: Sequence[str] | None = None) -> nn.ModuleDict:
    """One linear head for each of these auxiliary tasks; None: for all of the configuration."""
    sizes = HEAD_CLASSES | {"race": len(model.races)}
    names = model.heads if names is None else names
    return nn.ModuleDict({name: nn.Linear(feature_size(model), sizes[name]) for name in names})


def initial_heads(network: nn.Module, seed: int) -> dict[str, Tensor]:
    """The weights by name with which the network's shared heads begin, the same at every client; none without heads."""
    heads = getattr(network, AUXILIARY, nn.ModuleDict())
    for name, head in heads.items():  # a stream for each: a head begins alike, whatever others there are
        initialize(head, stream(seed, "heads", name).torch)
    return {f"{AUXILIARY}.{name}": tensor.detach().cpu().clone() for name, tensor in heads.named_parameters()}


def masked_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over the labels that are known (>= 0); 0 where none is."""
    total = F.cross_entropy(logits, labels, ignore_index=-1, reduction="sum")
    return total / (labels >= 0).sum().clamp(min=1)


def auxiliary_loss(heads: nn.ModuleDict, features: Tensor, labels: dict[str, Tensor]) -> Tensor:
    """Sum over the tasks k of l_aux(g_k(h^{l-1}(x)), b_k) (healthcare paper, Eq. 2, as a mean over the batch)."""
    losses = [masked_cross_entropy(heads[name](features), b) for name, b in labels.items()]
    return torch.stack(losses).sum()
