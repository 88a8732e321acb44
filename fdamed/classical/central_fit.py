"""One classical row, where the features of all clients meet: ask, align, classify, answer.

Aligned are the sources' samples and the target's unlabeled training samples. The samples that the target asks about
come afterwards: like the test images of a federated method, nothing is learned from them.
Settings are chosen without the target's labels, by reverse validation (Zhong et al. 2010): the nearest neighbors in
four fifths of the source label the target; the nearest neighbors in the target, with those labels, are scored on the
source's last fifth. Features are aligned once for each candidate, from all samples; JDA and DaNN have seen the last
fifth's labels then, each candidate alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import Tensor

from fdamed.classical.inputs import Array, BadInput, Shrunk
from fdamed.classical.messages import (
    Backbone,
    Probabilities,
    Received,
    receive_predictions,
    send_rows,
    send_test_features,
    send_unlabeled,
)
from fdamed.classical.registry import Row
from fdamed.core.errors import FdamedError
from fdamed.federation.server import Server

MOST = 20_000
"""Samples of which an n x n matrix is still made: 3.2 GB."""
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "1nn": lambda: KNeighborsClassifier(1),
    "svm": SVC,
    "logistic": lambda: LogisticRegression(max_iter=1000),
}


def pool(row: Row, theta: Tensor, server: Server, classes: int, seed: int) -> Row:
    """The whole row: the predictions are in the target's memory afterwards; returns the row that was fitted."""
    backbone = Backbone(x=theta)
    labeled = [server.ask(client, send_rows, backbone) for client in server.sources]
    unlabeled = server.ask(server.target, send_unlabeled, backbone).z
    y = torch.cat([rows.y for rows in labeled]).numpy()
    domain = np.repeat([*range(1, len(labeled) + 1), -1], [*(len(rows.z) for rows in labeled), len(unlabeled)])
    X = torch.cat([*(rows.z for rows in labeled), unlabeled]).double().numpy()
    X, standard = standardized(row, X, domain)
    fitted, estimator, features = chosen(row, X, y, domain, seed)
    asked = server.ask(server.target, send_test_features, Received(n=len(X))).z
    Z = standard(asked.double().numpy())
    if hasattr(estimator, "predict_proba"):
        classifier = estimator
    else:
        classifier = CLASSIFIERS[fitted.classifier]().fit(features[domain > 0], y)
        Z = estimator.transform(Z)
    p = np.zeros((len(Z), classes), dtype=np.float32)  # a class that no source has gets probability 0
    p[:, classifier.classes_] = probabilities(classifier, Z)
    server.ask(server.target, receive_predictions, Probabilities(p=torch.from_numpy(p)))
    return fitted


def standardized(row: Row, X: Array, domain: Array) -> tuple[Array, Callable[[Array], Array]]:
    """The training samples as the row wants them, and how the target's further samples become the same."""
    if row.zscore == "none":
        return X, lambda more: more
    out = X.copy()
    for d in np.unique(domain):
        out[domain == d] = StandardScaler().fit_transform(X[domain == d])
    return out, StandardScaler().fit(X[domain < 0]).transform


def chosen(row: Row, X: Array, y: Array, domain: Array, seed: int) -> tuple[Row, Any, Array]:
    """The row, its estimator and features (n, d'); with `choose`, of the candidate that reverse validation chooses."""
    if row.exact and len(X) > MOST:
        what = f"{type(row).title} needs a matrix of {len(X):,} x {len(X):,} samples"
        raise FdamedError(what, "the pooled features", f"Use rftca, whose cost is linear, above {MOST:,} samples.")
    source = domain > 0
    labels = np.zeros(len(X), dtype=np.int64)
    labels[source] = y
    fits = []
    for candidate in row.candidates() if row.choose else [row]:
        estimator = candidate.estimator(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Shrunk)
            fits.append((candidate, estimator, estimator.fit_transform(X, labels, sample_domain=domain)))
    if len(fits) == 1:
        return fits[0]
    return max(fits, key=lambda fit: reverse_accuracy(squared_distances(fit[2][~source], fit[2][source]), y))


def probabilities(classifier: Any, X: Array) -> Array:
    """(b, C); of a classifier that has none, the softmax of its margins (the same order)."""
    if hasattr(classifier, "predict_proba"):
        p: Array = classifier.predict_proba(X)
        return p
    margins = np.asarray(classifier.decision_function(X), dtype=np.float64)
    if margins.ndim == 1:
        margins = np.stack([np.zeros_like(margins), margins], axis=1)
    shares: Array = softmax(margins, axis=1)
    return shares


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
