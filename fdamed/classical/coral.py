"""CORAL (Sun, Feng, Saenko 2016): the source gets the target's covariance.

X_S C_S^(-1/2) C_T^(1/2) with C = cov + ridge I; the target stays as it is. No p x p matrix where samples are fewer
than features: C^q = ridge^q I + V ((ridge + s)^q - ridge^q) V' from the thin decomposition cov = V s V'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.linalg import eigh
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fdamed.classical.inputs import Array, of_source, positive, read


@dataclass(frozen=True)
class Spread:
    """A domain's mean (p,) and covariance V diag(s) V', V (p, r)."""

    mean: Array
    V: Array
    s: Array

    def power(self, Y: Array, q: float, ridge: float) -> Array:
        """Y (cov + ridge I)^q, (b, p) -> (b, p)."""
        change = (ridge + self.s) ** q - ridge**q
        out: Array = ridge**q * Y + ((Y @ self.V) * change) @ self.V.T
        return out


def spread(X: Array) -> Spread:
    """The unbiased covariance of (n, p) by the smaller of its two eigenproblems; zero for one sample."""
    n, p = X.shape
    mean = X.mean(axis=0)
    Xc = (X - mean) / np.sqrt(max(n - 1, 1))
    s, vectors = eigh(Xc.T @ Xc if p <= n else Xc @ Xc.T, check_finite=False)
    real = s > 1e-13 * max(float(s[-1]), np.finfo(float).tiny)
    s, vectors = s[real], vectors[:, real]
    return Spread(mean, vectors if p <= n else (Xc.T @ vectors) / np.sqrt(s), s)


@dataclass(eq=False, repr=False)
class CORAL(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """CORAL with C = cov + ridge I; center also subtracts each domain's mean.

    `fit_transform(X, y, sample_domain)` moves the source samples and leaves the target's; `transform(X)` takes its
    samples for the target's (what a classifier is asked about) unless sample_domain says otherwise.
    """

    ridge: float = 1.0
    center: bool = False

    def fit(self, X: Any, y: Any = None, sample_domain: Any = None) -> Self:
        """Both covariances; y is not used. sample_domain: positive source, negative target."""
        positive(self.ridge, "ridge", "CORAL")
        given = read(self, X, y, sample_domain)
        X = given.X.astype(np.float64)
        self.target_ = spread(X[given.target])
        self.source_ = self.target_ if sample_domain is None else spread(X[given.source])
        return self

    def transform(self, X: Any, sample_domain: Any = None) -> Array:
        """The samples in the target's coordinates, (n, p)."""
        check_is_fitted(self)
        moved: Array = validate_data(self, X, reset=False, dtype=np.float64, copy=True)
        source = np.zeros(len(moved), dtype=bool)
        if sample_domain is not None:
            source = of_source(sample_domain, len(moved), "CORAL")
        if self.center:
            moved[source] -= self.source_.mean
            moved[~source] -= self.target_.mean
        whitened = self.source_.power(moved[source], -0.5, self.ridge)
        moved[source] = self.target_.power(whitened, 0.5, self.ridge)
        return moved

    def fit_transform(self, X: Any, y: Any = None, sample_domain: Any = None) -> Array:
        """Fit, then move the source samples."""
        return self.fit(X, y, sample_domain).transform(X, sample_domain)
