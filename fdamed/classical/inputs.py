"""What every estimator here is given: samples (n, p), labels (n,) and the domain of each sample (n,).

sample_domain: positive for a source sample, negative for a target sample; 0 is refused, because libraries disagree
about it. None: all samples are one domain, source and target at once; nothing is aligned (TCA becomes kernel PCA, CORAL
the identity), and a OneDomain warning is raised.
y: the labels of the source samples; entries at target samples are never read and may be anything, -1 or NaN too.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from fdamed.core.errors import FdamedError

Array = npt.NDArray[Any]


class BadInput(FdamedError, ValueError):
    """An FdamedError that callers of scikit-learn can catch as the ValueError they expect."""


class OneDomain(UserWarning):
    """There is no target apart from the source, so nothing is aligned."""


class Shrunk(UserWarning):
    """Fewer components than asked for, because the data has no more."""


@dataclass(frozen=True)
class Domains:
    """The checked input of a fit."""

    X: Array
    source: Array
    """(n,) bool; with one domain every sample is in both."""
    target: Array
    y: Array | None
    """Labels of the source samples, (n_S,), if the method needs them."""

    @property
    def ell(self) -> Array:
        """+1/n_S on the source, -1/n_T on the target: l' K l is the squared discrepancy."""
        share: Array = self.source / self.source.sum() - self.target / self.target.sum()
        return share


def of_source(sample_domain: Any, n: int, name: str) -> Array:
    """Which of n samples are the source's."""
    domain = column_or_1d(sample_domain)
    if len(domain) != n:
        raise BadInput(f"{len(domain)} domains for {n} samples", f"{name}, sample_domain", "Give one for each sample.")
    if domain.dtype.kind not in "iuf" or not np.all(np.isfinite(domain)) or np.any(domain == 0):
        fix = "Use positive numbers for source samples and negative ones for target samples."
        raise BadInput("a domain that is neither source nor target", f"{name}, sample_domain", fix)
    source: Array = domain > 0
    return source


def read(estimator: Any, X: Any, y: Any, sample_domain: Any, *, labels: bool = False) -> Domains:
    """Check the input of a fit; a method that needs labels gets those of the source alone."""
    name = type(estimator).__name__
    if labels and y is None:
        raise BadInput("requires y to be passed, but the target y is None", name, "Give the source's labels.")
    X = validate_data(estimator, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
    if y is not None:
        check_consistent_length(X, y)
    if sample_domain is None:
        warnings.warn(f"{name}: no sample_domain, so nothing is aligned", OneDomain, stacklevel=3)
        source = target = np.ones(len(X), dtype=bool)
    else:
        source = of_source(sample_domain, len(X), name)
        target = ~source
    for part, rows in (("source", source), ("target", target)):
        if not rows.any():
            raise BadInput(f"no {part} sample", f"{name}, sample_domain", f"Add {part} samples to X.")
    return Domains(X, source, target, _source_labels(y, source, name) if labels else None)


def _source_labels(y: Any, source: Array, name: str) -> Array:
    known: Array = column_or_1d(y, warn=True)[source]
    if known.dtype.kind == "O":
        known = np.array(known.tolist())
    if known.dtype.kind == "f" and not np.all(np.isfinite(known)):
        fix = "Label every source sample or leave it out."
        raise BadInput("a source sample without a label: y contains NaN or infinity", name, fix)
    check_classification_targets(known)
    return known


def positive(value: Any, name: str, where: str) -> float:
    """A finite number above 0."""
    good = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not good or not np.isfinite(value) or value <= 0:
        raise BadInput(f"{name} is not a number above 0", where, f"Give {name} > 0; searches use 0.001 to 1000.")
    return float(value)


def count(value: Any, name: str, where: str) -> int:
    """A whole number from 1."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise BadInput(f"{name} is not a whole number from 1", where, f"Give {name} >= 1.")
    return int(value)


def one_of(value: Any, allowed: tuple[str, ...], name: str, where: str) -> None:
    """One of a few words."""
    if value not in allowed:
        raise BadInput(f"{name} is not known", where, f"Use one of {', '.join(allowed)}.")


class OnSource(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier for the end of a Pipeline, fitted on the source samples alone: the others have no label.

    `make_pipeline(TCA(), OnSource(SVC())).fit(X, y, tca__sample_domain=d, onsource__sample_domain=d)`.
    """

    def __init__(self, classifier: Any) -> None:
        self.classifier = classifier

    def fit(self, X: Any, y: Any, sample_domain: Any = None) -> Self:
        """Fit a clone of the classifier on the rows whose sample_domain is positive."""
        given = read(self, X, y, sample_domain, labels=True)
        self.classifier_ = clone(self.classifier).fit(given.X[given.source], given.y)
        self.classes_ = self.classifier_.classes_
        return self

    def predict(self, X: Any) -> Array:
        """The classes of samples of any domain."""
        check_is_fitted(self)
        classes: Array = self.classifier_.predict(validate_data(self, X, reset=False))
        return classes
