"""TCA (Pan et al. 2011), R-TCA and RF-TCA (FedRF-TCA paper, section III) as scikit-learn transformers.

min_W tr(W' K l l' K W) + gamma tr(W' W)   (R-TCA: gamma tr(W' K W))   subject to W' K H K W = I.
R-TCA of K^2 is TCA of K, exactly; the two are not the same up to a rescaled gamma. RF-TCA is R-TCA of the Gram matrix
of 2N random Fourier features. These enter S (2N x 2N) and u (2N) 1,024 samples at a time: its memory does not grow
with n.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.preprocessing import normalize as unit_rows
from sklearn.utils import gen_batches
from sklearn.utils.validation import check_is_fitted, validate_data

from fdamed.classical import kernels
from fdamed.classical.inputs import Array, Domains, count, one_of, positive, read
from fdamed.classical.kernels import KERNELS, frequencies, gram, random_features, shape, width
from fdamed.classical.spectral import SCALES, Solution, rftca, rtca, tca


@dataclass(eq=False, repr=False)
class KernelComponents(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """What the TCA family and JDA share: options, their checks, and the components W.

    n_components: None is min(100, rank). gamma > 0. sigma: width of the kernel, a number or "median" (distance).
    normalize: samples at norm 1 first. scale: of the components, "variance" (all equal: the constraint) or "penalty"
    (|w| = 1, R-TCA w' K w = 1; better for distances, see spectral.py). unit_norm: of the features that come out.
    """

    kernels: ClassVar[tuple[str, ...]] = KERNELS
    metric: ClassVar[str] = "euclidean"
    """Of the distances whose median is sigma."""

    n_components: int | None = None
    gamma: float = 1.0
    kernel: str = "gaussian"
    sigma: float | str = "median"
    normalize: bool = True
    scale: str = "variance"
    unit_norm: bool = False

    @abstractmethod
    def fit(self, X: Any, y: Any = None, sample_domain: Any = None) -> Self:
        """Learn W from samples of both domains; JDA also from y. sample_domain: positive source, negative target."""

    def transform(self, X: Any) -> Array:
        """Features of samples of any domain, (n, m), some rows at a time."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        out = np.empty((len(X), self.n_components_))
        for rows in gen_batches(len(X), kernels.BLOCK):
            part = self._rows(X[rows])
            out[rows] = part @ self.W_.astype(part.dtype)
        return self._finish(out)

    def _checked(self, X: Any, y: Any, sample_domain: Any, labels: bool = False) -> Domains:
        """The input of a fit, after the options were checked; sets `sigma_`."""
        where = type(self).__name__
        positive(self.gamma, "gamma", where)
        one_of(self.kernel, self.kernels, "kernel", where)
        one_of(self.scale, SCALES, "scale", where)
        if self.n_components is not None:
            count(self.n_components, "n_components", where)
        given = read(self, X, y, sample_domain, labels=labels)
        self.sigma_ = 1.0
        if self.kernel != "linear":
            self.sigma_ = width(self.sigma, self.metric, given.X, self.normalize, where)
        self._where = f"{where}, {shape(given.X)}"
        return given

    def _prepared(self, X: Array) -> Array:
        X = X.astype(np.float64)
        return unit_rows(X) if self.normalize else X

    def _kernel_matrix(self, X: Array) -> Array:
        """K (n, n) of the samples to fit, which are kept for `transform`."""
        self.X_fit_ = self._prepared(X)
        return gram(self.X_fit_, self.X_fit_, self.kernel, self.sigma_)

    def _keep(self, found: Solution, W: Array) -> None:
        self.W_, self.eigenvalues_ = W, found.values
        self.n_components_ = self._n_features_out = W.shape[1]

    def _rows(self, X: Array) -> Array:
        """What W multiplies for new samples: k(x_i, X_fit), (b, n)."""
        return gram(self._prepared(X), self.X_fit_, self.kernel, self.sigma_)

    def _finish(self, features: Array) -> Array:
        return unit_rows(features) if self.unit_norm else features


@dataclass(eq=False, repr=False)
class TCA(KernelComponents):
    """Vanilla TCA. kernel: gaussian or linear."""

    solve: ClassVar[Any] = staticmethod(tca)

    def fit(self, X: Any, y: Any = None, sample_domain: Any = None) -> Self:
        given = self._checked(X, y, sample_domain)
        K = self._kernel_matrix(given.X)
        found = self.solve(K, given.ell, float(self.gamma), self.n_components, self._where)
        self._keep(found, found.scaled(self.scale))
        return self


@dataclass(eq=False, repr=False)
class RTCA(TCA):
    """R-TCA: the penalty is that of functions in the kernel's space. Parameters are those of TCA."""

    solve: ClassVar[Any] = staticmethod(rtca)


@dataclass(eq=False, repr=False)
class RFTCA(KernelComponents):
    """RF-TCA with N frequencies (2N features) from `seed`; precision: of the features, the eigenproblem is float64."""

    kernels: ClassVar[tuple[str, ...]] = ("gaussian",)

    N: int = 500
    precision: str = "float32"
    seed: int = 0

    def fit(self, X: Any, y: Any = None, sample_domain: Any = None) -> Self:
        count(self.N, "N", "RFTCA")
        one_of(self.precision, ("float32", "float64"), "precision", "RFTCA")
        given = self._checked(X, y, sample_domain)
        self.omega_ = self.draw_frequencies(given.X.shape[1]).astype(self.precision)
        S, u = self._moments(given)
        found = rftca(S, u, float(self.gamma), self.n_components, self._where)
        self._keep(found, found.scaled(self.scale))
        return self

    def draw_frequencies(self, p: int) -> Array:
        return frequencies(self.sigma_, self.N, p, self.seed)

    def _rows(self, X: Array) -> Array:
        return random_features(X, self.omega_, self.normalize)

    def _moments(self, given: Domains) -> tuple[Array, Array]:
        """S = Sigma H Sigma' and u = Sigma l.

        Sums are taken about the mean of a few samples: numbers near 0 cancel less.
        """
        n, size = len(given.X), 2 * len(self.omega_)
        S, total, u = np.zeros((size, size)), np.zeros(size), np.zeros(size)
        origin = self._rows(given.X[:32]).mean(axis=0, dtype=np.float64)
        for rows in gen_batches(n, kernels.BLOCK):
            Z = self._rows(given.X[rows]) - origin
            S += Z.T @ Z
            total += Z.sum(axis=0)
            u += given.ell[rows] @ Z  # the origin drops out: l sums to 0
        S -= np.outer(total, total / n)
        return S, u
