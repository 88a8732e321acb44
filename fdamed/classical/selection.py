"""Hyper-parameters without the target's labels: reverse validation on the aligned features (Zhong et al. 2010).

The nearest neighbors in four fifths of the source label the target; the nearest neighbors in the target, with those
labels, are judged on the source's last fifth. Features are aligned once for each candidate, from all samples; JDA and
DaNN have seen the last fifth's labels then, each candidate alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import FunctionTransformer

from fdamed.classical.inputs import Array, BadInput, one_of
from fdamed.classical.kernels import unit_rows


class Unaligned(FunctionTransformer):  # type: ignore[misc]
    """The features as they are."""

    def fit_transform(self, X: Array, y: Array, sample_domain: Array) -> Array:
        return X


@dataclass(frozen=True)
class View:
    """How many leading components of an estimator's features are used, centered or not, at equal variance or not, and
    each sample at length 1 or not."""

    components: int | None = None
    center: bool = False
    unit_norm: bool = False
    equal: bool = False

    def of(self, features: Array) -> Array:
        """The features that a classifier sees."""
        part = features[:, : self.components]
        if self.equal:
            spread = part.std(axis=0)
            part = part / np.where(spread > 0, spread, 1.0)
        part = part - part.mean(axis=0) if self.center else part
        return unit_rows(part) if self.unit_norm else part


@dataclass(frozen=True)
class Candidate:
    """A setting with its estimator; components are nested, so that one fit serves several views."""

    name: str
    estimator: Any
    views: tuple[View, ...] = (View(),)


@dataclass(frozen=True)
class Fitted:
    """A candidate with its features of all samples (n, d), and its own predictions (n,) if it is a classifier."""

    candidate: Candidate
    features: Array
    predicted: Array | None


@dataclass(frozen=True)
class Tried:
    """A setting, the view of it, its score without target labels and the target's predictions (n_T,)."""

    name: str
    view: View
    score: float
    predicted: Array


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


def fitted(candidates: Sequence[Candidate], X: Array, y: Array, source: Array) -> list[Fitted]:
    """Every candidate fitted; y (n_S,) are the source's labels, the target's are not to be had here."""
    labels = np.zeros(len(X), dtype=y.dtype)
    labels[source] = y
    fits = []
    for candidate in candidates:
        model = clone(candidate.estimator)
        features = model.fit_transform(X, labels, sample_domain=np.where(source, 1, -1))
        fits.append(Fitted(candidate, features, model.predict(X) if hasattr(model, "predict") else None))
    return fits


CLASSIFIERS = ("1nn", "svm", "linear", "logistic", "mlp")


def classifier(name: str, seed: int = 0) -> Any:
    """A classifier by its name; mlp is that of paper 002: two layers of 100, Adam 2e-3, batches of 100, 50 epochs."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import SVC

    one_of(name, CLASSIFIERS, "classifier", "classical")
    if name == "1nn":
        return KNeighborsClassifier(1)
    if name == "mlp":
        return MLPClassifier(
            (100, 100), learning_rate_init=2e-3, batch_size=100, max_iter=50, n_iter_no_change=50, random_state=seed
        )
    if name == "logistic":
        return LogisticRegression(max_iter=1000)
    return SVC(C=1.0, kernel="rbf" if name == "svm" else "linear")


def tried(fits: Sequence[Fitted], y: Array, source: Array, judge: str = "1nn") -> list[Tried]:
    """Every view of every candidate with the classifier `judge`, or the candidate's own predictions."""
    results = []
    for fit in fits:
        for view in fit.candidate.views:
            Z = view.of(fit.features)
            D = squared_distances(Z[~source], Z[source])
            if fit.predicted is not None:
                guess = fit.predicted[~source]
            elif judge == "1nn":
                guess = y[D.argmin(axis=1)]
            else:
                guess = classifier(judge).fit(Z[source], y).predict(Z[~source])
            results.append(Tried(fit.candidate.name, view, reverse_accuracy(D, y), guess))
    return results


def chosen(results: Sequence[Tried]) -> Tried:
    """The first of the best by reverse validation."""
    return max(results, key=lambda r: r.score)
