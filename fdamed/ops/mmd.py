"""Maximum mean discrepancy with DAN's family of kernels: exact for two batches, or between means of random features.

k(x, y) = sum over j = -2..2 of exp(-|x - y|^2 / (2^j h)).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

KERNELS = 5
"""Bandwidths h/4, h/2, h, 2h, 4h."""


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """|x_i - y_j|^2 as |x|^2 + |y|^2 - 2 x.y, (n, d), (m, d) -> (n, m), never below 0."""
    xx, yy = (x * x).sum(1), (y * y).sum(1)
    return (xx[:, None] + yy[None, :] - 2.0 * (x @ y.t())).clamp_min(0.0)


def kernel_sum(distances: Tensor, h: Tensor | float) -> Tensor:
    """The five kernels by squaring one exponential: exp(-D/4h) and its powers 2, 4, 8, 16."""
    e = torch.exp(-distances / (4.0 * h))
    total = e
    for _ in range(KERNELS - 1):
        e = e * e
        total = total + e
    return total


def mmd(f_s: Tensor, f_t: Tensor) -> Tensor:
    """MMD^2 of two batches (b_s, d), (b_t, d), biased; h = mean squared distance of the joint batch, a constant.

    Features that are all equal have nothing to tell apart: the loss is 0 and so are its gradients.
    """
    n, m = len(f_s), len(f_t)
    joint = torch.cat([f_s, f_t])
    joint = joint - joint.detach().mean(0)  # distances of numbers near 0 lose the fewest digits
    d = squared_distances(joint, joint)
    off_diagonal = d.detach().clone().fill_diagonal_(0.0)
    h = off_diagonal.sum() / max(1, (n + m) * (n + m - 1))
    if not float(h) > 0.0:
        return joint.sum() * 0.0
    k = kernel_sum(d, h)
    return k[:n, :n].mean() + k[n:, n:].mean() - 2.0 * k[:n, n:].mean()


def bandwidth(f: Tensor) -> float:
    """Mean squared distance of different rows of (n, d), in O(n d): 2 n/(n-1) times the sum of the variances."""
    n = len(f)
    return float(2.0 * f.double().var(0, correction=0).sum() * n / (n - 1)) if n > 1 else 0.0


def fourier(f: Tensor, omega: Tensor, h: float) -> Tensor:
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
