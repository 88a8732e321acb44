"""The bootstrap over patients: scores of models on patients drawn with replacement.

A drawn patient comes with all images, because these are not independent. No image is copied: a draw is a vector of
weights (how often each patient was drawn), and every score is a sum of weights over the images, sorted once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fdamed.core.rng import Stream
from fdamed.evaluation.intervals import LEVEL
from fdamed.evaluation.metrics import OF_TWO, SPECIFICITY, THRESHOLD, checked
from fdamed.evaluation.paired_tests import Scored

Floats = NDArray[np.float64]
Weights = NDArray[np.float32]
"""(rows, patients): how often each patient was drawn; whole numbers, so that float32 sums of them are exact."""
TWO = ("acc", "auc", "balanced_acc", "brier", *OF_TWO)
"""Scores of two classes."""
SEVERAL = ("acc", "balanced_acc", "brier")
CHUNK = 200_000
"""Weights at once: bounds the memory, and fits into a processor's cache."""
REPLICATES = 1000
"""Draws of a comparison."""
WORK = 2_000_000_000
"""Weights of a comparison of many models in total; above, it draws fewer times."""


def bootstrap(
    y: ArrayLike, p: ArrayLike, patient: ArrayLike, stream: Stream, replicates: int = 10_000
) -> dict[str, Any]:
    """Percentile intervals of all scores for labels `y` (n,) of probabilities `p`, (n, C) or (n,), as in scores/*.json.

    `intervals`: score -> low and high, None where the data cannot define it. `undefined`: replicates without a class.
    """
    labels, chances = checked(y, p)
    _, owner = np.unique(np.asarray(patient), return_inverse=True)
    names = TWO if chances.ndim == 1 else SEVERAL
    if len(labels) == 0:
        return {"level": LEVEL, "replicates": 0, "undefined": 0, "intervals": dict.fromkeys(names)}
    patients = int(owner.max()) + 1
    model = prepared(labels, chances, owner, patients)
    parts = [model.scores(times) for times in draws(stream, replicates, patients, len(labels))]
    values = {name: np.concatenate([part[name] for part in parts]) for name in names}
    main = values["auc" if "auc" in values else "balanced_acc"]
    return {
        "level": LEVEL,
        "replicates": replicates,
        "undefined": int((~np.isfinite(main)).sum()),
        "intervals": {name: percentiles(found) for name, found in values.items()},
    }


