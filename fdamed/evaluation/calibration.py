"""Whether probabilities mean what they say: the share of positives among images that were given the same chance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fdamed.core.rng import stream
from fdamed.evaluation.intervals import LEVEL
from fdamed.evaluation.metrics import checked

BINS = 10
TRIALS = 2000
"""Samples drawn for the error that true chances would have."""


@dataclass(frozen=True)
class Bin:
    """Images of neighboring chances."""

    n: int
    positives: int
    chance: float
    """Mean of what was said."""

    @property
    def rate(self) -> float:
        """Share of positives."""
        return self.positives / self.n


def reliability(y: ArrayLike, p: ArrayLike, bins: int = BINS) -> list[Bin]:
    """Bins of about equally many images, by rising chance; equal chances are never parted."""
    labels, chances = checked(y, p)
    if not len(labels):
        return []
    order = np.argsort(chances, kind="stable")
    begins = _begins(chances[order], bins)
    sizes = np.diff([*begins, len(order)])
    positives = np.add.reduceat(labels[order], begins)
    said = np.add.reduceat(chances[order], begins) / sizes
    return [Bin(int(n), int(k), float(c)) for n, k, c in zip(sizes, positives, said, strict=True)]


def _begins(ordered: NDArray[np.float64], bins: int) -> list[int]:
    """Where the bins begin among rising chances."""
    out = [0]
    for k in range(1, bins):
        at = int(np.searchsorted(ordered, ordered[min(k * len(ordered) // bins, len(ordered) - 1)], "left"))
        if at > out[-1]:
            out.append(at)
    return out


def calibration_error(bins: list[Bin]) -> float | None:
    """Expected calibration error: mean distance of chance and rate, weighted by images; None without images."""
    n = sum(b.n for b in bins)
    return sum(b.n * abs(b.chance - b.rate) for b in bins) / n if n else None


def by_chance(y: ArrayLike, p: ArrayLike, bins: int = BINS, level: float = LEVEL) -> float | None:
    """What the calibration error stays below in `level` of all samples, were the chances true; None without images.

    The error of perfectly calibrated chances is not 0: shares of positives scatter in every bin, the more the fewer its
    images. The sum over a bin of y - p has variance sum p (1 - p); bins are taken as normal and images as independent.
    """
    labels, chances = checked(y, p)
    if not len(labels):
        return None
    ordered = np.sort(chances)
    spread = np.sqrt(np.add.reduceat(ordered * (1 - ordered), _begins(ordered, bins)))
    return float(np.quantile((_scatter(len(spread)) @ spread) / len(labels), level))


@cache
def _scatter(bins: int) -> NDArray[np.float64]:
    """(TRIALS, bins): sizes of standard normal numbers."""
    return np.abs(stream(0, "calibration").numpy.standard_normal((TRIALS, bins)))


def joined(bins: list[Bin], smallest: int) -> list[Bin]:
    """Neighbors put together until none has a count that could point at persons; without any if that cannot be."""
    out: list[Bin] = []
    for b in bins:
        out.append(b)
        while len(out) > 1 and _tells(out[-2], smallest):
            out[-2:] = [_both(out[-2], out[-1])]
    while len(out) > 1 and _tells(out[-1], smallest):
        out[-2:] = [_both(out[-2], out[-1])]
    return [] if out and _tells(out[0], smallest) else out


def _tells(b: Bin, smallest: int) -> bool:
    """A bin in which a class has few images, one or the other; none at all tells nothing about one person."""
    return any(0 < count < smallest for count in (b.positives, b.n - b.positives))


def _both(a: Bin, b: Bin) -> Bin:
    n = a.n + b.n
    return Bin(n, a.positives + b.positives, (a.n * a.chance + b.n * b.chance) / n)
