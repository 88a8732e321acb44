"""The bootstrap over patients: all scores of a model, again and again, on patients drawn with replacement.

A patient who is drawn comes with all images, for these are not independent. No image is ever copied: a draw is a vector
of weights (how often each patient came up), and every score is a sum of weights over the images sorted once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
"""Weights at once: bounds the memory, and stays in the cache of a processor."""
REPLICATES = 1000
"""Draws of a comparison."""
WORK = 2_000_000_000
"""Weights that a comparison of many models may take in all; above, it draws less often."""


@dataclass(frozen=True)
class Bootstrap:
    """Percentile intervals over patients drawn with replacement."""

    intervals: Mapping[str, tuple[float, float] | None]
    """Score -> its ends; None where the data cannot define it."""
    patients: int
    replicates: int
    undefined: int
    """Replicates in which a class was absent, so that they say nothing about the AUC."""

    def told(self, level: float = LEVEL) -> dict[str, object]:
        """As it stands in scores/{client}.json."""
        ends = {name: None if pair is None else list(pair) for name, pair in self.intervals.items()}
        return {"level": level, "replicates": self.replicates, "undefined": self.undefined, "intervals": ends}


def bootstrap(
    y: ArrayLike, p: ArrayLike, patient: ArrayLike, stream: Stream, replicates: int = 10_000, level: float = LEVEL
) -> Bootstrap:
    """Intervals of all scores for labels `y` (n,) of probabilities `p`: (n, C), or (n,) of the positive class."""
    labels, chances, owner = _checked(y, p, patient)
    names = TWO if chances.ndim == 1 else SEVERAL
    if len(labels) == 0:
        return Bootstrap(dict.fromkeys(names), 0, 0, 0)
    patients = int(owner.max()) + 1
    model = prepared(labels, chances, owner, patients)
    parts = [model.scores(times) for times in draws(stream, replicates, patients, len(labels))]
    values = {name: np.concatenate([part[name] for part in parts]) for name in names}
    main = values["auc" if "auc" in values else "balanced_acc"]
    return Bootstrap(
        intervals={name: percentiles(found, level) for name, found in values.items()},
        patients=patients,
        replicates=replicates,
        undefined=int((~np.isfinite(main)).sum()),
    )


def percentiles(values: Floats, level: float = LEVEL) -> tuple[float, float] | None:
    """The middle `level` of the defined values; None where none is."""
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def affordable(models: int, images: int) -> int:
    """How often a comparison of so many models draws patients: fewer times, but 200 at least, where there is much."""
    return max(200, min(REPLICATES, WORK // max(1, models * images)))


def scored(
    y: ArrayLike,
    chances: ArrayLike,
    patient: ArrayLike,
    stream: Stream,
    names: Sequence[str] | None = None,
    replicates: int | None = None,
) -> dict[str, Scored]:
    """Score -> its values for R models on the same patients and the covariance of their errors, by the bootstrap.

    `chances` (R, n) or (R, n, C). All models see the same draws, so that differences of models are paired. A score
    that is undefined on the data, or in every second draw, is not there. `replicates`: as many as are affordable.
    """
    rows = np.asarray(chances, dtype=np.float64)
    first = _checked(y, rows[0], patient)
    labels, owner, patients = first[0], first[2], int(first[2].max(initial=-1)) + 1
    if patients < 2:
        return {}
    models = [prepared(*_checked(labels, row, owner), patients) for row in rows]
    wanted = [n for n in (TWO if rows.ndim == 2 else SEVERAL) if names is None or n in names]
    times_drawn = replicates or affordable(rows.shape[0], rows.shape[1])
    parts: dict[str, list[Floats]] = {name: [] for name in wanted}
    for times in draws(stream, times_drawn, patients, len(labels)):
        told = [model.scores(times) for model in models]
        for name in wanted:
            parts[name].append(np.stack([t[name] for t in told]))
    once = np.ones((1, patients), dtype=np.float32)
    exact = [model.scores(once) for model in models]
    out = {}
    for name in wanted:
        values = np.array([float(t[name][0]) for t in exact])
        again = np.concatenate(parts[name], axis=1)
        known = again[:, np.isfinite(again).all(axis=0)]
        if np.isfinite(values).all() and known.shape[1] >= times_drawn / 2:
            out[name] = Scored(values, np.atleast_2d(np.cov(known)))
    return out


def draws(stream: Stream, replicates: int, patients: int, images: int) -> Iterator[Weights]:
    """The weights of all replicates, some at a time."""
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
    """A model of two classes: images by falling chance, and by patient the numbers that need no order."""

    sums: Weights
    """(patients, 5): positives, negatives, true positives, true negatives, squared errors."""
    owner: NDArray[np.intp]
    true: Weights
    """(n,): 1 for a positive."""
    last: NDArray[np.intp] | None
    """The last place of each chance, where some are equal."""

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
            return out | self._of_the_order(times, positives, negatives)

    def _of_the_order(self, times: Weights, positives: Floats, negatives: Floats) -> dict[str, Floats]:
        """What every threshold counts: area, average precision, sensitivity where few negatives may be above."""
        weights = times[:, self.owner]
        caught = np.cumsum(weights * self.true, axis=1)  # true positives from the top down to here
        above = np.cumsum(weights, axis=1)
        if self.last is not None:
            caught, above = caught[:, self.last], above[:, self.last]
        alarms = above - caught
        gained = np.diff(caught, axis=1, prepend=np.float32(0))
        # A positive beats the negatives below its chance and half of those that share it.
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
    """A model of more than two classes: by patient, hits of each class, images of each class, squared errors."""

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


def _checked(y: ArrayLike, p: ArrayLike, patient: ArrayLike) -> tuple[Floats, Floats, NDArray[np.intp]]:
    chances = np.asarray(p, dtype=np.float64)
    if chances.ndim == 2 and chances.shape[1] == 2:
        chances = chances[:, 1]
    if chances.ndim == 1:
        labels, chances = checked(y, chances)
    else:
        labels = np.asarray(y, dtype=np.float64)
        if not np.isfinite(chances).all() or labels.shape != chances.shape[:1]:
            raise ValueError(f"labels {labels.shape} and probabilities {chances.shape} do not belong together")
    _, owner = np.unique(np.asarray(patient), return_inverse=True)
    if owner.shape != labels.shape:
        raise ValueError(f"patients {owner.shape} and labels {labels.shape} must both be (n,)")
    return labels, chances, owner
