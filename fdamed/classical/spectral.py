"""The eigenproblems of TCA, R-TCA and RF-TCA by symmetric routes (specification 10.3 to 10.5).

TCA    K H K w = lambda (gamma I + v v') w,            v = K l
R-TCA  K H K w = lambda (gamma K + K l l' K) w
RF-TCA S w = lambda (gamma I + u u') w,                S = Sigma H Sigma', u = Sigma l

Largest lambda first; sign: the largest entry of each column of W is positive. Two scales of the columns:
variance  W' (K H K) W = I or W' S W = I, the papers' constraint: every component has the same variance;
penalty   what gamma weighs is 1 for each column (w' w; R-TCA: w' K w), so that a component has the variance lambda
          gives it. Published figures have this scale, from solvers that hand back vectors of length 1.
(gamma I + v v')^(-1/2) is known in closed form, so no matrix is inverted and the problem stays symmetric.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.linalg.blas import dsymv, dsyrk
from scipy.sparse.linalg import LinearOperator, eigsh

from fdamed.classical.inputs import Array, BadInput, Shrunk
from fdamed.core.rng import stream

DEFAULT_COMPONENTS = 100
DENSE = 700
"""Up to this order a product and a tridiagonalisation cost less than Lanczos steps on two factors."""
RANK = 1e-10
"""An eigenvalue below this share of the largest is rounding."""
SCALES = ("variance", "penalty")


@dataclass(frozen=True)
class Solution:
    """Columns of W (n or 2N, m) and their lambda (m,), largest first."""

    W: Array
    values: Array
    penalty: Array
    """What gamma weighs, of each column (m,): w' w, in R-TCA w' K w."""

    def scaled(self, scale: str) -> Solution:
        """The same directions at one of the two SCALES; the solvers give `variance`."""
        if scale == "variance":
            return self
        return Solution(self.W / np.sqrt(self.penalty), self.values, np.ones_like(self.penalty))


def squares(W: Array) -> Array:
    """w' w of each column."""
    sums: Array = np.einsum("ij,ij->j", W, W)
    return sums


def root(v: Array, gamma: float) -> float:
    """c with (I - v v' / (gamma + |v|^2))^(1/2) = I - c v v'; half of 1/gamma where v vanishes."""
    vv = float(v @ v)
    outer = gamma + vv
    return 1.0 / (outer + math.sqrt(gamma * outer))


def symmetric_product(A: Array) -> Array:
    """A' A, both triangles, at half the work of a product."""
    upper = dsyrk(1.0, A, trans=1, lower=0) if A.flags.f_contiguous else dsyrk(1.0, A.T, trans=0, lower=0)
    full: Array = np.triu(upper) + np.triu(upper, 1).T
    return full


def center_columns(A: Array) -> Array:
    """H A."""
    centered: Array = A - A.mean(axis=0)
    return centered


def top(A: Array, m: int) -> tuple[Array, Array]:
    """The m largest eigenpairs of a symmetric matrix, largest first."""
    n = len(A)
    values, vectors = eigh(A, subset_by_index=(n - m, n - 1), check_finite=False)
    return values[::-1], vectors[:, ::-1]


def lanczos(multiply: Callable[[Array], Array], n: int, m: int) -> tuple[Array, Array]:
    """The m largest eigenpairs of a symmetric operator, from a start that is always the same."""
    begin = stream(0, "lanczos").numpy.standard_normal(n)
    operator = LinearOperator((n, n), matvec=lambda x: multiply(np.ravel(x)), dtype=np.float64)
    values, vectors = eigsh(operator, k=m, which="LA", v0=begin, ncv=min(n, max(2 * m + 1, 40)))
    order = np.argsort(-values)
    return values[order], vectors[:, order]


def use_lanczos(solver: str, n: int, m: int) -> bool:
    """Lanczos needs m < n and pays when n is large and m a small share of it."""
    if solver == "auto":
        return n > DENSE and 6 * m <= n
    return solver == "lanczos" and m < n


def wanted(n_components: int | None, n: int) -> int:
    """How many eigenpairs to ask for: at most n - 1 directions vary among n centered samples."""
    return max(1, min(n_components or DEFAULT_COMPONENTS, n))


