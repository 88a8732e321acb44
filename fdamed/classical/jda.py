"""Joint distribution adaptation (Long et al. 2013).

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
from sklearn.neighbors import KNeighborsClassifier

from fdamed.classical.inputs import Array, count
from fdamed.classical.spectral import centered, signed, solve, use_lanczos
from fdamed.classical.tca import KernelComponents


def discrepancies(source: Array, target: Array, y: Array, guess: Array | None, classes: Array) -> Array:
    """E (n, 1 + C') with M = E E': one column for the domains, one for each class that both have."""
    columns = [np.sqrt(len(classes)) * (source / source.sum() - target / target.sum())]
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
    """JDA with up to `iterations` passes of 1-NN pseudo-labels; it stops when none changes.

    gamma: the weight of |A|^2 (lambda of the paper). l l' is weighted by the number of classes before M is scaled, as
    in the authors' code. The other options are as in TCA.
    """

    kernel: str = "linear"
    scale: str = "penalty"
    unit_norm: bool = True
    iterations: int = 10

    def fit(self, X: Any, y: Any = None, sample_domain: Any = None) -> Self:
        passes = count(self.iterations, "iterations", "JDA")
        given = self._checked(X, y, sample_domain, labels=True)
        labels = np.asarray(given.y)
        self.classes_ = np.unique(labels)
        K = self._kernel_matrix(given.X)
        HK = centered(K)
        s, basis = eigh(HK.T @ HK, check_finite=False)  # in this basis K H K is diag(s), and a Lanczos step costs n C
        s = np.maximum(s, 0.0)
        S = (lambda x: s * x) if use_lanczos(len(K), self.n_components) else np.diag(s)
        turned = basis.T @ K
        guess: Array | None = None
        self.changed_: list[int] = []
        for _ in range(passes):
            E = discrepancies(given.source, given.target, labels, guess, self.classes_)
            found = solve(S, turned @ E, self.gamma, self.n_components, self._where, float(s.max()))
            self._keep(found, signed(basis @ found.scaled(self.scale)))
            features = self._finish(K @ self.W_)
            new = KNeighborsClassifier(1).fit(features[given.source], labels).predict(features[given.target])
            self.changed_.append(len(new) if guess is None else int((new != guess).sum()))
            guess = new
            if self.changed_[-1] == 0:
                break
        self.pseudo_labels_ = guess
        return self

    def __sklearn_tags__(self) -> Any:
        """Labels of the source are needed."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
