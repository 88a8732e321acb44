"""The eigenproblems of TCA, R-TCA, RF-TCA and JDA by symmetric routes.

TCA    K H K w = lambda (gamma I + v v') w,            v = K l
R-TCA  K H K w = lambda (gamma K + K l l' K) w
RF-TCA S w = lambda (gamma I + u u') w,                S = Sigma H Sigma', u = Sigma l
JDA    K H K w = lambda (gamma I + E E') w,            one column of E for the domains and for each class

Largest lambda first; sign: the largest entry of each column of W is positive. Two scales of the columns:
variance  W' (K H K) W = I or W' S W = I, the papers' constraint: every component has the same variance;
penalty   what gamma weighs is 1 for each column (w' w; R-TCA: w' K w), so that a component has the variance lambda
          gives it. Published figures have this scale, from solvers that return vectors of norm 1.
(gamma I + E E')^(-1/2) is known from the thin SVD of E, so no matrix is inverted and the problem stays symmetric.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.linalg.blas import dsymv
from scipy.sparse.linalg import LinearOperator, eigsh

from fdamed.classical.inputs import Array, BadInput, Shrunk
from fdamed.core.rng import stream

DEFAULT_COMPONENTS = 100
DENSE = 700
"""Up to this order a product and a tridiagonalization cost less than Lanczos steps on two factors."""
RANK = 1e-10
"""An eigenvalue below this share of the largest is rounding."""
SCALES = ("variance", "penalty")
Multiply = Callable[[Array], Array]
"""x (n,) -> A x, for a symmetric A that is not formed."""


@dataclass(frozen=True)
class Solution:
    """Columns of W (n or 2N, m) and their lambda (m,), largest first."""

    W: Array
    values: Array
    penalty: Array
    """What gamma weighs, of each column (m,): w' w, in R-TCA w' K w."""

    def scaled(self, scale: str) -> Array:
        """W at one of the two SCALES; the solvers give `variance`."""
        return self.W if scale == "variance" else self.W / np.sqrt(self.penalty)


def centered(A: Array) -> Array:
    """H A."""
    out: Array = A - A.mean(axis=0)
    return out


def product(K: Array) -> Multiply:
    """x -> K x of a symmetric K, reading half of it."""
    KF = np.asfortranarray(K)
    return lambda x: np.asarray(dsymv(1.0, KF, x))


def signed(W: Array) -> Array:
    """Each column with its largest entry positive."""
    largest = W[np.abs(W).argmax(axis=0), np.arange(W.shape[1])]
    turned: Array = W * np.where(largest < 0, -1.0, 1.0)
    return turned


def use_lanczos(n: int, m: int | None) -> bool:
    """Lanczos pays when n is large and m a small share of it."""
    return n > DENSE and 6 * min(m or DEFAULT_COMPONENTS, n) <= n


def top(A: Array | Multiply, n: int, m: int | None, where: str, scale: float) -> tuple[Array, Array]:
    """The m largest eigenpairs of a symmetric matrix, fewer (with a Shrunk warning) if the others are rounding."""
    asked = min(m or DEFAULT_COMPONENTS, n)
    if callable(A):
        begin = stream(0, "lanczos").numpy.standard_normal(n)  # the result does not depend on a random start
        operator = LinearOperator((n, n), matvec=lambda x: A(np.ravel(x)), dtype=np.float64)
        values, vectors = eigsh(operator, k=asked, which="LA", v0=begin, ncv=min(n, max(2 * asked + 1, 40)))
    else:
        values, vectors = eigh(A, subset_by_index=(n - asked, n - 1), check_finite=False)
    order = np.argsort(-values, kind="stable")
    values, vectors = values[order], vectors[:, order]
    if not values[0] > 1e-14 * max(scale, np.finfo(float).tiny):
        raise BadInput("all samples are alike", where, "Give features that vary.")
    rank = int((values > RANK * values[0]).sum())
    if m is not None and rank < m:
        warnings.warn(f"{rank} components instead of {m}: the data has no more ({where})", Shrunk, stacklevel=6)
    return values[:rank], vectors[:, :rank]


def solve(S: Array | Multiply, E: Array, gamma: float, m: int | None, where: str, scale: float) -> Solution:
    """S w = lambda (gamma I + E E') w, E (n, c); (gamma I + E E')^(-1/2) = gamma^(-1/2) (I - Q change Q')."""
    Q, d, _ = np.linalg.svd(E, full_matrices=False)
    outer = gamma + d**2
    change = d**2 / (outer + np.sqrt(gamma * outer))

    def half(x: Array) -> Array:
        moved: Array = x - Q @ (change * (Q.T @ x).T).T
        return moved

    A = (lambda x: half(S(half(x)))) if callable(S) else half(half(S).T)
    tau, Y = top(A, len(E), m, where, scale)
    W = signed(half(Y) / np.sqrt(tau))
    return Solution(W, tau / gamma, np.square(W).sum(axis=0))


def tca(K: Array, ell: Array, gamma: float, m: int | None, where: str = "TCA") -> Solution:
    """Vanilla TCA of a kernel matrix (n, n)."""
    v, scale = (K @ ell)[:, None], float(np.linalg.norm(K)) ** 2
    if use_lanczos(len(K), m):
        times = product(K)
        return solve(lambda x: times(centered(times(x))), v, gamma, m, where, scale)
    HK = centered(K)
    return solve(HK.T @ HK, v, gamma, m, where, scale)


def rtca(K: Array, ell: Array, gamma: float, m: int | None, where: str = "RTCA") -> Solution:
    """R-TCA of a kernel matrix (n, n), singular or not: no inverse of K."""
    v = K @ ell
    outer = gamma + float(ell @ v)
    hv = centered(v)
    scale = float(np.linalg.norm(K))
    if use_lanczos(len(K), m):
        times = product(K)
        tau, U = top(lambda x: centered(times(centered(x)) - v * (hv @ x) / outer), len(K), m, where, scale)
    else:
        tau, U = top(centered(centered(K).T) - np.outer(hv, hv / outer), len(K), m, where, scale)
    U = centered(U)
    W = signed((U - np.outer(ell, (v @ U) / outer)) / tau)
    return Solution(W, tau / gamma, np.einsum("ij,ij->j", W, K @ W))


def rftca(S: Array, u: Array, gamma: float, m: int | None, where: str = "RFTCA") -> Solution:
    """RF-TCA of the features' moments: S (2N, 2N), u (2N,)."""
    return solve(S, u[:, None], gamma, m, where, 1.0)
