"""Numbers as people read them."""

from __future__ import annotations

from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.run_tables import clipped


def interval(score: Interval | None, percent: bool = False) -> str:
    """Mean and half interval as text; the ends where half of it would lie outside 0 and 1."""
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
    """Mean and half interval of a score that is in per cent already."""
    return "–" if score.mean is None else f"{score.mean:.2f}" + ("" if score.half is None else f" ± {score.half:.2f}")


def megabytes(value: float) -> str:
    """MB in a unit that shows something."""
    size = value * 1e6
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.3g} {unit}" if size / factor < 1000 else f"{size / factor:,.0f} {unit}"
    return f"{size:.0f} B"


def count(value: object) -> str:
    """A number with thousands set apart; text as it is."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def millions(value: int | None) -> str:
    """A number of operations; a dash where they are not counted."""
    return "–" if value is None else f"{value / 1e6:,.1f} M"


def seconds(score: Interval) -> str:
    """Seconds with three digits that count."""
    if score.mean is None:
        return "–"
    return f"{score.mean:.3g}" + ("" if score.half is None else f" ± {score.half:.2g}")
