"""The Delta error of every rule from a few inner products; the gradients themselves are not needed.

v is the target's gradient, v^ what its labeled images give (E v^ = v, variance sigma^2), g_i = l_i u_i a source's
gradient. Every rule is own v^ + (something in the span of the u_i), so its error is a quadratic form in
|v|^2, sigma^2, t_i = <v, u_i>, C_ij = Cov(<v^, u_i>, <v^, u_j>), l_i and G_ij = <u_i, u_j>. For one source these are
Theorem 4.5 and the mean-field form of Theorem 4.6; for several, delta_i and delta_j are taken as independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """The inner products at one theta, for N sources."""

    sigma2: float
    norm2: float
    """|v|^2."""
    t: Array
    """<v, u_i> (N,)."""
    cov: Array
    """C (N, N)."""
    norms: Array
    """|g_i| (N,)."""
    gram: Array
    """<u_i, u_j> (N, N), ones on the diagonal."""

    @property
    def delta(self) -> Array:
        """Probability (N,) that the filter keeps a source: <v^, u_i> > 0 under normal noise."""
        spread = np.sqrt(np.clip(np.diag(self.cov), 0.0, None))
        kept: Array = ndtr(np.divide(self.t, spread, out=np.sign(self.t) * 40.0, where=spread > 0))
        return kept

    @property
    def distance2(self) -> Array:
        """d_i^2 (N,) of each source by itself."""
        return np.clip(self.norm2 - 2.0 * self.norms * self.t + self.norms**2, 0.0, None)

    @property
    def beside2(self) -> Array:
        """p_i^2 = tau_i^2 d_i^2 (N,): squared norm of v's component orthogonal to g_i."""
        return np.clip(self.norm2 - self.t**2, 0.0, None)

    def without(self, source: int) -> Moments:
        keep = [i for i in range(len(self.t)) if i != source]
        block = np.ix_(keep, keep)
        return Moments(self.sigma2, self.norm2, self.t[keep], self.cov[block], self.norms[keep], self.gram[block])

    def fedda(self, beta: Array, w: Array) -> float:
        """Delta^2 of sum_i w_i ((1 - beta_i) v^ + beta_i g_i)."""
        own, c = float((w * (1 - beta)).sum()), w * beta * self.norms
        bias2 = (1 - own) ** 2 * self.norm2 - 2 * (1 - own) * float(c @ self.t) + float(c @ self.gram @ c)
        return max(bias2, 0.0) + own**2 * self.sigma2

    def fedgp(self, beta: Array, w: Array) -> float:
        """Delta^2 of sum_i w_i ((1 - beta_i) v^ + beta_i Proj+(v^ | g_i))."""
        own, q, delta = float((w * (1 - beta)).sum()), w * beta, self.delta
        both = np.outer(q * delta, q * delta)
        np.fill_diagonal(both, q**2 * delta)  # a filter's square is itself
        bias2 = (1 - own) ** 2 * self.norm2 - 2 * (1 - own) * float((q * delta) @ self.t**2)
        bias2 += float((both * self.gram * np.outer(self.t, self.t)).sum())
        noise2 = own**2 * self.sigma2 + 2 * own * float((q * delta) @ np.diag(self.cov))
        return max(bias2, 0.0) + noise2 + float((both * self.gram * self.cov).sum())


def estimated(sigma2: float, mean2: float, t: Array, cov: Array, norms: Array, gram: Array) -> Moments:
    """Moments from noisy inner products: `mean2` = |v^|^2, `t` = <v^, u_i>.

    t is shrunk as a whole so that its square, t' G^-1 t, loses what noise alone would give it; |v|^2 is at least the
    norm of what the sources see of v. So no combination of the estimates has a negative square.
    """
    values, vectors = np.linalg.eigh(gram)
    gram = (vectors * np.clip(values, 0.05, None)) @ vectors.T
    gram = gram / np.sqrt(np.outer(np.diag(gram), np.diag(gram)))
    inverse = np.linalg.inv(gram)
    seen2 = float(t @ inverse @ t)
    true2 = max(seen2 - float(np.trace(inverse @ cov)), 0.0)
    t = t * np.sqrt(true2 / seen2) if seen2 > 0 else t
    return Moments(sigma2, max(mean2 - sigma2, true2), t, cov, norms, gram)


@dataclass(frozen=True)
class Rule:
    """One run of a study in the terms of the theory."""

    method: str
    """target_only, fedavg, fedda, fedgp, fedda_auto or fedgp_auto: the property `theory` of a method."""
    beta: float | None = None
    weighting: str = "uniform"
    """`uniform` or `samples`."""


def error(rule: Rule, m: Moments, samples: Sequence[int]) -> float:
    """Delta^2 of a rule at one theta; without sources, of the target alone."""
    n = len(m.t)
    if rule.method == "target_only" or n == 0:
        return m.sigma2
    w = np.full(n, 1.0 / n) if rule.weighting == "uniform" else np.array(samples, float) / sum(samples)
    fixed = np.full(n, rule.beta if rule.beta is not None else 0.5)
    return {
        "fedavg": lambda: m.fedda(np.ones(n), w),
        "fedda": lambda: m.fedda(fixed, w),
        "fedgp": lambda: m.fedgp(fixed, w),
        "fedda_auto": lambda: m.fedda(auto_betas(m.sigma2, m.distance2), w),
        "fedgp_auto": lambda: m.fedgp(auto_betas(m.sigma2, m.beside2), w),
    }[rule.method]()


def auto_betas(sigma2: float, bias2: Array) -> Array:
    """The betas (N,) that auto-weighting chooses."""
    total = sigma2 + bias2
    return np.divide(sigma2, total, out=np.zeros_like(total), where=total > 0)
