"""How sure a number is: t-intervals over seeds, bootstrap intervals over patients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fdamed.evaluate.metrics import THRESHOLD, checked
from fdamed.seeds import Stream

LEVEL = 0.95
CHUNK = 4_000_000
"""Weights drawn at once: bounds the memory whatever the number of patients."""


@dataclass(frozen=True)
class Interval:
    """A mean and what is known about its error; `half` is None when one value or none is there."""

    mean: float | None
    half: float | None
    n: int
    left_out: int = 0
    """Values that were undefined and are not in the mean."""

    @property
    def low(self) -> float | None:
        return None if self.mean is None or self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        return None if self.mean is None or self.half is None else self.mean + self.half

    def overlaps(self, other: Interval) -> bool | None:
        """Whether the two intervals share a point; None when one of them does not exist."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return None
        return self.low <= other.high and other.low <= self.high


def over_seeds(values: Iterable[float | None], level: float = LEVEL) -> Interval:
    """Mean and t-interval of repeated runs; undefined values are left out and counted."""
    given = list(values)
    known = np.array([v for v in given if v is not None and math.isfinite(v)], dtype=np.float64)
    n, left_out = len(known), len(given) - len(known)
    if n == 0:
        return Interval(None, None, 0, left_out)
    if n == 1:
        return Interval(float(known[0]), None, 1, left_out)
    half = t_factor(n, level) * float(known.std(ddof=1))
    return Interval(float(known.mean()), half, n, left_out)


def t_factor(n: int, level: float = LEVEL) -> float:
    """What a standard deviation of `n` values is multiplied by to give half the interval of their mean."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 0.5 + level / 2)) / math.sqrt(n)


@dataclass(frozen=True)
class Bootstrap:
    """Percentile intervals over patients drawn with replacement."""

    auc: tuple[float, float] | None
    acc: tuple[float, float] | None
    replicates: int
    undefined: int
    """Replicates in which a class was absent, so that they say nothing about the AUC."""


def bootstrap(
    y: ArrayLike, p: ArrayLike, patient: ArrayLike, stream: Stream, replicates: int = 10_000, level: float = LEVEL
) -> Bootstrap:
    """Intervals of AUC and accuracy when whole patients, with all their images, are drawn again."""
    labels, chances = checked(y, p)
    if len(labels) == 0:
        return Bootstrap(None, None, 0, 0)
    _, owner = np.unique(np.asarray(patient), return_inverse=True)
    if owner.shape != labels.shape:
        raise ValueError(f"patients {owner.shape} and labels {labels.shape} must both be (n,)")
    patients = int(owner.max()) + 1
    generator = stream.numpy
    step = max(1, CHUNK // max(patients, len(labels)))
    areas, shares = [], []
    for begin in range(0, replicates, step):
        times = _times_drawn(generator, min(step, replicates - begin), patients)
        area, share = _weighted(labels, chances, owner, times)
        areas.append(area)
        shares.append(share)
    area, share = np.concatenate(areas), np.concatenate(shares)
    known = area[np.isfinite(area)]
    tails = [(1 - level) / 2, (1 + level) / 2]
    return Bootstrap(
        auc=_pair(np.quantile(known, tails)) if len(known) else None,
        acc=_pair(np.quantile(share, tails)),
        replicates=replicates,
        undefined=len(area) - len(known),
    )


def _pair(values: NDArray[np.float64]) -> tuple[float, float]:
    return float(values[0]), float(values[1])


def _times_drawn(generator: np.random.Generator, rows: int, patients: int) -> NDArray[np.float32]:
    """(rows, patients): how often each patient was drawn in each replicate."""
    drawn = generator.integers(0, patients, size=(rows, patients), dtype=np.int32).astype(np.int64)
    drawn += np.arange(rows)[:, None] * patients
    return np.bincount(drawn.ravel(), minlength=rows * patients).reshape(rows, patients).astype(np.float32)


def _weighted(
    labels: NDArray[np.float64], chances: NDArray[np.float64], owner: NDArray[np.intp], times: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """AUC and accuracy of each replicate, from sums of weights: (rows,), (rows,)."""
    positive = np.flatnonzero(labels == 1)
    negative = np.flatnonzero(labels == 0)
    negative = negative[np.argsort(chances[negative], kind="stable")]
    # A positive beats the weight of the negatives below it and half of those that tie with it.
    below = np.searchsorted(chances[negative], chances[positive], side="left")
    up_to = np.searchsorted(chances[negative], chances[positive], side="right")
    heavy = times[:, owner[positive]]
    sums = np.zeros((len(times), len(negative) + 1))
    np.cumsum(times[:, owner[negative]], axis=1, out=sums[:, 1:])
    won = np.einsum("ij,ij->i", heavy, sums[:, below]) + np.einsum("ij,ij->i", heavy, sums[:, up_to])
    pairs = heavy.sum(axis=1, dtype=np.float64) * sums[:, -1]
    area = np.full(len(times), np.nan)
    np.divide(won, 2 * pairs, out=area, where=pairs > 0)
    images = np.bincount(owner, minlength=times.shape[1]).astype(np.float64)
    hits = np.bincount(owner, weights=(chances >= THRESHOLD) == (labels == 1), minlength=times.shape[1])
    return area, (times @ hits) / (times @ images)
