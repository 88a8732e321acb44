"""How sure a mean over repeated runs is: t-intervals over seeds. Over patients: resampling.py and paired.py."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
SURE = 0.05
"""Holm's p-value, within a target, below which two runs differ."""


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
