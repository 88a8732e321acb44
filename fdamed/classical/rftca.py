"""RF-TCA (paper 002, section III): TCA on 2N random Fourier features instead of an n x n kernel matrix.

The features of 1,024 samples at a time enter S (2N x 2N) and u (2N), so the memory of a fit does not depend on n.
N counts frequencies; there are 2N features. RF-TCA is R-TCA of the features' Gram matrix, for every N.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.linalg.blas import dsyrk
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fdamed.classical.inputs import Array, Domains, count, one_of, positive, read
from fdamed.classical.kernels import BLOCK, RANDOM, blocks, frequencies, length, random_features, shape
from fdamed.classical.spectral import SCALES, rftca, rftca_dual
from fdamed.classical.tca import finished

SOLVERS = ("auto", "primal", "dual")
KEPT = 64 * 2**20
"""Bytes of random features that `fit_transform` keeps from the fit: a constant, whatever n."""


class RFTCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """RF-TCA with N frequencies from `seed`.

    kernel: gaussian, laplacian or cauchy. solver: "primal" (2N x 2N, streamed), "dual" (n x n) or "auto" (dual when
    n < 2N). precision: of the random features; the eigenproblem is always float64. The rest is as in TCA.
    """

    def __init__(
        self,
        N: int = 500,
        n_components: int | None = None,
        gamma: float = 1.0,
        kernel: str = "gaussian",
        sigma: float | str = "median",
        normalize: bool = True,
        center: bool = False,
        unit_norm: bool = False,
        solver: str = "auto",
        precision: str = "float32",
        seed: int = 0,
        scale: str = "variance",
    ) -> None:
        self.N = N
        self.n_components = n_components
        self.gamma = gamma
        self.kernel = kernel
        self.sigma = sigma
        self.normalize = normalize
        self.center = center
        self.unit_norm = unit_norm
        self.solver = solver
        self.precision = precision
        self.seed = seed
        self.scale = scale

    def fit(self, X: Any, y: Any = None, sample_domain: Any = None) -> Self:
        """Learn W from samples of both domains; y is not used. sample_domain: positive source, negative target."""
        self._fit(X, y, sample_domain, kept=0)
        return self

    def fit_transform(self, X: Any, y: Any = None, sample_domain: Any = None) -> Array:
        """Fit and transform with one computation of the first KEPT bytes of random features."""
        given, kept = self._fit(X, y, sample_domain, kept=KEPT)
        out = np.empty((len(given.X), self.n_components_))
        done = sum(len(Z) for Z in kept)
        if kept:
            out[:done] = np.vstack([Z @ self.W_.astype(Z.dtype) for Z in kept])
        if done < len(out):
            out[done:] = self._project(given.X[done:])
        return finished(out, self.mean_, self.center, self.unit_norm)

    def transform(self, X: Any) -> Array:
        """Features of samples of any domain, (n, m)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return finished(self._project(X), self.mean_, self.center, self.unit_norm)

    def _fit(self, X: Any, y: Any, sample_domain: Any, kept: int) -> tuple[Domains, list[Array]]:
        """Fit, and hand back random features of the first samples, at most `kept` bytes of them in the primal."""
        N = count(self.N, "N", "RFTCA")
        gamma = positive(self.gamma, "gamma", "RFTCA")
        one_of(self.kernel, RANDOM, "kernel", "RFTCA")
        one_of(self.solver, SOLVERS, "solver", "RFTCA")
        one_of(self.scale, SCALES, "scale", "RFTCA")
        one_of(self.precision, ("float32", "float64"), "precision", "RFTCA")
        if self.n_components is not None:
            count(self.n_components, "n_components", "RFTCA")
        given = read(self, X, y, sample_domain)
        where = f"RFTCA, {shape(given.X)}"
        n, p = given.X.shape
        self.sigma_ = length(self.sigma, self.kernel, given.X, self.normalize, "RFTCA")
        self.omega_ = frequencies(self.kernel, self.sigma_, N, p, self.seed).astype(self.precision)
        first: list[Array] = []
        if self.solver == "dual" or (self.solver == "auto" and n < 2 * N):
            first.append(random_features(given.X, self.omega_, self.normalize))
            Z = first[0].astype(np.float64)
            found, mean = rftca_dual(Z, given.ell, gamma, self.n_components, where), Z.mean(axis=0)
        else:
            S, u, mean = self._moments(given, first, kept)
            found = rftca(S, u, gamma, self.n_components, where)
        found = found.scaled(self.scale)
        self.W_, self.eigenvalues_ = found.W, found.values
        self.mean_ = mean @ found.W
        self.n_components_ = self._n_features_out = found.W.shape[1]
        return given, first

    def _moments(self, given: Domains, first: list[Array], kept: int) -> tuple[Array, Array, Array]:
        """S = Sigma H Sigma', u = Sigma l and the mean feature, about a few samples' mean: sums near 0 cancel less."""
        n, ell = len(given.X), given.ell
        size = 2 * len(self.omega_)
        S = np.zeros((size, size), order="F")
        total, u = np.zeros(size), np.zeros(size)
        origin = random_features(given.X[:32], self.omega_, self.normalize).mean(axis=0, dtype=np.float64)
        for rows in blocks(n):
            features = random_features(given.X[rows], self.omega_, self.normalize)
            if (len(first) + 1) * BLOCK * features[0].nbytes <= kept:
                first.append(features)
            Z = features - origin
            S = dsyrk(1.0, Z.T, beta=1.0, c=S, trans=0, lower=0, overwrite_c=1)
            total += Z.sum(axis=0)
            u += ell[rows] @ Z  # the origin drops out: l sums to 0
        S = np.triu(S) + np.triu(S, 1).T
        S -= np.outer(total, total / n)
        return S, u, origin + total / n

    def _project(self, X: Array) -> Array:
        out = np.empty((len(X), self.n_components_))
        W = self.W_.astype(self.precision)
        for rows in blocks(len(X)):
            out[rows] = random_features(X[rows], self.omega_, self.normalize) @ W
        return out
