"""Transfer component analysis (Pan et al. 2011) and R-TCA (paper 002, section III) with an exact kernel matrix.

min_W tr(W' K l l' K W) + gamma tr(W' W)   (R-TCA: gamma tr(W' K W))   subject to W' K H K W = I.
R-TCA of K^2 is TCA of K, exactly; the two are not the same up to a rescaled gamma.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fdamed.classical.inputs import Array, Domains, count, one_of, positive, read
from fdamed.classical.kernels import EXACT, gram, length, project, shape, unit_rows
from fdamed.classical.spectral import SCALES, Solution, rtca, tca

SOLVERS = ("auto", "dense", "lanczos")


class _Exact(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """What TCA and R-TCA share: the kernel matrix of all samples, and features W' k(X, x) of new ones."""

    def __init__(
        self,
        n_components: int | None = None,
        gamma: float = 1.0,
        kernel: str = "gaussian",
        sigma: float | str = "median",
        normalize: bool = True,
        center: bool = False,
        unit_norm: bool = False,
        solver: str = "auto",
        scale: str = "variance",
    ) -> None:
        self.n_components = n_components
        self.gamma = gamma
        self.kernel = kernel
        self.sigma = sigma
        self.normalize = normalize
        self.center = center
        self.unit_norm = unit_norm
        self.solver = solver
        self.scale = scale

    @abstractmethod
    def _solve(self, K: Array, ell: Array, where: str) -> Solution:
        """W and its eigenvalues for this kernel matrix (n, n) and the domains' l (n,)."""

    def fit(self, X: Any, y: Any = None, sample_domain: Any = None) -> Self:
        """Learn W from samples of both domains; y is not used. sample_domain: positive source, negative target."""
        self._fit(X, y, sample_domain)
        return self

    def fit_transform(self, X: Any, y: Any = None, sample_domain: Any = None) -> Array:
        """Fit and transform with one kernel matrix."""
        K = self._fit(X, y, sample_domain)
        return finished(K @ self.W_, self.mean_, self.center, self.unit_norm)

    def _fit(self, X: Any, y: Any, sample_domain: Any) -> Array:
        where = type(self).__name__
        positive(self.gamma, "gamma", where)
        one_of(self.kernel, EXACT, "kernel", where)
        one_of(self.solver, SOLVERS, "solver", where)
        one_of(self.scale, SCALES, "scale", where)
        if self.n_components is not None:
            count(self.n_components, "n_components", where)
        given: Domains = read(self, X, y, sample_domain)
        self.sigma_ = length(self.sigma, self.kernel, given.X, self.normalize, where)
        samples = given.X.astype(np.float64)
        self.X_fit_ = unit_rows(samples) if self.normalize else samples
        K = gram(self.X_fit_, self.X_fit_, self.kernel, self.sigma_)
        found = self._solve(K, given.ell, f"{where}, {shape(given.X)}").scaled(self.scale)
        self.W_, self.eigenvalues_ = found.W, found.values
        self.mean_ = K.mean(axis=0) @ found.W
        self.n_components_ = self._n_features_out = found.W.shape[1]
        return K

    def transform(self, X: Any) -> Array:
        """Features of samples of any domain, (n, m)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        out = project(X, self.X_fit_, self.W_, self.kernel, self.sigma_, self.normalize)
        return finished(out, self.mean_, self.center, self.unit_norm)


class TCA(_Exact):
    """Vanilla TCA.

    n_components: None is min(100, rank). gamma > 0. kernel: gaussian, laplacian, cauchy or linear of length sigma
    (a number, or "median" distance). normalize: samples at length 1 first. center, unit_norm: of the features that
    come out. solver: "dense", "lanczos" or "auto" (Lanczos when n is large). scale: of the components, "variance"
    (all equal: the constraint) or "penalty" (|w| = 1, R-TCA w' K w = 1; better for distances, see spectral.py).
    """

    def _solve(self, K: Array, ell: Array, where: str) -> Solution:
        return tca(K, ell, float(self.gamma), self.n_components, self.solver, where)


class RTCA(_Exact):
    """R-TCA: the penalty is that of functions in the kernel's space. Parameters are those of TCA."""

    def _solve(self, K: Array, ell: Array, where: str) -> Solution:
        return rtca(K, ell, float(self.gamma), self.n_components, self.solver, where)


def finished(features: Array, mean: Array, center: bool, unit_norm: bool) -> Array:
    """Centered at the training samples' mean, then each sample at length 1, as asked for."""
    features = features - mean if center else features
    return unit_rows(features) if unit_norm else features
