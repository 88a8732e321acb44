"""How far pre-training on the sources carries: the bounds of the FedGTST paper, where their assumptions hold.

They ask for a convex loss that is smooth with constant alpha, and for one step of gradient descent a round (Assumptions
4.1, 4.2): a linear model under squares (`Squares`) has both, and there every term is known exactly. For a deep network
the bounds are no bounds; what is left of them is the direction: a large |J_p|, a small sigma_p^2.

Theorem 2 is printed with a decrease of 2 |J|^2 / (alpha (1 + sigma^2/|J|^2)), four times what Lemma 4.1 gives at the
best rate (and Appendix E has): |J|^2 / (2 alpha (1 + sigma^2/|J|^2)). As printed it can exceed all there is to lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SAME = 1e-12
"""Eigenvalues that lie closer, relative to the largest, are one."""


@dataclass(frozen=True)
class Statistics:
    """|J_p|^2 of the mean Jacobian and the variance sigma_p^2 of one round (Definition 4)."""

    square: float
    variance: float


@dataclass(frozen=True, eq=False)
class Squares:
    """E (w x - y)^2 = w' a w - 2 b' w + c of a linear model w, with a = E x x' (d, d), b = E x y (d,), c = E y^2."""

    a: Array
    b: Array
    c: float

    @classmethod
    def of(cls, x: Array, y: Array) -> Squares:
        """The loss on samples (n, d), (n,)."""
        return cls(x.T @ x / len(x), x.T @ y / len(x), float(y @ y) / len(x))

    def loss(self, w: Array) -> float:
        return float(w @ self.a @ w - 2.0 * self.b @ w + self.c)

    def jacobian(self, w: Array) -> Array:
        return 2.0 * (self.a @ w - self.b)

    @property
    def alpha(self) -> float:
        """Lipschitz constant of the Jacobian."""
        return 2.0 * float(np.linalg.eigvalsh(self.a)[-1])

    def least(self, radius: float) -> float:
        """The smallest loss of all |w| <= radius; a need not be positive."""
        values, vectors = np.linalg.eigh(self.a)
        beta = vectors.T @ self.b
        scale = max(float(np.abs(values).max()), 1e-300)
        floor = max(0.0, -float(values[0]))

        def at(mu: float) -> Array:
            shifted = values + mu
            free = shifted > SAME * scale
            return np.where(free, beta / np.where(free, shifted, 1.0), 0.0)

        flat = values + floor <= SAME * scale
        u = at(floor)
        if np.abs(beta[flat]).max(initial=0.0) <= SAME * scale and float(u @ u) <= radius**2:
            if floor > 0.0:  # downhill for ever along the lowest direction: up to the edge
                u[0] += np.sqrt(radius**2 - float(u @ u))
        else:
            low, high = floor, floor + float(np.linalg.norm(beta)) / radius
            for _ in range(200):
                mu = 0.5 * (low + high)
                low, high = (mu, high) if np.linalg.norm(at(mu)) > radius else (low, mu)
            u = at(high)
        return float(values @ u**2 - 2.0 * beta @ u + self.c)


def cross_client(jacobians: Array) -> Statistics:
    """Definition 4 of Jacobians (K, P)."""
    together = float(np.square(jacobians.mean(0)).sum())
    return Statistics(together, max(0.0, float(np.square(jacobians).sum(1).mean()) - together))


def after_round(loss: float, s: Statistics, rate: float, alpha: float) -> float:
    """Lemma B.3: L_src(h_{p+1}) <= L_src(h_p) - beta_1 |J|^2 + beta_2 sigma^2."""
    beta_2 = alpha * rate**2 / 2.0
    return loss - (rate - beta_2) * s.square + beta_2 * s.variance


def best_rate(s: Statistics, alpha: float) -> float:
    """Assumption 4.3: the rate at which Lemma B.3 promises most, K |J|^2 / (alpha sum_k |J_k|^2)."""
    return s.square / (alpha * (s.square + s.variance)) if s.square else 0.0


def decrease(s: Statistics, alpha: float) -> float:
    """What Lemma B.3 promises at the best rate: |J|^2 / (2 alpha (1 + sigma^2/|J|^2))."""
    return s.square**2 / (2.0 * alpha * (s.square + s.variance)) if s.square else 0.0


def printed_decrease(s: Statistics, alpha: float) -> float:
    """The same as Theorem 2 prints it, four times too much."""
    return 4.0 * decrease(s, alpha)


def lemma_4_1(
    first: float, rounds: Sequence[Statistics], rates: Sequence[float], alpha: float, discrepancy: float
) -> float:
    """Bound on the target's loss after the rounds, from the sources' loss before them."""
    for s, rate in zip(rounds, rates, strict=True):
        first = after_round(first, s, rate, alpha)
    return first + discrepancy


def theorem_2(first: float, rounds: Sequence[Statistics], alpha: float, discrepancy: float) -> float:
    """The same at the best rate of every round, with the constant put right."""
    return first - sum(decrease(s, alpha) for s in rounds) + discrepancy


def theorem_1(sources: Sequence[Squares], target: Squares, radius: float) -> float:
    """Mean of the sources' own least losses + their divergence from each other + their discrepancy to the target."""
    own = float(np.mean([s.least(radius) for s in sources]))
    return own + cross_client_divergence(sources, radius) + source_target_discrepancy(sources, target, radius)


def h_discrepancy(p: Squares, q: Squares, radius: float) -> float:
    """Definition 5 over |w| <= radius: sup |L_p(w) - L_q(w)|."""
    up, down = Squares(p.a - q.a, p.b - q.b, p.c - q.c), Squares(q.a - p.a, q.b - p.b, q.c - p.c)
    return max(-up.least(radius), -down.least(radius))


def cross_client_divergence(sources: Sequence[Squares], radius: float) -> float:
    """Definition 2: the mean H-discrepancy of two different sources; 0 for one source."""
    k = len(sources)
    pairs = [h_discrepancy(p, q, radius) for i, p in enumerate(sources) for q in sources[i + 1 :]]
    return 2.0 * sum(pairs) / (k * (k - 1)) if pairs else 0.0


def source_target_discrepancy(sources: Sequence[Squares], target: Squares, radius: float) -> float:
    """Definition 3 with the one extractor that a linear model has, its input: mean of |inf L_k - inf L_T|."""
    there = target.least(radius)
    return float(np.mean([abs(s.least(radius) - there) for s in sources]))
