"""Auto-weighting: beta of each source, from inner products of the target's steps with the sources' directions.

g_j (j = 1..B) are the target's steps of one round, u_i the unit direction of source i's update and l_i the norm of
its mean step, scaled to the target's learning rate. With g the mean of the g_j and t_ij = <g_j, u_i>:

    s_B = sum_j |g_j - g|^2 / (B - 1) = (sum_j |g_j|^2 - B |g|^2) / (B - 1)         sigma^2 = s_B / B
    d_i^2 = [mean_j |g_j - l_i u_i|^2 - s_B]+ ,  |g_j - l u|^2 = |g_j|^2 - 2 l t_ij + l^2
    p_i^2 = [mean_j |r_j|^2 - sum_j |r_j - r|^2 / (B - 1)]+ ,  r_j = g_j - t_ij u_i,  |r_j|^2 = |g_j|^2 - t_ij^2
    delta_i = 1 - share of steps with t_ij <= 0, over B

so that t_ij and |g_j|^2 suffice, and no step is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Estimates:
    """Target variance of the mean step, |g|^2, and for each source d_i^2, p_i^2 = tau^2 d^2 and delta_i, (N,)."""

    sigma2: float
    mean2: float
    d2: Tensor
    p2: Tensor
    delta: Tensor


def estimates(t: Sequence[Tensor], squares: Sequence[float], mean2: float, norm: Tensor) -> Estimates:
    """The estimators above from t_j (N,) float64 and |g_j|^2 of each step j, `mean2` = |g|^2 and `norm` = l_i (N,)."""
    b = len(t)
    if b < 2:
        raise ValueError("the variance of the target's steps needs at least two of them")
    zero = torch.zeros_like(t[0])
    square, dot, dot2 = sum(squares) / b, sum(t, zero) / b, sum((x.square() for x in t), zero) / b
    s_b = max(b * (square - mean2) / (b - 1), 0.0)
    across = (b * (dot2 - dot.square()) / (b - 1)).clamp(min=0.0)
    beside = (s_b - across).clamp(min=0.0)
    return Estimates(
        sigma2=s_b / b,
        mean2=mean2,
        d2=(square - 2.0 * norm * dot + norm.square() - s_b).clamp(min=0.0),
        p2=(square - dot2 - beside).clamp(min=0.0),
        delta=1.0 - (1.0 - sum(((x > 0).double() for x in t), zero) / b) / b,
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
