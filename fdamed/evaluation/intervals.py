"""t-intervals of means over seeds, and numbers and intervals as people read them.

Intervals over patients are in bootstrap.py and paired_tests.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    """Defined values."""

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


def over_seeds(values: Iterable[float | None], step: float = 0.0) -> Interval:
    """Mean and t-interval of repeated runs; undefined values are left out.

    Values that are shown with a rounding step get the widest interval that those before rounding may have.
    """
    given = np.array(list(values), dtype=np.float64)  # None becomes NaN
    known = given[np.isfinite(given)]
    n = len(known)
    if n < 2:
        return Interval(float(known[0]) if n else None, None, n)
    half = float(t_factor(np.array(n))) * (float(known.std(ddof=1)) + float(from_rounding(step, np.array(n))))
    return Interval(float(known.mean()), half, n)


def t_factor(n: NDArray[np.int64]) -> NDArray[np.float64]:
    """The factor that turns the standard deviation of `n` values into half the interval of their mean; NaN below 2."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(n - 1, 0.5 + LEVEL / 2) / np.sqrt(n))


def from_rounding(step: Any, n: NDArray[np.int64]) -> NDArray[np.float64]:
    """The most by which rounding to a step can have lowered the standard deviation of `n` values; n: 2 or more."""
    return np.asarray(step / 2 * np.sqrt(n / np.maximum(n - 1, 1)))


def clipped(score: Interval) -> tuple[float | None, float | None]:
    """The ends of an interval of a share, which cannot lie outside 0 and 1."""
    low, high = score.low, score.high
    return (None if low is None else max(0.0, low)), (None if high is None else min(1.0, high))


def interval(score: Interval | None, percent: bool = False) -> str:
    """Mean ± half of the interval; both ends where the interval would leave 0 to 1."""
    if score is None or score.mean is None:
        return "–"
    factor, digits = (100, 2) if percent else (1, 3)
    mean, (low, high) = f"{score.mean * factor:.{digits}f}", clipped(score)
    if score.half is None or low is None or high is None:
        return mean
    if (low, high) != (score.low, score.high):
        return f"{mean} ({low * factor:.{digits - 1}f}–{high * factor:.{digits - 1}f})"
    return f"{mean} ± {score.half * factor:.{digits}f}"


def plus_minus(score: Interval, digits: str = ".3f") -> str:
    """Mean ± half of the interval of any number."""
    ends = "" if score.half is None else f" ± {score.half:{digits}}"
    return "–" if score.mean is None else f"{score.mean:{digits}}{ends}"


def megabytes(value: float) -> str:
    """MB in the unit that suits the size."""
    size = value * 1e6
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.3g} {unit}" if size / factor < 1000 else f"{size / factor:,.0f} {unit}"
    return f"{size:.0f} B"


def count(value: object) -> str:
    """A number with thousands separators; text as it is."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def counted(n: int, word: str) -> str:
    """A count with its noun: `1 seed`, `3 seeds`."""
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def listed(words: Sequence[str], most: int = 4) -> str:
    """`a, b and c`; of many, the first ones and how many more."""
    shown = list(words) if len(words) <= most else [*words[: most - 1], f"{len(words) - most + 1} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def minus(text: str) -> str:
    """With a true minus sign."""
    return text.replace("-", "−")


def fixed(value: float, digits: int = 2, sign: str = "") -> str:
    """So many decimals; never a negative zero."""
    return minus(f"{round(value, digits) + 0.0:{sign}.{digits}f}")


def signed(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else fixed(value, digits, "+")


def ends(estimate: Mapping[str, Any], digits: int = 2, factor: float = 1.0, sign: str = "") -> str:
    """`low to high` of an estimate."""
    return " to ".join(fixed(factor * estimate[k], digits, sign) for k in ("low", "high"))


def reach(estimate: Mapping[str, float], digits: int = 3) -> str:
    """An estimate with its interval, in significant digits."""
    return minus("{} ({} to {})".format(*(f"{estimate[k]:#.{digits}g}".rstrip(".") for k in ("value", "low", "high"))))


def p_value(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.2g}"


FILTERS = {
    "interval": interval,
    "plus_minus": plus_minus,
    "megabytes": megabytes,
    "count": count,
    "counted": counted,
    "listed": listed,
    "fixed": fixed,
    "signed": signed,
    "ends": ends,
    "reach": reach,
    "p_value": p_value,
    "capital": lambda text: text[:1].upper() + text[1:],
}
"""Filters of the templates."""
