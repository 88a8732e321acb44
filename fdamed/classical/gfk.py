"""The geodesic flow kernel (Gong et al. 2012) in closed form.

The geodesic a cos(t theta) + b sin(t theta) runs from the source's principal subspace (t = 0) to the target's (t = 1);
G is its integral. Features Z (n, 2k) with Z Z' = X G X', so that no p x p root is taken.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fdamed.classical.coral import spread
from fdamed.classical.inputs import Array, BadInput, Shrunk, count, read
from fdamed.classical.kernels import shape

DEFAULT_COMPONENTS = 20


def principal(X: Array) -> Array:
    """The principal directions of a centered domain, largest variance first, (p, rank)."""
    found = spread(X)
    order = np.argsort(-found.s, kind="stable")
    return found.V[:, order[found.s[order] > 1e-12 * max(found.s, default=0.0)]]


def geodesic(P_s: Array, P_t: Array) -> tuple[Array, Array, Array]:
    """Principal angles (k,) of two subspaces with orthonormal bases (p, k), and the flow's a, b (p, k); b may be 0."""
    U, cosine, Vt = np.linalg.svd(P_s.T @ P_t)
    cosine = np.clip(cosine, -1.0, 1.0)
    a = P_s @ U
    rest = P_t @ Vt.T - a * cosine
    sine = np.linalg.norm(rest, axis=0)
    theta = np.arctan2(sine, cosine)
    apart = theta > 1e-8
    return np.where(apart, theta, 0.0), a, np.where(apart, rest / np.where(apart, sine, 1.0), 0.0)


def root(theta: Array, a: Array, b: Array) -> Array:
    """R (p, 2k) with G = R R': the Cholesky factors of the blocks [[l1, l2], [l2, l3]]."""
    half = np.sinc(2 * theta / np.pi)
    l1, l3 = 0.5 * (1 + half), 0.5 * (1 - half)
    l2 = 0.5 * np.sin(theta) * np.sinc(theta / np.pi)
    first = np.sqrt(l1)
    last = np.sqrt(np.maximum(l3 - l2**2 / l1, 0.0))
    return np.hstack([a * first + b * (l2 / first), b * last])


@dataclass(eq=False, repr=False)
class GFK(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """GFK with subspaces of n_components dimensions; None is min(20, n_S - 1, n_T - 1, p / 2).

    Samples should be z-scored within their domain; `transform` uses them as they come.
    """

    n_components: int | None = None

    def fit(self, X: Any, y: Any = None, sample_domain: Any = None) -> Self:
        """Both subspaces and the flow; y is not used. sample_domain: positive source, negative target."""
        asked = None if self.n_components is None else count(self.n_components, "n_components", "GFK")
        given = read(self, X, y, sample_domain)
        where = f"GFK, {shape(given.X)}"
        X = given.X.astype(np.float64)
        P_s, P_t = principal(X[given.source]), principal(X[given.target])
        k = min(P_s.shape[1], P_t.shape[1], max(1, X.shape[1] // 2))
        if k == 0:
            fix = "Give at least two different samples of each domain."
            raise BadInput("a domain whose samples do not vary", where, fix)
        if asked is not None and asked > k:
            warnings.warn(f"{k} dimensions instead of {asked}: no more fit ({where})", Shrunk, stacklevel=2)
        k = min(asked or DEFAULT_COMPONENTS, k)
        self.root_ = root(*geodesic(P_s[:, :k], P_t[:, :k]))
        self.n_components_, self._n_features_out = k, 2 * k
        return self

    def transform(self, X: Any) -> Array:
        """Features of samples of any domain, (n, 2k)."""
        check_is_fitted(self)
        features: Array = validate_data(self, X, reset=False, dtype=np.float64) @ self.root_
        return features
