"""Auto-weighting: beta of each source, from inner products of the target's steps with the sources' directions.

g_j (j = 1..B) are the target's steps of one round, u_i the unit direction of source i's update and l_i the norm of
its mean step, scaled to the target's learning rate. With g the mean of the g_j and t_ij = <g_j, u_i>:

    s_B = sum_j |g_j - g|^2 / (B - 1) = (sum_j |g_j|^2 - B |g|^2) / (B - 1)         sigma^2 = s_B / B
    d_i^2 = [mean_j |g_j - l_i u_i|^2 - s_B]+ ,  |g_j - l u|^2 = |g_j|^2 - 2 l t_ij + l^2
    p_i^2 = [mean_j |r_j|^2 - sum_j |r_j - r|^2 / (B - 1)]+ ,  r_j = g_j - t_ij u_i,  |r_j|^2 = |g_j|^2 - t_ij^2
    delta_i = 1 - share of steps with t_ij <= 0, over B

so that sums over the steps suffice, and no step is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sums:
    """What is kept of the target's steps: sums of |g_j|^2, t_ij, t_ij^2 and [t_ij > 0]; (N,) float64."""

    count: int
    square: float
    dot: Tensor
    dot_square: Tensor
    positive: Tensor


@dataclass(frozen=True)
class Estimates:
    """Target variance of the mean step, |g|^2, and for each source d_i^2, p_i^2 = tau^2 d^2 and delta_i, (N,)."""

    sigma2: float
    mean2: float
    d2: Tensor
    p2: Tensor
    delta: Tensor


def no_steps(sources: int) -> Sums:
    zero = torch.zeros(sources, dtype=torch.float64)
    return Sums(0, 0.0, zero, zero, zero)


def with_step(sums: Sums, dot: Tensor, square: float) -> Sums:
    """The sums after one more step with t = `dot` (N,) and |g_j|^2 = `square`."""
    t = dot.double()
    positive = sums.positive + (t > 0).double()
    return Sums(sums.count + 1, sums.square + square, sums.dot + t, sums.dot_square + t.square(), positive)


def estimates(sums: Sums, mean2: float, length: Tensor) -> Estimates:
    """The estimators above; `mean2` = |g|^2 and `length` = l_i (N,). One step alone has no variance: an error."""
    b = sums.count
    if b < 2:
        raise ValueError("the variance of the target's steps needs at least two of them")
    square, t, t2 = sums.square / b, sums.dot / b, sums.dot_square / b
    s_b = max(b * (square - mean2) / (b - 1), 0.0)
    across = (b * (t2 - t.square()) / (b - 1)).clamp(min=0.0)
    beside = (s_b - across).clamp(min=0.0)
    return Estimates(
        sigma2=s_b / b,
        mean2=mean2,
        d2=(square - 2.0 * length * t + length.square() - s_b).clamp(min=0.0),
        p2=(square - t2 - beside).clamp(min=0.0),
        delta=1.0 - (1.0 - sums.positive / b) / b,
    )


def fedda_betas(e: Estimates) -> Tensor:
    """sigma^2 / (sigma^2 + d_i^2), (N,): minimizes (1 - beta)^2 sigma^2 + beta^2 d^2 (Theorem 4.5)."""
    return weight(e.sigma2, e.d2)


def fedgp_betas(e: Estimates, threshold: bool = False) -> Tensor:
    """sigma^2 / (sigma^2 + p_i^2), (N,); `threshold`: the filter's share delta enters the bias (Theorem 4.6)."""
    return weight(e.sigma2, e.delta * e.p2 + (1.0 - e.delta) * e.mean2 if threshold else e.p2)


def weight(variance: float, bias2: Tensor) -> Tensor:
    """variance / (variance + bias2); 0 where there is neither: a target without variance needs nobody."""
    total = variance + bias2
    return torch.where(total > 0, variance / total.where(total > 0, torch.ones_like(total)), torch.zeros_like(total))
