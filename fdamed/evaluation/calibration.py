"""Calibration: whether the share of positives among images with the same probability is that probability."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fdamed.core.disclosure import small
from fdamed.core.rng import stream
from fdamed.evaluation.intervals import LEVEL
from fdamed.evaluation.metrics import checked

BINS, PER_BIN = 10, 20
"""Bins at most, and images that a drawn bin has at least."""
POINTS = 3
"""Bins that a diagram has at least."""
TRIALS = 2000
"""Samples drawn for the error of true probabilities."""


@dataclass(frozen=True)
class Bin:
    """Images with neighboring probabilities."""

    n: int
    positives: int
    probability: float
    """Mean probability."""

    @property
    def rate(self) -> float:
        """Share of positives."""
        return self.positives / self.n

    def identifies(self, smallest: int) -> bool:
        """Whether a class has so few images here that the count could identify persons."""
        return small(self.positives, smallest) or small(self.n - self.positives, smallest)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the rate; images are taken as independent."""
        from scipy.special import ndtri

        z2 = float(ndtri(0.5 + LEVEL / 2)) ** 2
        middle = (self.positives + z2 / 2) / (self.n + z2)
        half = math.sqrt(z2 * (self.n * self.rate * (1 - self.rate) + z2 / 4)) / (self.n + z2)
        return middle - half, middle + half

    def __add__(self, other: Bin) -> Bin:
        n = self.n + other.n
        return Bin(n, self.positives + other.positives, (self.n * self.probability + other.n * other.probability) / n)


def reliability(y: ArrayLike, p: ArrayLike, bins: int = BINS) -> list[Bin]:
    """Bins with about the same number of images, by rising probability; equal probabilities share a bin."""
    labels, probabilities = checked(y, p)
    if not len(labels):
        return []
    order = np.argsort(probabilities, kind="stable")
    begins = _begins(probabilities[order], bins)
    sizes = np.diff([*begins, len(order)])
    positives = np.add.reduceat(labels[order], begins)
    means = np.add.reduceat(probabilities[order], begins) / sizes
    return [Bin(int(n), int(k), float(c)) for n, k, c in zip(sizes, positives, means, strict=True)]


def _begins(ordered: NDArray[np.float64], bins: int) -> NDArray[np.intp]:
    """Where the bins begin among rising probabilities."""
    quantiles = ordered[np.arange(bins) * len(ordered) // bins]
    return np.unique(np.searchsorted(ordered, quantiles, "left"))


def calibration_error(bins: list[Bin]) -> float | None:
    """Expected calibration error: mean distance of probability and rate, weighted by images; None without images."""
    n = sum(b.n for b in bins)
    return sum(b.n * abs(b.probability - b.rate) for b in bins) / n if n else None


def by_chance(y: ArrayLike, p: ArrayLike, bins: int = BINS) -> float | None:
    """What the calibration error of true probabilities stays below in 95 % of all samples; None without images.

    The error of perfectly calibrated probabilities is not 0, because the share of positives in a bin varies. The sum
    of y - p over a bin has variance sum p (1 - p); bins are taken as normal and images as independent.
    """
    labels, probabilities = checked(y, p)
    if not len(labels):
        return None
    ordered = np.sort(probabilities)
    spread = np.sqrt(np.add.reduceat(ordered * (1 - ordered), _begins(ordered, bins)))
    return float(np.quantile((_scatter(len(spread)) @ spread) / len(labels), LEVEL))


@cache
def _scatter(bins: int) -> NDArray[np.float64]:
    """(TRIALS, bins): absolute values of standard normal numbers."""
    return np.abs(stream(0, "calibration").numpy.standard_normal((TRIALS, bins)))


def joined(bins: list[Bin], smallest: int, least: int = 1) -> list[Bin]:
    """Neighboring bins merged until all have `least` images and none could identify persons; none if impossible."""

    def few(one: Bin) -> bool:
        return one.n < least or one.identifies(smallest)

    out: list[Bin] = []
    for b in bins:
        out.append(b)
        while len(out) > 1 and few(out[-2]):
            out[-2:] = [out[-2] + out[-1]]
    while len(out) > 1 and few(out[-1]):
        out[-2:] = [out[-2] + out[-1]]
    return [] if out and few(out[0]) else out
