"""Joint distribution adaptation (Long et al. 2013; specification 11.2).

K H K a = tau (K M K + gamma I) a with M = l l' + sum_c l_c l_c' over the classes that source and pseudo-labeled target
both have, at Frobenius norm 1; a classifier on the source's features gives new pseudo-labels, and again.
The first pass has no pseudo-labels: it is TCA with gamma |l|^2.
The defaults are those of the published figures on SURF features, which they repeat to two decimals: linear kernel,
m = 100, gamma = 1, columns of A at length 1. At the paper's own constraint A' K H K A = I they are 10 points lower
(docs/classical.md).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.linalg import eigh
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils.validation import check_is_fitted, validate_data

from fdamed.classical.inputs import Array, count, one_of, positive, read
from fdamed.classical.kernels import EXACT, gram, length, project, shape, unit_rows
from fdamed.classical.spectral import (
    SCALES,
    Solution,
    center_columns,
    keep,
    lanczos,
    signed,
    squares,
    symmetric_product,
    top,
    use_lanczos,
    wanted,
)


def discrepancies(
    source: Array, target: Array, y: Array, guess: Array | None, classes: Array, marginal: float
) -> Array:
    """E (n, 1 + C') with M = E E': one column for the domains, one for each class that both have."""
    n = len(source)
    columns = [np.sqrt(marginal) * (source / source.sum() - target / target.sum())]
    for c in classes if guess is not None else ():
        ours, theirs = np.zeros(n), np.zeros(n)
        ours[source], theirs[target] = y == c, guess == c
        if ours.any() and theirs.any():
            columns.append(ours / ours.sum() - theirs / theirs.sum())
    E = np.stack(columns, axis=1)
    norm = np.linalg.norm(E.T @ E)  # |E E'|_F = |E' E|_F
    scaled: Array = E / np.sqrt(norm) if norm > 0 else E
    return scaled


def solve(s: Array, KE: Array, gamma: float, m: int | None, where: str) -> Solution:
    """diag(s) w = tau (gamma I + KE KE') w: the problem in the eigenbasis of K H K, where a step costs n C.

    (gamma I + KE KE')^(-1/2) = gamma^(-1/2) (I - Q change Q') with Q from the thin SVD of KE.
    """
    n = len(s)
    Q, d, _ = np.linalg.svd(KE, full_matrices=False)
    change = 1.0 - np.sqrt(gamma / (gamma + d**2))

    def half(x: Array) -> Array:
        moved: Array = x - Q @ (change * (Q.T @ x).T).T
        return moved

    asked = wanted(m, n)
    if use_lanczos("auto", n, asked):
        tau, Y = lanczos(lambda x: half(s * half(x)), n, asked)
    else:
        tau, Y = top(half(half(np.diag(s)).T), asked)
    r = keep(tau, m, where, float(s.max()))
    W = half(Y[:, :r]) / np.sqrt(tau[:r])
    return Solution(W, tau[:r] / gamma, squares(W))


class JDA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """JDA with up to `iterations` passes; it ends when no pseudo-label changes.

    gamma is the weight of |A|^2 (lambda of the paper). marginal_weight: of l l' before M is scaled; None is the number
    of classes (the authors' code), 1 the paper's text. classifier: gives the pseudo-labels; None is 1-NN. kernel,
    sigma, normalize, scale and n_components are as in TCA. Features have length 1.
    """

    def __init__(
        self,
        n_components: int | None = None,
        gamma: float = 1.0,
        kernel: str = "linear",
        sigma: float | str = "median",
        normalize: bool = True,
        iterations: int = 10,
        marginal_weight: float | None = None,
        classifier: Any = None,
        scale: str = "penalty",
    ) -> None:
        self.n_components = n_components
        self.gamma = gamma
        self.kernel = kernel
        self.sigma = sigma
        self.normalize = normalize
        self.iterations = iterations
        self.marginal_weight = marginal_weight
        self.classifier = classifier
        self.scale = scale

    def fit(self, X: Any, y: Any, sample_domain: Any = None) -> Self:
        """Learn A from both domains and the source's labels. sample_domain: positive source, negative target."""
        gamma = positive(self.gamma, "gamma", "JDA")
        one_of(self.kernel, EXACT, "kernel", "JDA")
        one_of(self.scale, SCALES, "scale", "JDA")
        passes = count(self.iterations, "iterations", "JDA")
        if self.n_components is not None:
            count(self.n_components, "n_components", "JDA")
        given = read(self, X, y, sample_domain, labels=True)
        labels = np.asarray(given.y)
        where = f"JDA, {shape(given.X)}"
        self.classes_ = np.unique(labels)
        weight = self.marginal_weight
        marginal = len(self.classes_) if weight is None else positive(weight, "marginal_weight", "JDA")
        self.sigma_ = length(self.sigma, self.kernel, given.X, self.normalize, "JDA")
        samples = given.X.astype(np.float64)
        self.X_fit_ = unit_rows(samples) if self.normalize else samples
        K = gram(self.X_fit_, self.X_fit_, self.kernel, self.sigma_)
        s, basis = eigh(symmetric_product(center_columns(K)), check_finite=False)
        turned = basis.T @ K
        guess: Array | None = None
        self.changed_: list[int] = []
        classifier = KNeighborsClassifier(1) if self.classifier is None else self.classifier
        for _ in range(passes):
            E = discrepancies(given.source, given.target, labels, guess, self.classes_, marginal)
            found = solve(np.maximum(s, 0.0), turned @ E, gamma, self.n_components, where).scaled(self.scale)
            W = signed(basis @ found.W)
            features = unit_rows(K @ W)
            new = clone(classifier).fit(features[given.source], labels).predict(features[given.target])
            self.changed_.append(len(new) if guess is None else int((new != guess).sum()))
            guess = new
            if self.changed_[-1] == 0:
                break
        self.W_, self.eigenvalues_, self.pseudo_labels_ = W, found.values, guess
        self.n_components_ = self._n_features_out = W.shape[1]
        return self

    def transform(self, X: Any) -> Array:
        """Features of samples of any domain, each of length 1, (n, m)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        out = project(X, self.X_fit_, self.W_, self.kernel, self.sigma_, self.normalize)
        return unit_rows(out)

    def __sklearn_tags__(self) -> Any:
        """Labels of the source are needed."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
