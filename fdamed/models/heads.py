"""Auxiliary heads on the 128-d feature, and losses that ignore missing labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdamed.config.model import HEAD_CLASSES, Model
from fdamed.models.backbone import feature_size


def build(model: Model) -> nn.ModuleDict:
    """One linear head for each auxiliary task of the configuration."""
    sizes = HEAD_CLASSES | {"race": len(model.races)}
    return nn.ModuleDict({name: nn.Linear(feature_size(model), sizes[name]) for name in model.heads})


def masked_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over the labels that are known (>= 0); 0 where none is."""
    total = F.cross_entropy(logits, labels, ignore_index=-1, reduction="sum")
    return total / (labels >= 0).sum().clamp(min=1)


def auxiliary_loss(heads: nn.ModuleDict, features: Tensor, labels: dict[str, Tensor]) -> Tensor:
    """Sum over the tasks k of l_aux(g_k(h^{l-1}(x)), b_k) (healthcare paper, Eq. 2, as a mean over the batch)."""
    losses = [masked_cross_entropy(heads[name](features), b) for name, b in labels.items()]
    return torch.stack(losses).sum()
