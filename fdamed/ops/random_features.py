"""Random Fourier features of the Gaussian kernel, and the distance of two mean embeddings seen through an aligner.

k(x, y) = exp(-|x - y|^2 / (2 sigma^2)) is the mean over w ~ N(0, I / sigma^2) of cos(w.(x - y)) (paper, Definition 1).
N counts frequencies: the feature of a sample has 2 N numbers, cosines first, and its norm is exactly 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fdamed.core.rng import Stream

EPSILON = 1e-5
"""Added to a norm before it divides: a zero vector stays zero."""


def frequencies(rng: Stream, count: int, width: int, sigma: float) -> Tensor:
    """Omega (N, p), i.i.d. N(0, 1/sigma^2); the same stream gives the same matrix everywhere."""
    return torch.randn(count, width, generator=rng.torch).div_(sigma)


def unit(x: Tensor) -> Tensor:
    """Each row of (B, p) divided by its norm."""
    scaled: Tensor = x / (torch.linalg.vector_norm(x, dim=1, keepdim=True) + EPSILON)
    return scaled


def fourier_features(x: Tensor, omega: Tensor) -> Tensor:
    """Sigma^T: (B, p) -> (B, 2 N), [cos, sin] / sqrt(N)."""
    angle = x @ omega.t()
    return torch.cat([angle.cos(), angle.sin()], dim=1) / math.sqrt(len(omega))


def aligned_distance(w: Tensor, gaps: Tensor, normalize: bool) -> Tensor:
    """Mean over the rows d of (k, 2 N) of |W^T d|^2 (paper, Eq. 11) with W^T (m, 2 N).

    `normalize`: with sqrt(m) W / |W|_F in W's place, so that the distance cannot be made small by a small W. A W of
    orthonormal columns, the identity among them, is the same in both.
    """
    seen = (gaps @ w.t()).square().sum(1).mean()
    return seen * (len(w) / (w.square().sum() + EPSILON**2)) if normalize else seen
