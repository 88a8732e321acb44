"""One classical row, at the place where the features of all hospitals meet: ask, align, classify, answer.

Aligned are the sources' samples and the target's unlabeled training samples. The samples that the target asks about
come afterwards: like the test images of a federated method, they are never learned from.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fdamed.classical.inputs import Array, Shrunk
from fdamed.classical.messages import (
    Backbone,
    Probabilities,
    Received,
    send_questions,
    send_rows,
    send_unlabeled,
    take_answers,
)
from fdamed.classical.registry import Row
from fdamed.classical.selection import classifier, reverse_accuracy, squared_distances
from fdamed.core.errors import FdamedError
from fdamed.federation.server import Server

MOST = 20_000
"""Samples of which an n x n matrix is still made: 3.2 GB."""


@dataclass(frozen=True)
class Fit:
    """A row with its aligned samples and what it takes to align more samples of the target."""

    row: Row
    estimator: Any
    features: Array
    """Of all training samples, (n, d')."""


@dataclass(frozen=True)
class Standard:
    """z-scores; the identity where mean is 0 and spread 1."""

    mean: Array
    spread: Array

    @classmethod
    def of(cls, X: Array) -> Standard:
        spread = X.std(axis=0)
        return cls(X.mean(axis=0), np.where(spread > 0, spread, 1.0))

    def __call__(self, X: Array) -> Array:
        scored: Array = (X - self.mean) / self.spread
        return scored


def pool(row: Row, theta: Tensor, server: Server, classes: int, seed: int) -> Row:
    """The whole row: its answers are in the target's memory afterwards; back comes the row that was fitted."""
    backbone = Backbone(x=theta)
    told = {client: server.ask(client, send_rows, backbone) for client in server.sources}
    unlabeled = server.ask(server.target, send_unlabeled, backbone).z.numpy()
    parts = [told[p].z.numpy() for p in server.sources]
    y = np.concatenate([told[p].y.numpy() for p in server.sources])
    domain = np.repeat([*range(1, len(parts) + 1), -1], [*map(len, parts), len(unlabeled)])
    X, standard = standardized(row, np.vstack([*parts, unlabeled]).astype(np.float64), domain)
    found = chosen(row, X, y, domain, seed)
    asked = server.ask(server.target, send_questions, Received(n=len(X))).z.numpy().astype(np.float64)
    p = probabilities(found, y, domain, standard(asked), classes, seed)
    server.ask(server.target, take_answers, Probabilities(p=torch.from_numpy(p)))
    return found.row


def standardized(row: Row, X: Array, domain: Array) -> tuple[Array, Standard]:
    """The training samples as the row wants them, and how the target's further samples become the same."""
    if row.zscore == "none":
        return X, Standard(np.zeros(X.shape[1]), np.ones(X.shape[1]))
    if row.zscore == "pooled":
        pooled = Standard.of(X)
        return pooled(X), pooled
    out = X.copy()
    for d in np.unique(domain):
        out[domain == d] = Standard.of(X[domain == d])(X[domain == d])
    return out, Standard.of(X[domain < 0])


def chosen(row: Row, X: Array, y: Array, domain: Array, seed: int) -> Fit:
    """The row fitted, or of its candidates the first of the best by reverse validation."""
    if row.exact and len(X) > MOST:
        what = f"{type(row).title} needs a matrix of {len(X):,} x {len(X):,} samples"
        raise FdamedError(what, "the pooled features", f"Use rftca, whose cost is linear, above {MOST:,} samples.")
    rows = row.candidates() if row.choose else [row]
    fits = [_fit(candidate, X, y, domain, seed) for candidate in rows]
    if len(fits) == 1:
        return fits[0]
    source = domain > 0
    scores = [reverse_accuracy(squared_distances(f.features[~source], f.features[source]), y) for f in fits]
    return fits[int(np.argmax(scores))]


def _fit(row: Row, X: Array, y: Array, domain: Array, seed: int) -> Fit:
    estimator = row.estimator(seed)
    labels = np.zeros(len(X), dtype=np.int64)
    labels[domain > 0] = y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Shrunk)
        return Fit(row, estimator, estimator.fit_transform(X, labels, sample_domain=domain))


def probabilities(found: Fit, y: Array, domain: Array, asked: Array, classes: int, seed: int) -> Array:
    """(b, C) float32 of the target's samples: the method's own classifier, or the row's on the sources' features."""
    if hasattr(found.estimator, "decision_function"):
        return _spread(_chances(found.estimator, asked), found.estimator.classes_, classes)
    moved = found.estimator.transform(asked)
    judge = classifier(found.row.classifier, seed).fit(found.features[domain > 0], y)
    return _spread(_chances(judge, moved), judge.classes_, classes)


def _chances(judge: Any, X: Array) -> Array:
    """Probabilities of a classifier; of one that has none, the softmax of its margins (the same order)."""
    if hasattr(judge, "predict_proba"):
        p: Array = judge.predict_proba(X)
        return p
    margins = np.asarray(judge.decision_function(X), dtype=np.float64)
    if margins.ndim == 1:
        margins = np.stack([np.zeros_like(margins), margins], axis=1)
    grown = np.exp(margins - margins.max(axis=1, keepdims=True))
    shares: Array = grown / grown.sum(axis=1, keepdims=True)
    return shares


def _spread(p: Array, known: Array, classes: int) -> Array:
    """A column for each class of the study; one that no source has gets probability 0."""
    out = np.zeros((len(p), classes), dtype=np.float32)
    out[:, known] = p
    return out
