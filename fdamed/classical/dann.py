"""DaNN, the domain adaptive neural network of one hidden layer (Ghifary et al. 2014).

x -> FC -> dropout -> ReLU -> FC; loss: cross-entropy of the source + weight * MMD^2 of both domains' hidden features
(biased, one Gaussian kernel). Learned with torch; a fitted DaNN is four arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fdamed.classical.inputs import Array, BadInput, count, positive, read
from fdamed.core.rng import Stream, stream

if TYPE_CHECKING:
    from torch import Tensor


def discrepancy(h_s: Tensor, h_t: Tensor) -> Tensor:
    """MMD^2 of two batches with one Gaussian kernel, whose width is the median distance, a constant."""
    import torch

    joint = torch.cat([h_s, h_t])
    squares = (joint * joint).sum(1)
    d = (squares[:, None] + squares[None, :] - 2.0 * joint @ joint.t()).clamp_min(0.0)
    pairs = d.detach()[~torch.eye(len(d), dtype=torch.bool)]
    square = float(pairs[pairs > 0].median()) if bool((pairs > 0).any()) else 1.0
    k = torch.exp(-d / (2.0 * square))
    n = len(h_s)
    return k[:n, :n].mean() + k[n:, n:].mean() - 2.0 * k[:n, n:].mean()


@dataclass(eq=False, repr=False)
class DaNN(ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """DaNN as a classifier whose `transform` gives the hidden features.

    weight: of MMD^2. validation: the share of the source that chooses the epoch (0: the last epoch).
    """

    hidden: int = 256
    weight: float = 0.25
    epochs: int = 100
    batch: int = 64
    lr: float = 0.02
    momentum: float = 0.05
    decay: float = 0.003
    dropout: float = 0.5
    validation: float = 0.1
    seed: int = 0

    def fit(self, X: Any, y: Any, sample_domain: Any = None) -> Self:
        """Train on the source's labels and both domains' samples. sample_domain: positive source, negative target."""
        for name in ("hidden", "epochs", "batch"):
            count(getattr(self, name), name, "DaNN")
        positive(self.lr, "lr", "DaNN")
        if not (self.weight >= 0 and self.momentum >= 0 and self.decay >= 0):
            raise BadInput("a negative weight, momentum or decay", "DaNN", "Give numbers from 0.")
        if not (0 <= self.dropout < 1 and 0 <= self.validation < 1):
            raise BadInput("dropout or validation outside [0, 1)", "DaNN", "Give shares from 0 to below 1.")
        given = read(self, X, y, sample_domain, labels=True)
        self.classes_, codes = np.unique(np.asarray(given.y), return_inverse=True)
        root = stream(self.seed, "dann")
        kept, judged = held_out(codes, self.validation, root.child("validation"))
        X_s, X_t = given.X[given.source], given.X[given.target]
        self._train(X_s[kept], codes[kept], X_s[judged], codes[judged], X_t, root)
        self._n_features_out = self.hidden
        return self

    def _train(self, X_s: Array, y_s: Array, X_v: Array, y_v: Array, X_t: Array, root: Stream) -> None:
        import torch

        p, C = X_s.shape[1], len(self.classes_)
        x_s, x_t, x_v = (torch.tensor(x, dtype=torch.float32) for x in (X_s, X_t, X_v))
        target, target_v = torch.tensor(y_s), torch.tensor(y_v)
        draw = root.child("weights").torch
        layers = []
        for fan_in, fan_out in ((p, self.hidden), (self.hidden, C)):
            bound = fan_in**-0.5
            for size in ((fan_in, fan_out), (fan_out,)):
                layers.append(((2 * torch.rand(size, generator=draw) - 1) * bound).requires_grad_())
        A, a, B, b = layers
        optimizer = torch.optim.SGD(layers, lr=self.lr, momentum=self.momentum, weight_decay=self.decay)
        order, other, masks = (root.child(name).torch for name in ("source", "target", "dropout"))
        best, kept = -1.0, layers
        self.losses_: list[float] = []
        self.epoch_ = 0

        def hidden(x: Tensor) -> Tensor:
            mask = (torch.rand(len(x), self.hidden, generator=masks) >= self.dropout) / (1 - self.dropout)
            return torch.relu((x @ A + a) * mask)

        for epoch in range(1, self.epochs + 1):
            turn, total = torch.randperm(len(x_s), generator=order), 0.0
            for start in range(0, len(x_s), self.batch):
                rows = turn[start : start + self.batch]
                h_s = hidden(x_s[rows])
                loss = torch.nn.functional.cross_entropy(h_s @ B + b, target[rows])
                if self.weight > 0:
                    some = torch.randperm(len(x_t), generator=other)[: self.batch]
                    loss = loss + self.weight * discrepancy(h_s, hidden(x_t[some]))
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                total += float(loss.detach()) * len(rows)
            self.losses_.append(total / len(x_s))
            with torch.no_grad():
                right = (torch.relu(x_v @ A + a) @ B + b).argmax(1) == target_v
            score = float(right.double().mean()) if len(right) else float(epoch)
            if score >= best:
                best, kept, self.epoch_ = score, [w.detach().clone() for w in layers], epoch
        self.weights_ = [w.numpy() for w in kept]
        if not all(np.isfinite(w).all() for w in self.weights_):
            raise BadInput("the weights diverged", "DaNN", "Standardize the features or lower lr.")

    def transform(self, X: Any) -> Array:
        """The hidden features of samples of any domain, (n, hidden)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        A, a, _, _ = self.weights_
        features: Array = np.maximum(X @ A + a, 0.0)
        return features

    def predict_proba(self, X: Any) -> Array:
        """The softmax of the logits, (n, C)."""
        shares: Array = softmax(self.transform(X) @ self.weights_[2] + self.weights_[3], axis=1)
        return shares

    def predict(self, X: Any) -> Array:
        """The most likely classes."""
        best = self.predict_proba(X).argmax(axis=1)
        classes: Array = self.classes_[best]
        return classes


def held_out(codes: Array, share: float, draw: Stream) -> tuple[Array, Array]:
    """Rows to train on and rows to judge epochs by, the latter the same share of every class with samples to spare."""
    shuffled = draw.numpy.permutation(len(codes))
    judged = np.zeros(len(codes), dtype=bool)
    for c in np.unique(codes):
        rows = shuffled[codes[shuffled] == c]
        judged[rows[: int(share * len(rows))]] = True
    return np.flatnonzero(~judged), np.flatnonzero(judged)
