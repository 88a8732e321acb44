"""Scores of a model's probabilities: AUC, accuracy, sensitivity and specificity, F1, average precision, Brier score.

With several classes there is no AUC, balanced accuracy is the mean recall, and the Brier score sums over the classes.
A score that the data cannot define (AUC where a class is absent) is None with a reason, never 0.5 or NaN.
"""

from __future__ import annotations

from typing import TypedDict, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
OF_TWO = ("sensitivity", "specificity", "f1", "sens_at_spec90", "ap")
"""Scores that only two classes have, beside the AUC."""
THRESHOLD = 0.5
"""Probabilities from here on count as positive."""
SPECIFICITY = 0.9
"""Specificity of `sens_at_spec90`; its threshold is chosen on the evaluated images themselves."""


class Scores(TypedDict):
    """The scores of one model on one set of images, as in scores/{client}.json."""

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
    """Labels (n,) and probabilities, (n,) of the positive class or (n, C) of several, as float64; or ValueError."""
    labels, chances = np.asarray(y, dtype=np.float64), np.asarray(p, dtype=np.float64)
    if chances.ndim == 2 and chances.shape[1] == 2:
        chances = chances[:, 1]
    if labels.ndim != 1 or labels.shape != chances.shape[:1]:
        raise ValueError(f"labels {labels.shape} and probabilities {chances.shape} must have the same length")
    if chances.ndim == 1 and not np.isin(labels, (0.0, 1.0)).all():
        raise ValueError("labels must be 0 or 1")
    if not np.isfinite(chances).all() or (chances < 0).any() or (chances > 1).any():
        raise ValueError("probabilities must be finite and lie between 0 and 1")
    return labels, chances


def scores(y: ArrayLike, p: ArrayLike) -> Scores:
    """All scores for labels `y` (n,) of probabilities `p`: (n, C), or (n,) of the positive class."""
    labels, chances = checked(y, p)
    n, two = len(labels), chances.ndim == 1
    if two:
        values = _of_two(labels, chances)
        reason = "no positives" if not labels.any() else "no negatives"
    else:
        values = _of_several(labels, chances) | dict.fromkeys(OF_TWO)
        reason = "a class is absent"
    why = dict.fromkeys((k for k, v in values.items() if v is None), reason if n else "no images")
    if not two:
        why |= dict.fromkeys(("auc", *OF_TWO), "more than two classes")
    return cast(Scores, {"n": n, "positives": int(labels.sum()) if two else None, **values, "why": why})


def _of_two(labels: Floats, chances: Floats) -> dict[str, float | None]:
    true, predicted = labels == 1, chances >= THRESHOLD
    sensitivity, specificity = _mean(predicted[true]), _mean(~predicted[~true])
    return {
        "acc": _mean(predicted == true),
        "auc": auc(labels, chances),
        "balanced_acc": None if sensitivity is None or specificity is None else (sensitivity + specificity) / 2,
        "brier": _mean((chances - labels) ** 2),
        "sensitivity": sensitivity,
        "specificity": specificity,
        "f1": float(2 * (predicted & true).sum() / (predicted.sum() + true.sum())) if true.any() else None,
        "sens_at_spec90": sensitivity_at(labels, chances),
        "ap": average_precision(labels, chances),
    }


def _of_several(labels: Floats, chances: Floats) -> dict[str, float | None]:
    hits, classes = chances.argmax(axis=1) == labels, range(chances.shape[1])
    recalls = [hits[labels == c].mean() for c in classes if (labels == c).any()]
    errors = ((chances - np.eye(len(classes))[labels.astype(np.int64)]) ** 2).sum(axis=1)
    complete = len(recalls) == len(classes)
    return {
        "acc": _mean(hits),
        "auc": None,
        "balanced_acc": float(np.mean(recalls)) if complete else None,
        "brier": _mean(errors),
    }


def _mean(values: NDArray[np.generic]) -> float | None:
    return float(values.mean()) if len(values) else None


def auc(y: ArrayLike, p: ArrayLike) -> float | None:
    """Probability that a positive scores above a negative, ties counting a half; None without both classes."""
    labels, chances = checked(y, p)
    positive, negative = chances[labels == 1], np.sort(chances[labels == 0])
    if not len(positive) or not len(negative):
        return None
    below = np.searchsorted(negative, positive, "left") + np.searchsorted(negative, positive, "right")
    return float(below.sum() / 2 / (len(positive) * len(negative)))


def sensitivity_at(y: ArrayLike, p: ArrayLike, specificity: float = SPECIFICITY) -> float | None:
    """Largest sensitivity of any threshold with at least this specificity; None without both classes."""
    labels, chances = checked(y, p)
    positive, negative = chances[labels == 1], np.sort(chances[labels == 0])
    if not len(positive) or not len(negative):
        return None
    allowed = int((1 - specificity) * len(negative) + 1e-9)
    return float((positive > negative[len(negative) - 1 - allowed]).mean()) if allowed < len(negative) else 1.0


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
