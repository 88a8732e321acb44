"""Many methods over many targets: mean ranks, and how far apart they must lie to differ (Demsar, JMLR 2006)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fdamed.evaluation.intervals import LEVEL


@dataclass(frozen=True)
class Ranking:
    """Mean ranks of methods over N data sets; 1 is the best."""

    names: tuple[str, ...]
    ranks: tuple[float, ...]
    """Best first, as `names`."""
    sets: int
    p: float
    """Friedman's test, Iman and Davenport's form: as unequal by chance."""
    apart: float
    """Nemenyi's critical difference: mean ranks nearer than this cannot be told apart."""

    @property
    def cliques(self) -> list[tuple[int, int]]:
        """First and last place of the longest runs of methods that cannot be told apart."""
        found: list[tuple[int, int]] = []
        for i, rank in enumerate(self.ranks):
            last = max(j for j, other in enumerate(self.ranks) if other - rank < self.apart)
            if last > i and (not found or last > found[-1][1]):
                found.append((i, last))
        return found


def ranking(names: Sequence[str], scores: ArrayLike, level: float = LEVEL) -> Ranking | None:
    """From scores (N data sets, k methods), higher is better; None with fewer than two of either."""
    from scipy.stats import f, rankdata, studentized_range

    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != len(names) or not np.isfinite(table).all():
        raise ValueError(f"scores {table.shape} must be finite and (data sets, {len(names)} methods)")
    n, k = table.shape
    if n < 2 or k < 2:
        return None
    mean = rankdata(-table, axis=1).mean(axis=0)
    chi2 = 12 * n / (k * (k + 1)) * (float((mean**2).sum()) - k * (k + 1) ** 2 / 4)
    rest = n * (k - 1) - chi2
    p = 0.0 if rest <= 0 else float(f.sf((n - 1) * chi2 / rest, k - 1, (k - 1) * (n - 1)))
    q = float(studentized_range.ppf(level, k, math.inf)) / math.sqrt(2)
    order = np.argsort(mean, kind="stable")
    return Ranking(
        tuple(names[i] for i in order),
        tuple(float(mean[i]) for i in order),
        n,
        p,
        q * math.sqrt(k * (k + 1) / (6 * n)),
    )
