"""RF-TCA against vanilla TCA, the symmetric routes against the textbook's, and what a fit costs as n grows.

`python -m benchmarks.tca` prints one JSON line (some minutes); one BLAS thread unless OMP_NUM_THREADS says otherwise,
CPU seconds of one call each (RF-TCA: median of three) at n = 3,600, p = 4,096, m = 100, N = 500, from X to features.
speedup = vanilla TCA / RF-TCA, with TCA by the dense symmetric route and by Lanczos (its default at this n).
symmetric_ratio = textbook / symmetric for the solver alone at n = 1,800 (at 3,600 the textbook takes 8 times longer);
the textbook is inv(gamma I + K L K) K H K and an unsymmetric eig. Accuracies in % on a synthetic target whose mean is
elsewhere, with the labels of the source alone. memory_mb: the peak of a fit beyond its data.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy loads its BLAS

import json
import statistics
import time
import tracemalloc
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import normalize as unit_rows
from sklearn.svm import SVC

from fdamed.classical import RFTCA, TCA, spectral
from fdamed.classical.kernels import gram
from fdamed.core.rng import stream

SAMPLES, FEATURES, COMPONENTS, FREQUENCIES = 3600, 4096, 100, 500
GAMMA, SIGMA = 1e-3, 10.0
TEXTBOOK = 1800
GROWTH, GROWTH_FEATURES = (1000, 2000, 5000, 10_000, 20_000, 50_000), 256
CLASSES, LATENT = 10, 100


def shifted(n: int, p: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ten classes in 100 latent directions; the target's mean lies twice as far off as a sample from its class's."""
    rng = stream(0, "tca", n, p).numpy
    y = np.arange(n) % CLASSES
    domain = np.where(np.arange(n) < n // 2, 1, -1)
    latent = 0.5 * rng.normal(size=(CLASSES, LATENT))[y] + rng.normal(size=(n, LATENT))
    latent[domain < 0] += 2.0 * rng.normal(size=LATENT)
    X = latent @ (rng.normal(size=(LATENT, p)) / np.sqrt(LATENT))
    X += 0.1 * rng.normal(size=(n, p))
    return X, y, domain


def spent(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def accuracies(features: np.ndarray, y: np.ndarray, domain: np.ndarray) -> dict[str, float]:
    source = domain > 0
    return {
        name: round(100 * float(model.fit(features[source], y[source]).score(features[~source], y[~source])), 2)
        for name, model in (("1nn", KNeighborsClassifier(1)), ("svm", SVC(C=1.0)))
    }


def textbook(K: np.ndarray, ell: np.ndarray) -> np.ndarray:
    """The eigenvalues as the papers print them: invert, multiply, unsymmetric eig, sort, real parts."""
    n = len(K)
    H = np.eye(n) - 1.0 / n
    matrix = np.linalg.inv(GAMMA * np.eye(n) + K @ np.outer(ell, ell) @ K) @ (K @ H @ K)
    values, _ = np.linalg.eig(matrix)
    return np.sort(values.real)[::-1][:COMPONENTS]


def compared() -> dict[str, Any]:
    X, y, domain = shifted(SAMPLES, FEATURES)
    settings: dict[str, Any] = {"n_components": COMPONENTS, "gamma": GAMMA, "sigma": SIGMA}
    RFTCA(N=FREQUENCIES, **settings).fit(X[::12], None, domain[::12])
    model = RFTCA(N=FREQUENCIES, **settings)
    thrice = [spent(lambda: model.fit_transform(X, None, sample_domain=domain)) for _ in range(3)]
    random, ours = statistics.median(seconds for seconds, _ in thrice), thrice[0][1]
    krylov, exact = spent(lambda: TCA(**settings).fit_transform(X, None, sample_domain=domain))
    with patch.object(spectral, "DENSE", SAMPLES):
        dense, _ = spent(lambda: TCA(**settings).fit_transform(X, None, sample_domain=domain))
    got = {name: accuracies(unit_rows(F - F.mean(axis=0)), y, domain) for name, F in (("tca", exact), ("rftca", ours))}
    return {
        "speedup": {"dense": round(dense / random, 1), "lanczos": round(krylov / random, 1)},
        "seconds": {"rftca": round(random, 2), "tca_dense": round(dense, 2), "tca_lanczos": round(krylov, 2)},
        "accuracy": got | {"unaligned": accuracies(unit_rows(X[:, ::8]), y, domain)},
        "gap_points": round(max(abs(got["tca"][k] - got["rftca"][k]) for k in ("1nn", "svm")), 2),
    }


def against_textbook() -> dict[str, Any]:
    X, _, domain = shifted(TEXTBOOK, FEATURES // 8)
    X = unit_rows(X)
    K = gram(X, X, "gaussian", SIGMA)
    source = domain > 0
    ell = source / source.sum() - ~source / (~source).sum()
    with patch.object(spectral, "DENSE", TEXTBOOK):
        dense, found = spent(lambda: spectral.tca(K, ell, GAMMA, COMPONENTS))
    krylov, _ = spent(lambda: spectral.tca(K, ell, GAMMA, COMPONENTS))
    slow, values = spent(lambda: textbook(K, ell))
    return {
        "symmetric_ratio": {"dense": round(slow / dense, 1), "lanczos": round(slow / krylov, 1)},
        "textbook_s": round(slow, 2),
        "textbook_n": TEXTBOOK,
        "textbook_error": float(np.abs(values / found.values - 1).max()),
    }


def growth() -> dict[str, Any]:
    seconds, megabytes = {}, {}
    for n in GROWTH:
        X, _, domain = shifted(n, GROWTH_FEATURES)
        model = RFTCA(COMPONENTS, N=FREQUENCIES, sigma=1.0)
        seconds[n] = round(spent(partial(model.fit, X, None, domain))[0], 2)
        tracemalloc.start()
        model.fit(X, None, domain)
        megabytes[n] = round(tracemalloc.get_traced_memory()[1] / 1e6, 1)
        tracemalloc.stop()
    n, t = np.array(list(seconds)), np.array(list(seconds.values()))
    slope, start = np.polyfit(n, t, 1)
    explained = 1 - np.square(t - start - slope * n).sum() / np.square(t - t.mean()).sum()
    return {
        "seconds": seconds,
        "memory_mb": megabytes,
        "ms_per_1000_samples": round(1e6 * slope, 1),
        "linear_r2": round(float(explained), 4),
        "exponent_5000_to_50000": round(float(np.log10((seconds[50_000] - start) / (seconds[5000] - start))), 2),
    }


def main() -> None:
    warnings.simplefilter("ignore")
    line = {"benchmark": "tca"} | compared() | against_textbook() | {"growth": growth()}
    print(json.dumps(line | {"threads": int(os.environ["OMP_NUM_THREADS"])}))


if __name__ == "__main__":
    main()
