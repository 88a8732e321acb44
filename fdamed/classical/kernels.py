"""The Gaussian kernel exp(-|x - y|^2 / (2 sigma^2)), exact and by random Fourier features, and the linear kernel x . y.

The features are those of the FedRF-TCA paper, Definition 1: frequencies are normal with standard deviation 1 / sigma.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial.distance import pdist
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import normalize as unit_rows

from fdamed.classical.inputs import Array, BadInput, one_of, positive
from fdamed.core.rng import stream

KERNELS = ("gaussian", "linear")
SAMPLED = 256
"""Samples whose distances give the median: enough for a scale, whatever n."""
BLOCK = 1024
"""Rows that are turned into random features at a time."""


def width(sigma: Any, metric: str, X: Array, normalize: bool, where: str) -> float:
    """The number given, or with "median" the median distance of up to 256 samples spread evenly over X."""
    if not isinstance(sigma, str):
        return positive(sigma, "sigma", where)
    one_of(sigma, ("median",), "sigma", where)
    some = X[np.unique(np.linspace(0, len(X) - 1, min(SAMPLED, len(X))).astype(int))].astype(np.float64)
    distances = pdist(unit_rows(some) if normalize else some, metric)
    apart = distances[distances > 1e-12 * max(1.0, float(distances.max()))]
    if not len(apart):
        raise BadInput("all samples are alike", f"{where}, {shape(X)}", "Give features that vary.")
    return float(np.median(apart))


def shape(X: Array) -> str:
    """The size of X in scikit-learn's words."""
    return f"n_samples={len(X)}, n_features={X.shape[1]}"


def gram(X: Array, Y: Array, kernel: str, sigma: float) -> Array:
    """k(x_i, y_j) of float64 samples, (n, p), (m, p) -> (n, m)."""
    K: Array = rbf_kernel(X, Y, gamma=0.5 / sigma**2) if kernel == "gaussian" else X @ Y.T
    return K


def frequencies(sigma: float, N: int, p: int, seed: int) -> Array:
    """Omega, (N, p), of the Gaussian kernel: the same for every client that knows the seed."""
    return stream(seed, "rff", "gaussian").numpy.standard_normal((N, p)) / sigma


def random_features(X: Array, omega: Array, normalize: bool) -> Array:
    """N^(-1/2) [cos(X Omega'), sin(X Omega')], (b, 2N): every row has norm 1."""
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
