"""Definitions 4.1 to 4.3 and Theorems 4.5 and 4.6 of the FedGP paper.

A gradient function at samples theta ~ pi is a tensor (Q, P): Q parameters, P numbers each. g_t is the target's (its
distribution's), g_s (N, Q, P) the sources', g_hat (D, Q, P) the target's on D equally likely data sets of its size.
Squares throughout: every function returns d^2, sigma^2 or Delta^2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Rule = Callable[[Tensor, Tensor], Tensor]
"""(g_T (P,), g_S (N, P)) -> the aggregated gradient (P,)."""


def square_norm(g: Tensor) -> float:
    """|g|_pi^2 = E_theta |g(theta)|^2, over all leading axes."""
    return float(g.square().sum(-1).mean())


def distance(g_t: Tensor, g_s: Tensor) -> float:
    """d_pi^2 (Def. 4.1): |g_T - mean_i g_i|_pi^2."""
    return square_norm(g_t - g_s.mean(0))


def variance(g_t: Tensor, g_hat: Tensor) -> float:
    """sigma_pi^2 (Def. 4.2): E over data sets of |g_T - g_hat|_pi^2."""
    return square_norm(g_hat - g_t)


def delta_error(rule: Rule, g_t: Tensor, g_s: Tensor, g_hat: Tensor) -> float:
    """Delta^2 of a rule (Def. 4.3): E over data sets of |g_T - rule(g_hat, g_S)|_pi^2, by enumeration."""
    errors = [(g_t[q] - rule(hat[q], g_s[:, q])).square().sum() for hat in g_hat for q in range(len(g_t))]
    return float(torch.stack(errors).mean())


def tau(g_t: Tensor, g_s: Tensor) -> Tensor:
    """tau(theta)^2 of one source, (Q,): |g_T|^2 sin^2 / |g_T - g_S|^2; 0 where the two are equal."""
    beside = _beside(g_t, _unit(g_s)).square().sum(-1)
    apart = (g_t - g_s).square().sum(-1)
    return torch.where(apart > 0, beside / apart.where(apart > 0, torch.ones_like(apart)), torch.zeros_like(apart))


def kept(g_hat: Tensor, g_s: Tensor) -> Tensor:
    """delta(theta) by data set and parameter, (D, Q): 1 where the filter keeps the source."""
    return ((g_hat * g_s).sum(-1) > 0).to(g_s.dtype)


def target_only_error(sigma2: float) -> float:
    return sigma2


def source_only_error(d2: float) -> float:
    return d2


def fedda_error(beta: float, sigma2: float, d2: float) -> float:
    """Theorem 4.5."""
    return (1 - beta) ** 2 * sigma2 + beta**2 * d2


def fedgp_error(beta: float, g_t: Tensor, g_s: Tensor, g_hat: Tensor) -> float:
    """Theorem 4.6, exact, one source g_s (Q, P).

    The theorem prints <g_T, g_S> in its fourth term where its proof has <g_T, u_S>; the proof is right.
    """
    u, delta, e = _unit(g_s), kept(g_hat, g_s), g_hat - g_t
    along = (e * u).sum(-1)
    beside = _beside(g_t, u).square().sum(-1)
    return (
        (1 - beta) ** 2 * variance(g_t, g_hat)
        + beta**2 * float((delta * beside).mean())
        + (2 * beta - beta**2) * float((delta * along.square()).mean())
        + 2 * beta * (1 - beta) * float((delta * (g_t * u).sum(-1) * along).mean())
        + beta**2 * float(((1 - delta) * g_t.square().sum(-1)).mean())
    )


def fedgp_error_mean_field(
    beta: float, sigma2: float, d2: float, tau2: float, delta: float, norm2: float, along2: float
) -> float:
    """Theorem 4.6 with delta and tau at their means; along2 = E <g_hat - g_T, u_S>^2."""
    return (
        (1 - beta) ** 2 * sigma2
        + beta**2 * delta * tau2 * d2
        + (2 * beta - beta**2) * delta * along2
        + beta**2 * (1 - delta) * norm2
    )


def fedgp_error_approximate(
    beta: float, sigma2: float, d2: float, tau2: float, delta: float, norm2: float, m: float
) -> float:
    """The last form of section 4.2: the noise is alike in all m directions, so along2 = sigma^2 / m."""
    return fedgp_error_mean_field(beta, sigma2, d2, tau2, delta, norm2, sigma2 / m)


def best_beta(sigma2: float, bias2: float) -> float:
    """The beta that minimizes (1 - beta)^2 sigma^2 + beta^2 bias^2; 0 where there is neither."""
    return sigma2 / (sigma2 + bias2) if sigma2 + bias2 > 0 else 0.0


PAPER = {"beta": 0.5, "delta": 1.0, "tau2": 0.5, "m": 10.0}
"""The setting of Figure 2, left."""
SIMPLE = ("source_only", "fedda", "fedgp", "target_only")
"""The four rules of Figure 2, in the order in which they win as the distance grows."""


def four_errors(
    sigma2: float, d2: float, beta: float, delta: float, tau2: float, m: float, norm2: float = 0.0
) -> dict[str, float]:
    """Delta^2 of the four rules of section 4.3; with delta = 1 the target's length does not matter."""
    return {
        "source_only": source_only_error(d2),
        "fedda": fedda_error(beta, sigma2, d2),
        "fedgp": fedgp_error_approximate(beta, sigma2, d2, tau2, delta, norm2, m),
        "target_only": target_only_error(sigma2),
    }


def winner(errors: dict[str, float]) -> str:
    """The rule with the smallest error; the first of equals."""
    return min(errors, key=lambda rule: errors[rule])


def _unit(g: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    return g / length.where(length > 0, torch.ones_like(length))


def _beside(g: Tensor, u: Tensor) -> Tensor:
    return g - (g * u).sum(-1, keepdim=True) * u
