"""Kernels of a length sigma, exact and by random Fourier features (paper 002, definition 1; specification 10.2).

gaussian   exp(-|x - y|^2 / (2 sigma^2))              frequencies normal, standard deviation 1 / sigma
laplacian  exp(-|x - y|_1 / sigma)                    frequencies Cauchy, scale 1 / sigma
cauchy     prod_j 1 / (1 + (x_j - y_j)^2 / sigma^2)   frequencies Laplace, scale 1 / sigma
linear     x . y                                      exact only
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist, pdist

from fdamed.classical.inputs import Array, BadInput, one_of, positive
from fdamed.core.rng import stream

RANDOM = ("gaussian", "laplacian", "cauchy")
EXACT = (*RANDOM, "linear")
SAMPLED = 256
"""Samples whose distances give the median: enough for a scale, whatever n."""
BLOCK = 1024
"""Rows that are turned into random features at a time."""


def unit_rows(X: Array) -> Array:
    """Each sample at length 1; a zero sample stays zero."""
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    scaled: Array = X / np.where(norms > 0, norms, 1.0).astype(X.dtype)
    return scaled


def length(sigma: Any, kernel: str, X: Array, normalize: bool, where: str) -> float:
    """The number given, or with "median" the median distance of up to 256 samples spread evenly over X."""
    if kernel == "linear":
        return 1.0
    if not isinstance(sigma, str):
        return positive(sigma, "sigma", where)
    one_of(sigma, ("median",), "sigma", where)
    some = X[np.unique(np.linspace(0, len(X) - 1, min(SAMPLED, len(X))).astype(int))].astype(np.float64)
    some = unit_rows(some) if normalize else some
    distances = pdist(some, "cityblock") if kernel == "laplacian" else _euclidean(some)
    apart = distances[distances > 1e-12 * max(1.0, float(distances.max()))]
    if not len(apart):
        raise BadInput("all samples are alike", f"{where}, {shape(X)}", "Give features that vary.")
    return float(np.median(apart))


def shape(X: Array) -> str:
    """The size of X in scikit-learn's words."""
    return f"n_samples={len(X)}, n_features={X.shape[1]}"


def gram(X: Array, Y: Array, kernel: str, sigma: float) -> Array:
    """k(x_i, y_j), (n, p), (m, p) -> (n, m), in float64."""
    X, Y = X.astype(np.float64, copy=False), Y.astype(np.float64, copy=False)
    same = X is Y
    if kernel == "gaussian":
        K = _squared(X, Y)
        if same:
            np.fill_diagonal(K, 0.0)
        K *= -0.5 / sigma**2
        np.exp(K, out=K)
    elif kernel == "laplacian":
        K = cdist(X, Y, "cityblock")
        K *= -1.0 / sigma
        np.exp(K, out=K)
    elif kernel == "cauchy":
        K = np.ones((len(X), len(Y)))
        for x, y in zip(X.T / sigma, Y.T / sigma, strict=True):
            K /= 1.0 + np.square(x[:, None] - y[None, :])
    else:
        K = X @ Y.T
    return K


def frequencies(kernel: str, sigma: float, N: int, p: int, seed: int) -> Array:
    """Omega, (N, p): the same for every client that knows the seed."""
    draw = stream(seed, "rff", kernel).numpy
    if kernel == "gaussian":
        return draw.standard_normal((N, p)) / sigma
    if kernel == "laplacian":
        return draw.standard_cauchy((N, p)) / sigma
    return draw.laplace(scale=1.0 / sigma, size=(N, p))


def random_features(X: Array, omega: Array, normalize: bool) -> Array:
    """N^(-1/2) [cos(X Omega'), sin(X Omega')], (b, 2N): every row has length 1."""
    X = X.astype(omega.dtype, copy=False)
    N = len(omega)
    angle = X @ omega.T
    if normalize:  # the N angles of a sample cost less to scale than its p features
        norms = np.sqrt(np.einsum("ij,ij->i", X, X))
        angle /= np.where(norms > 0, norms, 1)[:, None].astype(omega.dtype)
    out = np.empty((len(X), 2 * N), dtype=omega.dtype)
    np.cos(angle, out=out[:, :N])
    np.sin(angle, out=out[:, N:])
    out *= omega.dtype.type(N**-0.5)
    return out


def project(X: Array, fitted: Array, W: Array, kernel: str, sigma: float, normalize: bool) -> Array:
    """k(x_i, fitted) W, (n, m), some rows at a time: no (n, n_fitted) matrix."""
    out = np.empty((len(X), W.shape[1]))
    for rows in blocks(len(X)):
        part = X[rows].astype(np.float64)
        out[rows] = gram(unit_rows(part) if normalize else part, fitted, kernel, sigma) @ W
    return out


def blocks(n: int) -> Iterator[slice]:
    """Stretches of at most 1,024 rows."""
    for start in range(0, n, BLOCK):
        yield slice(start, min(start + BLOCK, n))


def _squared(X: Array, Y: Array) -> Array:
    """|x_i - y_j|^2 about the mean of Y: numbers near 0 lose the fewest digits."""
    middle = Y.mean(axis=0)
    X, Y = (X - middle, Y - middle) if X is not Y else (centered := X - middle, centered)
    D = X @ Y.T
    D *= -2.0
    D += np.square(X).sum(axis=1)[:, None]
    D += np.square(Y).sum(axis=1)[None, :]
    np.maximum(D, 0.0, out=D)
    return D


def _euclidean(X: Array) -> Array:
    """Distances of all pairs of different rows."""
    squared: Array = _squared(X, X)[np.triu_indices(len(X), 1)]
    return np.sqrt(squared)
