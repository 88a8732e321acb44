"""Random Fourier features: mean embeddings of two sets of features, and the distance between them.

FedRF-TCA: k(x, y) = exp(-|x - y|^2 / (2 sigma^2)) is the mean over w ~ N(0, I / sigma^2) of cos(w.(x - y)) (paper,
Definition 1). N counts frequencies: the feature of a sample has 2 N numbers, cosines first, and its norm is exactly 1.
f-DAN: MMD^2 with the five kernels k(x, y) = sum over j = -2..2 of exp(-|x - y|^2 / (2^j h)).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fdamed.core.rng import Stream
from fdamed.models.flat import wide

EPSILON = 1e-5
"""Added to a norm before it divides: a zero vector stays zero."""
KERNELS = 5
"""Bandwidths h/4, h/2, h, 2h, 4h."""


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


def bandwidth(f: Tensor) -> Tensor:
    """Mean squared distance of different rows of (n, d), in O(n d): 2 n/(n-1) times the sum of the variances."""
    n = len(f)
    if n < 2:
        return torch.zeros((), dtype=wide(f.device), device=f.device)
    return 2.0 * f.to(wide(f.device)).var(0, correction=0).sum() * n / (n - 1)


def fourier(f: Tensor, omega: Tensor, h: float | Tensor) -> Tensor:
    """Mean over the rows of (B, d) of random features of all five kernels, (5, 2 F), from omega (d, F) ~ N(0, 1).

    exp(-|x|^2 / s) is the characteristic function of N(0, 2/s).
    """
    angle = f.float() @ omega
    means = []
    for j in range(-2, 3):
        a = angle * (2.0 / (2.0**j * h)) ** 0.5
        means.append(torch.cat([a.cos().mean(0), a.sin().mean(0)]))
    return torch.stack(means) / math.sqrt(omega.shape[1])


def fourier_mmd(a: Tensor, b: Tensor) -> Tensor:
    """MMD^2 of two means of random features."""
    distance: Tensor = (a - b).square().sum()
    return distance
