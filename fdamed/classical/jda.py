"""Joint distribution adaptation (Long et al. 2013; specification 11.2).

K H K a = tau (K M K + gamma I) a with M = l l' + sum_c l_c l_c' over the classes that source and pseudo-labeled target
both have, at Frobenius norm 1; a classifier on the source's features gives new pseudo-labels, and again.
The first pass has no pseudo-labels: it is TCA with gamma |l|^2.
The defaults are those of the published figures on SURF features, which they repeat to two decimals: linear kernel,
m = 100, gamma = 1, columns of A at norm 1. At the paper's own constraint A' K H K A = I they are 10 points lower
(docs/reference/classical_methods.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.linalg import eigh
from sklearn.base import clone
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import normalize as unit_rows

from fdamed.classical.inputs import Array, count, positive
from fdamed.classical.spectral import centered, signed, solve, use_lanczos
from fdamed.classical.tca import KernelComponents


def discrepancies(
    source: Array, target: Array, y: Array, guess: Array | None, classes: Array, marginal: float
) -> Array:
    """E (n, 1 + C') with M = E E': one column for the domains, one for each class that both have."""
    columns = [np.sqrt(marginal) * (source / source.sum() - target / target.sum())]
    for c in classes if guess is not None else ():
        ours, theirs = np.zeros(len(source)), np.zeros(len(source))
        ours[source], theirs[target] = y == c, guess == c
        if ours.any() and theirs.any():
            columns.append(ours / ours.sum() - theirs / theirs.sum())
    E = np.stack(columns, axis=1)
    norm = np.linalg.norm(E.T @ E)  # |E E'|_F = |E' E|_F
    scaled: Array = E / np.sqrt(norm) if norm > 0 else E
    return scaled


@dataclass(eq=False, repr=False)
class JDA(KernelComponents):
    """JDA with up to `iterations` passes; it stops when no pseudo-label changes.

    gamma: the weight of |A|^2 (lambda of the paper). marginal_weight: of l l' before M is scaled; None is the number
    of classes (the authors' code), 1 the paper's text. classifier: gives the pseudo-labels; None is 1-NN. The other
    options are as in TCA. Features have norm 1.
    """

    kernel: str = "linear"
    scale: str = "penalty"
    iterations: int = 10
    marginal_weight: float | None = None
    classifier: Any = None

    def fit(self, X: Any, y: Any, sample_domain: Any = None) -> Self:
        """Learn A from both domains and the source's labels. sample_domain: positive source, negative target."""
        passes = count(self.iterations, "iterations", "JDA")
        given = self._checked(X, y, sample_domain, labels=True)
        labels = np.asarray(given.y)
        self.classes_ = np.unique(labels)
        weight = self.marginal_weight
        marginal = len(self.classes_) if weight is None else positive(weight, "marginal_weight", "JDA")
        K = self._kernel_matrix(given.X)
        HK = centered(K)
        s, basis = eigh(HK.T @ HK, check_finite=False)  # in this basis K H K is diag(s), and a Lanczos step costs n C
        s = np.maximum(s, 0.0)
        S = (lambda x: s * x) if use_lanczos("auto", len(K), self.n_components) else np.diag(s)
        turned = basis.T @ K
        guess: Array | None = None
        self.changed_: list[int] = []
        classifier = KNeighborsClassifier(1) if self.classifier is None else self.classifier
        for _ in range(passes):
            E = discrepancies(given.source, given.target, labels, guess, self.classes_, marginal)
            found = solve(S, turned @ E, self.gamma, self.n_components, self._where, float(s.max()))
            W = signed(basis @ found.scaled(self.scale))
            features = unit_rows(K @ W)
            new = clone(classifier).fit(features[given.source], labels).predict(features[given.target])
            self.changed_.append(len(new) if guess is None else int((new != guess).sum()))
            guess = new
            if self.changed_[-1] == 0:
                break
        self._keep(found, W)
        self.pseudo_labels_ = guess
        return self

    def _finish(self, features: Array) -> Array:
        finished: Array = unit_rows(features)
        return finished

    def __sklearn_tags__(self) -> Any:
        """Labels of the source are needed."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
