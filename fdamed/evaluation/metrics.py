"""How good a model's probabilities are: AUC, accuracy and what belongs to a threshold, average precision, Brier score.

With several classes there is no AUC, balanced accuracy is the mean recall, and the Brier score sums over the classes.

A score that the data cannot define (AUC where a class is absent) is None and comes with its reason; it is never 0.5 and
never NaN, so that no mean can swallow it.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
OF_TWO = ("sensitivity", "specificity", "f1", "sens_at_spec90", "ap")
"""Scores that only two classes have, beside the AUC."""
THRESHOLD = 0.5
"""Probabilities from here on count as positive."""
SPECIFICITY = 0.9
"""Specificity that the threshold of `sensitivity_at` keeps; it is looked up on the judged images themselves."""


class Scores(TypedDict):
    """The scores of one model on one set of images, as they stand in scores/{client}.json."""

    n: int
    positives: int | None
    """None with more than two classes."""
    acc: float | None
    auc: float | None
    balanced_acc: float | None
    brier: float | None
    sensitivity: float | None
    specificity: float | None
    f1: float | None
    sens_at_spec90: float | None
    ap: float | None
    """Average precision."""
    why: dict[str, str]
    """Score -> why it is undefined."""


def checked(y: ArrayLike, p: ArrayLike) -> tuple[Floats, Floats]:
    """Labels 0/1 and finite probabilities, both (n,), as float64; anything else is refused."""
    labels, chances = np.asarray(y, dtype=np.float64), np.asarray(p, dtype=np.float64)
    if labels.ndim != 1 or labels.shape != chances.shape:
        raise ValueError(f"labels {labels.shape} and probabilities {chances.shape} must both be (n,)")
    if not np.isin(labels, (0.0, 1.0)).all():
        raise ValueError("labels must be 0 or 1")
    if not np.isfinite(chances).all() or (chances < 0).any() or (chances > 1).any():
        raise ValueError("probabilities must be finite and lie between 0 and 1")
    return labels, chances


def ranks(values: Floats) -> Floats:
    """Ranks from 1 on; equal values share the mean of their ranks."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begin = np.concatenate(([True], ordered[1:] != ordered[:-1])) if len(values) else np.zeros(0, dtype=bool)
    starts = np.flatnonzero(begin)
    ends = np.append(starts[1:], len(values))
    group = np.cumsum(begin) - 1
    out = np.empty(len(values))
    out[order] = ((starts + 1 + ends) / 2.0)[group]
    return out


def auc(y: ArrayLike, p: ArrayLike) -> float | None:
    """The chance that a positive scores above a negative, ties counting a half; None without both classes."""
    labels, chances = checked(y, p)
    positives = labels.sum()
    negatives = len(labels) - positives
    if positives == 0 or negatives == 0:
        return None
    above = ranks(chances)[labels == 1].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def accuracy(y: ArrayLike, p: ArrayLike) -> float | None:
    labels, chances = checked(y, p)
    return float(((chances >= THRESHOLD) == (labels == 1)).mean()) if len(labels) else None


def balanced_accuracy(y: ArrayLike, p: ArrayLike) -> float | None:
    """Mean of the two classes' accuracies; None without both classes."""
    labels, chances = checked(y, p)
    right = (chances >= THRESHOLD) == (labels == 1)
    if not (labels == 1).any() or not (labels == 0).any():
        return None
    return float((right[labels == 1].mean() + right[labels == 0].mean()) / 2)


def brier(y: ArrayLike, p: ArrayLike) -> float | None:
    """Mean squared distance of probability and label."""
    labels, chances = checked(y, p)
    return float(((chances - labels) ** 2).mean()) if len(labels) else None


def rates(y: ArrayLike, p: ArrayLike) -> tuple[float | None, float | None]:
    """Sensitivity and specificity at the threshold of one half; None for a class that is absent."""
    labels, chances = checked(y, p)
    said = chances >= THRESHOLD
    found = [float(side.mean()) if len(side) else None for side in (said[labels == 1], ~said[labels == 0])]
    return found[0], found[1]


