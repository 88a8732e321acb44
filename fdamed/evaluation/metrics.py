"""Scores of a model's probabilities: AUC, accuracy, sensitivity and specificity, F1, average precision, Brier score.

With several classes there is no AUC, balanced accuracy is the mean recall, and the Brier score sums over the classes.
A score that the data cannot define (AUC where a class is absent) is None with a reason, never 0.5 or NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Weights = NDArray[np.floating]
"""(rows, patients): how often each patient was drawn; whole numbers, so that float32 sums of them are exact."""
SEVERAL = ("acc", "balanced_acc", "brier")
TWO = ("acc", "auc", "balanced_acc", "brier", "sensitivity", "specificity", "f1", "sens_at_spec90", "ap")
"""Scores of several classes, and of two."""
NAMES = {
    "auc": "AUC",
    "acc": "accuracy",
    "balanced_acc": "balanced accuracy",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "sens_at_spec90": "sensitivity at 90 % specificity",
    "f1": "F1",
    "ap": "average precision",
    "brier": "Brier score",
    "false_alarms": "false positive rate",
    "bias": "calibration in the large",
}
"""Scores, also those of subgroups, as people read them, in the order of tables."""
GUESS = 0.5
"""The AUC of guessing."""
THRESHOLD = 0.5
"""Probabilities from here on count as positive."""
SPECIFICITY = 0.9
"""Specificity of `sens_at_spec90`; its threshold is chosen on the evaluated images themselves."""


def checked(y: ArrayLike, p: ArrayLike) -> tuple[Floats, Floats]:
    """Labels (n,) and probabilities, (n,) of the positive class or (n, C) of several, as float64; or ValueError."""
    labels, probabilities = np.asarray(y, dtype=np.float64), np.asarray(p, dtype=np.float64)
    if probabilities.ndim == 2 and probabilities.shape[1] == 2:
        probabilities = probabilities[:, 1]
    if labels.ndim != 1 or labels.shape != probabilities.shape[:1]:
        raise ValueError(f"labels {labels.shape} and probabilities {probabilities.shape} must have the same length")
    if probabilities.ndim == 1 and not np.isin(labels, (0.0, 1.0)).all():
        raise ValueError("labels must be 0 or 1")
    if not np.isfinite(probabilities).all() or (probabilities < 0).any() or (probabilities > 1).any():
        raise ValueError("probabilities must be finite and lie between 0 and 1")
    return labels, probabilities


def scores(y: ArrayLike, p: ArrayLike) -> dict[str, Any]:
    """All scores for labels `y` (n,) of probabilities `p`: (n, C), or (n,) of the positive class; see scores/*.json.

    `positives` is None with more than two classes, and `why` says why a score is None.
    """
    labels, probabilities = checked(y, p)
    n, two = len(labels), probabilities.ndim == 1
    found = prepared(labels, probabilities, np.arange(n), n).scores(np.ones((1, n))) if n else {}
    values = {name: float(found[name][0]) if name in found and np.isfinite(found[name][0]) else None for name in TWO}
    reason = "no images" if n == 0 else "a class is absent"
    if two and n:
        reason = "no negatives" if labels.any() else "no positives"
    why = dict.fromkeys((name for name, value in values.items() if value is None), reason)
    if not two:
        why |= dict.fromkeys((name for name in TWO if name not in SEVERAL), "more than two classes")
    return {"n": n, "positives": int(labels.sum()) if two else None, **values, "why": why}


def prepared(labels: Floats, probabilities: Floats, owner: NDArray[np.intp], patients: int) -> Two | Several:
    """One model's images in the order that its scores need, and its sums by patient."""

    def by_patient(values: ArrayLike) -> Floats:
        sums = np.bincount(owner, weights=np.asarray(values, dtype=np.float64), minlength=patients)
        return sums.astype(np.float64)

    if probabilities.ndim == 2:
        hits = probabilities.argmax(axis=1) == labels
        classes = [labels == c for c in range(probabilities.shape[1])]
        squares = ((probabilities - np.eye(probabilities.shape[1])[labels.astype(np.int64)]) ** 2).sum(axis=1)
        columns = [hits & c for c in classes] + classes + [squares]
        return Several(np.stack([by_patient(c) for c in columns], axis=1), probabilities.shape[1])
    true, said = labels == 1, probabilities >= THRESHOLD
    columns = [true, ~true, said & true, ~said & ~true, (probabilities - labels) ** 2]
    return Two(np.stack([by_patient(c) for c in columns], axis=1), Curve.of(true, probabilities, owner))


@dataclass(frozen=True)
class Curve:
    """Images by falling value, such as their probability."""

    owner: NDArray[np.intp]
    true: NDArray[np.float32]
    """(n,): 1 for a positive."""
    last: NDArray[np.intp] | None
    """The last place of each value; None: all differ."""

    @classmethod
    def of(cls, true: NDArray[np.bool_], values: Floats, owner: NDArray[np.intp]) -> Curve:
        order = np.argsort(-values, kind="stable")
        last = np.flatnonzero(np.append(np.diff(values[order]) != 0, True))
        return cls(owner[order], true[order].astype(np.float32), None if len(last) == len(order) else last)

    def counts(self, times: Weights) -> tuple[Weights, Weights]:
        """True and false positives, (rows, thresholds) each, at every threshold from the highest value down."""
        weights = times[:, self.owner]
        caught, above = np.cumsum(weights * self.true, axis=1), np.cumsum(weights, axis=1)
        if self.last is not None:
            caught, above = caught[:, self.last], above[:, self.last]
        return caught, above - caught


@dataclass(frozen=True)
class Two:
    """A model of two classes."""

    sums: Floats
    """(patients, 5): positives, negatives, true positives, true negatives, squared errors."""
    curve: Curve

    def scores(self, times: Weights) -> dict[str, Floats]:
        """Score -> (rows,), NaN where a replicate lacks a class."""
        positives, negatives, caught, cleared, squares = (times @ self.sums).T
        with np.errstate(invalid="ignore", divide="ignore"):
            sensitivity, specificity = caught / positives, cleared / negatives
            alarms = negatives - cleared
            out = {
                "acc": (caught + cleared) / (positives + negatives),
                "balanced_acc": (sensitivity + specificity) / 2,
                "brier": squares / (positives + negatives),
                "sensitivity": sensitivity,
                "specificity": specificity,
                "f1": np.where(positives > 0, 2 * caught / (caught + alarms + positives), np.nan),
            }
        caught, alarms = self.curve.counts(times)
        precision = caught / np.maximum(caught + alarms, 1)
        precise = np.einsum("ij,ij->i", np.diff(caught, axis=1, prepend=np.float32(0)), precision, dtype=np.float64)
        with np.errstate(invalid="ignore"):
            out["ap"] = precise / positives
        return out | {"auc": area(caught, alarms), "sens_at_spec90": sensitivity_at(caught, alarms, 1 - SPECIFICITY)}


def area(caught: Weights, alarms: Weights) -> Floats:
    """AUC (rows,) of true and false positives at every threshold; NaN where a class is absent."""
    positives, negatives = (counts[:, -1].astype(np.float64) for counts in (caught, alarms))
    # A positive beats the negatives with a lower probability, and half of those with the same.
    beaten = 2 * alarms[:, -1:] - alarms
    beaten[:, 1:] -= alarms[:, :-1]
    won = np.einsum("ij,ij->i", np.diff(caught, axis=1, prepend=np.float32(0)), beaten, dtype=np.float64) / 2
    with np.errstate(invalid="ignore"):
        return np.asarray(won / (positives * negatives))


def sensitivity_at(caught: Weights, alarms: Weights, rate: float) -> Floats:
    """Sensitivity (rows,) at the lowest threshold with at most this false positive rate; NaN without both classes."""
    positives, negatives = (counts[:, -1].astype(np.float64) for counts in (caught, alarms))
    places = (alarms <= np.floor(rate * negatives + 1e-9)[:, None]).sum(axis=1)
    found = np.where(places > 0, caught[np.arange(len(caught)), np.maximum(places, 1) - 1], 0.0)
    with np.errstate(invalid="ignore"):
        return np.where(negatives > 0, found / positives, np.nan)


@dataclass(frozen=True)
class Several:
    """A model of several classes; by patient: hits of each class, images of each class, squared errors."""

    sums: Floats
    classes: int

    def scores(self, times: Weights) -> dict[str, Floats]:
        """Score -> (rows,), NaN where a replicate lacks a class."""
        sums = times @ self.sums
        hits, images, squares = sums[:, : self.classes], sums[:, self.classes : -1], sums[:, -1]
        total = images.sum(axis=1)
        with np.errstate(invalid="ignore"):
            recall = (hits / images).mean(axis=1)
        return {"acc": hits.sum(axis=1) / total, "balanced_acc": recall, "brier": squares / total}
