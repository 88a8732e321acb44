"""The gradient of the cross-entropy in a linear head, written out: a function of features and logits, no second pass.

With e = softmax - onehot (B, C) it is e^T [z, 1] / B (C, d + 1), the bias last; an ordinary graph leads back from it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def head_gradient(z: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """(C, d + 1) from features (B, d), logits (B, C) and labels (B,)."""
    e = torch.softmax(logits, dim=1) - F.one_hot(y, logits.shape[1])
    return torch.cat([e.t() @ z, e.sum(0).unsqueeze(1)], dim=1) / len(z)
