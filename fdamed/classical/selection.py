"""Classifiers by name, and hyper-parameters without the target's labels: reverse validation (Zhong et al. 2010).

The nearest neighbors in four fifths of the source label the target; the nearest neighbors in the target, with those
labels, are scored on the source's last fifth. Features are aligned once for each candidate, from all samples; JDA and
DaNN have seen the last fifth's labels then, each candidate alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import SVC

from fdamed.classical.inputs import Array, BadInput


class Unaligned(FunctionTransformer):  # type: ignore[misc]
    """The features as they are."""

    def fit_transform(self, X: Array, y: Array, sample_domain: Array) -> Array:
        return X


def _mlp(seed: int) -> Any:
    """That of paper 002: two layers of 100, Adam 2e-3, batches of 100, 50 epochs."""
    settings = {"learning_rate_init": 2e-3, "batch_size": 100, "max_iter": 50, "n_iter_no_change": 50}
    return MLPClassifier((100, 100), random_state=seed, **settings)


CLASSIFIERS: dict[str, Callable[[int], Any]] = {
    "1nn": lambda seed: KNeighborsClassifier(1),
    "svm": lambda seed: SVC(),
    "linear": lambda seed: SVC(kernel="linear"),
    "logistic": lambda seed: LogisticRegression(max_iter=1000),
    "mlp": _mlp,
}
"""Name -> classifier with a seed."""


def squared_distances(A: Array, B: Array) -> Array:
    """|a_i|^2 - 2 a_i . b_j + |b_j|^2, (n, d), (m, d) -> (n, m)."""
    D: Array = np.square(A).sum(axis=1)[:, None] - 2.0 * (A @ B.T) + np.square(B).sum(axis=1)
    return D


def reverse_accuracy(D: Array, y: Array, folds: int = 5) -> float:
    """The share of the source's samples whose own label comes back, from distances (n_T, n_S) and labels (n_S,)."""
    least = int(np.unique(y, return_counts=True)[1].min())
    if least < 2:
        raise BadInput("a class with one source sample", "reverse validation", "Give each class at least two.")
    right = 0
    for kept, judged in StratifiedKFold(min(folds, least), shuffle=True, random_state=0).split(y, y):
        guess = y[kept][D[:, kept].argmin(axis=1)]
        right += int((guess[D[:, judged].argmin(axis=0)] == y[judged]).sum())
    return right / len(y)
