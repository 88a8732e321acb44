"""t-intervals of means over seeds; intervals over patients are in bootstrap.py and paired_tests.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
SURE = 0.05
"""Holm's p-value, within a target, below which two runs differ."""


@dataclass(frozen=True)
class Interval:
    """A mean and half the width of its interval, which is None with fewer than two values."""

    mean: float | None
    half: float | None
    n: int
    left_out: int = 0
    """Undefined values, which are not in the mean."""

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


def over_seeds(values: Iterable[float | None]) -> Interval:
    """Mean and t-interval of repeated runs; undefined values are left out and counted."""
    given = np.array(list(values), dtype=np.float64)  # None becomes NaN
    known = given[np.isfinite(given)]
    n, left_out = len(known), len(given) - len(known)
    if n < 2:
        return Interval(float(known[0]) if n else None, None, n, left_out)
    half = float(t_factor(np.array(n))) * float(known.std(ddof=1))
    return Interval(float(known.mean()), half, n, left_out)


def t_factor(n: NDArray[np.int64]) -> NDArray[np.float64]:
    """The factor that turns the standard deviation of `n` values into half the interval of their mean; NaN below 2."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(n - 1, 0.5 + LEVEL / 2) / np.sqrt(n))
