"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.run_tables import clipped

NOISE_MODES = {
    "reproducible": "reproducible: whoever knows the seed can remove the noise",
    "secure": "secure: noise from the operating system that nobody can repeat",
}
"""How noise for differential privacy is drawn."""


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


def points(score: Interval) -> str:
    """Mean ± half of the interval of a score that is in percent already."""
    return "–" if score.mean is None else f"{score.mean:.2f}" + ("" if score.half is None else f" ± {score.half:.2f}")


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


def seconds(score: Interval) -> str:
    """Seconds with three significant digits."""
    if score.mean is None:
        return "–"
    return f"{score.mean:.3g}" + ("" if score.half is None else f" ± {score.half:.2g}")


def minus(text: str) -> str:
    """With a true minus sign."""
    return text.replace("-", "−")


def fixed(value: float, digits: int = 2, sign: str = "") -> str:
    """So many decimals; never a negative zero."""
    return minus(f"{round(value, digits) + 0.0:{sign}.{digits}f}")


def signed(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else minus(f"{value:+.{digits}f}")


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
    "points": points,
    "megabytes": megabytes,
    "count": count,
    "seconds": seconds,
    "fixed": fixed,
    "signed": signed,
    "ends": ends,
    "reach": reach,
    "p_value": p_value,
    "capital": lambda text: text[:1].upper() + text[1:],
}
"""Filters of the templates."""