def f1(y: ArrayLike, p: ArrayLike) -> float | None:
    """2 TP / (2 TP + FP + FN) at the threshold of one half; None without positives."""
    labels, chances = checked(y, p)
    said, true = chances >= THRESHOLD, labels == 1
    return float(2 * (said & true).sum() / (said.sum() + true.sum())) if true.any() else None


def sensitivity_at(y: ArrayLike, p: ArrayLike, specificity: float = SPECIFICITY) -> float | None:
    """Largest sensitivity of any threshold with at least this specificity; None without both classes."""
    labels, chances = checked(y, p)
    positive, negative = chances[labels == 1], np.sort(chances[labels == 0])
    if not len(positive) or not len(negative):
        return None
    allowed = int((1 - specificity) * len(negative) + 1e-9)
    if allowed == len(negative):
        return 1.0
    return float((positive > negative[len(negative) - 1 - allowed]).mean())


def average_precision(y: ArrayLike, p: ArrayLike) -> float | None:
    """Precision at each distinct score, weighted by the recall that it adds; None without positives."""
    labels, chances = checked(y, p)
    if not labels.any():
        return None
    order = np.argsort(-chances, kind="stable")
    hits = np.cumsum(labels[order])
    last = np.flatnonzero(np.append(np.diff(chances[order]) != 0, True))
    precision, recall = hits[last] / (last + 1), hits[last] / labels.sum()
    return float((precision * np.diff(recall, prepend=0.0)).sum())


def scores(y: ArrayLike, p: ArrayLike) -> Scores:
    """All scores for labels `y` (n,) of probabilities `p`: (n, C), or (n,) of the positive class."""
    chances = np.asarray(p, dtype=np.float64)
    if chances.ndim == 2 and chances.shape[1] > 2:
        return _several(y, chances)
    return _two(y, chances[:, 1] if chances.ndim == 2 else chances)


def _two(y: ArrayLike, p: Floats) -> Scores:
    labels, chances = checked(y, p)
    n, positives = len(labels), int(labels.sum())
    reason = "no images" if n == 0 else "no positives" if positives == 0 else "no negatives" if positives == n else ""
    values = {
        "acc": accuracy(labels, chances),
        "auc": auc(labels, chances),
        "balanced_acc": balanced_accuracy(labels, chances),
        "brier": brier(labels, chances),
        "sensitivity": rates(labels, chances)[0],
        "specificity": rates(labels, chances)[1],
        "f1": f1(labels, chances),
        "sens_at_spec90": sensitivity_at(labels, chances),
        "ap": average_precision(labels, chances),
    }
    return _scores(n, positives, values, reason)


def _several(y: ArrayLike, p: Floats) -> Scores:
    labels = np.asarray(y, dtype=np.int64)
    if len(labels) != len(p) or not np.isfinite(p).all():
        raise ValueError(f"labels {labels.shape} and probabilities {p.shape} do not belong together or are not finite")
    hits = p.argmax(axis=1) == labels
    n, classes = len(labels), p.shape[1]
    whole = len(np.unique(labels)) == classes
    values = {
        "acc": float(hits.mean()) if n else None,
        "auc": None,
        "balanced_acc": float(np.mean([hits[labels == c].mean() for c in range(classes)])) if whole else None,
        "brier": float(((p - np.eye(classes)[labels]) ** 2).sum(axis=1).mean()) if n else None,
    }
    out = _scores(n, None, values | dict.fromkeys(OF_TWO), "no images" if n == 0 else "a class is absent")
    out["why"] |= dict.fromkeys(("auc", *OF_TWO), "more than two classes")
    return out


def _scores(n: int, positives: int | None, values: dict[str, float | None], reason: str) -> Scores:
    return Scores(
        n=n,
        positives=positives,
        acc=values["acc"],
        auc=values["auc"],
        balanced_acc=values["balanced_acc"],
        brier=values["brier"],
        sensitivity=values["sensitivity"],
        specificity=values["specificity"],
        f1=values["f1"],
        sens_at_spec90=values["sens_at_spec90"],
        ap=values["ap"],
        why={name: reason for name, value in values.items() if value is None},
    )