def percentiles(values: Floats) -> tuple[float, float] | None:
    """The middle 95 % of the defined values; None if there are none."""
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def affordable(models: int, images: int) -> int:
    """How many times a comparison draws patients: fewer times, but at least 200, if there are many models or images."""
    return max(200, min(REPLICATES, WORK // max(1, models * images)))


def scored(
    y: ArrayLike,
    chances: Floats,
    patient: ArrayLike,
    stream: Stream,
    names: Sequence[str] | None = None,
    replicates: int | None = None,
) -> dict[str, Scored]:
    """Score -> its values for R models on the same patients, and the covariance of their errors by the bootstrap.

    `chances` (R, n) or (R, n, C). All models see the same draws, so that differences of models are paired. A score
    that is undefined on the data, or in more than half of the draws, is left out. `replicates`: default `affordable`.
    """
    _, owner = np.unique(np.asarray(patient), return_inverse=True)
    patients = int(owner.max(initial=-1)) + 1
    if patients < 2:
        return {}
    models = [prepared(*checked(y, row), owner, patients) for row in chances]
    wanted = [n for n in (TWO if chances.ndim == 2 else SEVERAL) if names is None or n in names]
    drawn = replicates or affordable(*chances.shape[:2])
    once = np.ones((1, patients), dtype=np.float32)
    parts = [[m.scores(times) for m in models] for times in (once, *draws(stream, drawn, patients, len(owner)))]
    out = {}
    for name in wanted:
        exact, *again = (np.stack([scores[name] for scores in part]) for part in parts)
        values = np.concatenate(again, axis=1)
        known = values[:, np.isfinite(values).all(axis=0)]
        if np.isfinite(exact).all() and known.shape[1] >= drawn / 2:
            out[name] = Scored(exact[:, 0], np.atleast_2d(np.cov(known)))
    return out


def draws(stream: Stream, replicates: int, patients: int, images: int) -> Iterator[Weights]:
    """The weights of all replicates, in chunks."""
    generator = stream.numpy
    step = max(1, CHUNK // max(patients, images))
    for begin in range(0, replicates, step):
        rows = min(step, replicates - begin)
        drawn = generator.integers(0, patients, size=(rows, patients), dtype=np.int32).astype(np.int64)
        drawn += np.arange(rows)[:, None] * patients
        yield np.bincount(drawn.ravel(), minlength=rows * patients).reshape(rows, patients).astype(np.float32)


def prepared(labels: Floats, chances: Floats, owner: NDArray[np.intp], patients: int) -> Two | Several:
    """One model's images in the order that its scores need, and its sums by patient."""

    def by_patient(values: ArrayLike) -> Weights:
        return np.bincount(owner, weights=np.asarray(values, dtype=np.float64), minlength=patients).astype(np.float32)

    if chances.ndim == 2:
        hits = chances.argmax(axis=1) == labels
        classes = [labels == c for c in range(chances.shape[1])]
        squares = ((chances - np.eye(chances.shape[1])[labels.astype(np.int64)]) ** 2).sum(axis=1)
        columns = [hits & c for c in classes] + classes + [squares]
        return Several(np.stack([by_patient(c) for c in columns], axis=1), chances.shape[1])
    true, said = labels == 1, chances >= THRESHOLD
    columns = [true, ~true, said & true, ~said & ~true, (chances - labels) ** 2]
    order = np.argsort(-chances, kind="stable")
    last = np.flatnonzero(np.append(np.diff(chances[order]) != 0, True))
    return Two(
        sums=np.stack([by_patient(c) for c in columns], axis=1),
        owner=owner[order],
        true=true[order].astype(np.float32),
        last=None if len(last) == len(order) else last,
    )


@dataclass(frozen=True)
class Two:
    """A model of two classes: its images by falling probability, and sums by patient that need no order."""

    sums: Weights
    """(patients, 5): positives, negatives, true positives, true negatives, squared errors."""
    owner: NDArray[np.intp]
    true: Weights
    """(n,): 1 for a positive."""
    last: NDArray[np.intp] | None
    """The last place of each probability; None: all differ."""

    def scores(self, times: Weights) -> dict[str, Floats]:
        """Score -> (rows,), NaN where a replicate lacks a class."""
        positives, negatives, caught, cleared, squares = (times @ self.sums).astype(np.float64).T
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
            return out | self._over_thresholds(times, positives, negatives)

    def _over_thresholds(self, times: Weights, positives: Floats, negatives: Floats) -> dict[str, Floats]:
        """Scores over all thresholds: AUC, average precision, sensitivity at a specificity."""
        weights = times[:, self.owner]
        caught = np.cumsum(weights * self.true, axis=1)  # true positives from the top down to here
        above = np.cumsum(weights, axis=1)
        if self.last is not None:
            caught, above = caught[:, self.last], above[:, self.last]
        alarms = above - caught
        gained = np.diff(caught, axis=1, prepend=np.float32(0))
        # A positive beats the negatives with a lower probability, and half of those with the same.
        beaten = 2 * negatives.astype(np.float32)[:, None] - alarms
        beaten[:, 1:] -= alarms[:, :-1]
        won = np.einsum("ij,ij->i", gained, beaten, dtype=np.float64) / 2
        np.maximum(above, 1, out=above)
        precise = np.einsum("ij,ij->i", gained, caught / above, dtype=np.float64)
        allowed = np.floor((1 - SPECIFICITY) * negatives + 1e-9)
        places = (alarms <= allowed[:, None].astype(np.float32)).sum(axis=1)
        found = np.where(places > 0, caught[np.arange(len(caught)), np.maximum(places, 1) - 1], 0.0)
        both = (positives > 0) & (negatives > 0)
        return {
            "auc": np.where(both, won / (positives * negatives), np.nan),
            "ap": np.where(positives > 0, precise / positives, np.nan),
            "sens_at_spec90": np.where(both, found / positives, np.nan),
        }


@dataclass(frozen=True)
class Several:
    """A model of several classes; by patient: hits of each class, images of each class, squared errors."""

    sums: Weights
    classes: int

    def scores(self, times: Weights) -> dict[str, Floats]:
        """Score -> (rows,), NaN where a replicate lacks a class."""
        sums = (times @ self.sums).astype(np.float64)
        hits, images, squares = sums[:, : self.classes], sums[:, self.classes : -1], sums[:, -1]
        total = images.sum(axis=1)
        with np.errstate(invalid="ignore"):
            recall = (hits / images).mean(axis=1)
        return {"acc": hits.sum(axis=1) / total, "balanced_acc": recall, "brier": squares / total}