def keep(tau: Array, m: int | None, where: str, scale: float) -> int:
    """How many eigenvalues are more than rounding; a Shrunk warning if fewer than asked for."""
    if not tau[0] > 1e-14 * max(scale, np.finfo(float).tiny):
        raise BadInput("all samples are alike", where, "Give features that vary.")
    rank = int((tau > RANK * tau[0]).sum())
    if m is not None and rank < m:
        warnings.warn(f"{rank} components instead of {m}: the data has no more ({where})", Shrunk, stacklevel=5)
    return rank


def signed(W: Array) -> Array:
    """Each column with its largest entry positive."""
    largest = W[np.abs(W).argmax(axis=0), np.arange(W.shape[1])]
    turned: Array = W * np.where(largest < 0, -1.0, 1.0)
    return turned


def tca(K: Array, ell: Array, gamma: float, m: int | None, solver: str = "auto", where: str = "TCA") -> Solution:
    """Vanilla TCA of a kernel matrix (n, n)."""
    n = len(K)
    v = K @ ell
    c = root(v, gamma)
    asked = wanted(m, n)
    scale = float(np.linalg.norm(K)) ** 2
    if use_lanczos(solver, n, asked):
        KF = np.asfortranarray(K)

        def multiply(y: Array) -> Array:
            x = dsymv(1.0, KF, y - c * (v @ y) * v)
            x = dsymv(1.0, KF, x - x.mean())
            return np.asarray(x - c * (v @ x) * v)

        tau, Y = lanczos(multiply, n, asked)
    else:
        tau, Y = top(between(symmetric_product(center_columns(K)), v, c), asked)
    r = keep(tau, m, where, scale)
    tau, Y = tau[:r], Y[:, :r]
    W = signed((Y - c * np.outer(v, v @ Y)) / np.sqrt(tau))
    return Solution(W, tau / gamma, squares(W))


def rtca(K: Array, ell: Array, gamma: float, m: int | None, solver: str = "auto", where: str = "RTCA") -> Solution:
    """R-TCA of a kernel matrix (n, n), singular or not: no inverse of K."""
    n = len(K)
    v = K @ ell
    outer = gamma + float(ell @ v)
    hv = v - v.mean()
    asked = wanted(m, n)
    if use_lanczos(solver, n, asked):
        KF = np.asfortranarray(K)

        def multiply(x: Array) -> Array:
            x = dsymv(1.0, KF, x - x.mean()) - v * (hv @ x) / outer
            return np.asarray(x - x.mean())

        tau, U = lanczos(multiply, n, asked)
    else:
        A = K - K.mean(axis=0)
        A -= A.mean(axis=1, keepdims=True)
        A -= np.outer(hv, hv / outer)
        tau, U = top(A, asked)
    r = keep(tau, m, where, float(np.linalg.norm(K)))
    tau, U = tau[:r], center_columns(U[:, :r])
    W = signed((U - np.outer(ell, (v @ U) / outer)) / tau)
    return Solution(W, tau / gamma, np.einsum("ij,ij->j", W, K @ W))


def rftca(S: Array, u: Array, gamma: float, m: int | None, where: str = "RFTCA") -> Solution:
    """RF-TCA of the features' moments: S (2N, 2N), u (2N,)."""
    c = root(u, gamma)
    asked = wanted(m, len(S))
    tau, Y = top(between(S, u, c), asked)
    r = keep(tau, m, where, 1.0)
    tau, Y = tau[:r], Y[:, :r]
    W = signed((Y - c * np.outer(u, u @ Y)) / np.sqrt(tau))
    return Solution(W, tau / gamma, squares(W))


def rftca_dual(Z: Array, ell: Array, gamma: float, m: int | None, where: str = "RFTCA") -> Solution:
    """The same from all features Z = Sigma' (n, 2N) when n < 2N: R-TCA of the Gram matrix Z Z', and W = Z' W_R."""
    found = rtca(symmetric_product(Z.T), ell, gamma, m, "auto", where)
    return Solution(signed(Z.T @ found.W), found.values, found.penalty)


def between(S: Array, v: Array, c: float) -> Array:
    """(I - c v v') S (I - c v v') as a rank-two change of S."""
    w = S @ v
    w = c * w - (0.5 * c * c * float(v @ w)) * v
    changed: Array = S - np.outer(v, w) - np.outer(w, v)
    return changed
