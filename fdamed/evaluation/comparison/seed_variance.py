"""How much the scores of a study's runs vary over seeds, from few seeds each.

Three seeds say little about a variance, and one that is too small by chance finds differences that are not there. Runs
of one study inform each other (Smyth, Statistical Applications in Genetics and Molecular Biology 2004, `eBayes` of the
R package limma): each variance moves towards the common one, the farther the less the runs differ. It never falls below
what was observed, so that a run that varies much more than the others keeps its own. As in limma, the degrees of
freedom are at most those of all runs together: variances that look alike by chance do not make a variance known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
LARGE = 1e6
"""Degrees of freedom of the common variance that count as infinitely many."""
LEAST_RUNS = 4
"""Of fewer it cannot be seen how much their variances differ."""
MANY_SEEDS = 8
"""From here on the seeds of two runs say enough of their difference, which is smaller where the runs vary together."""
LEAST_SHARE = 1e-5
"""Of the mean variance: what a variance of 0 counts as, which has no logarithm."""


@dataclass(frozen=True)
class Spread:
    """Variances over seeds of R runs, (R,), and their degrees of freedom."""

    variance: Floats
    df: Floats


def seed_spread(by_run: Sequence[ArrayLike]) -> Spread | None:
    """The variance over seeds of each run, from its scores (k,).

    None for few runs, a run with one seed, or many seeds: then each pair has its own, from its paired differences.
    """
    from scipy.special import digamma, polygamma

    scores = [np.asarray(values, dtype=np.float64) for values in by_run]
    seeds = [len(values) for values in scores]
    if len(scores) < LEAST_RUNS or min(seeds) < 2 or min(seeds) >= MANY_SEEDS:
        return None
    own = np.array([values.var(ddof=1) for values in scores])
    df = np.array([len(values) - 1.0 for values in scores])
    if not own.any():
        return Spread(own, df)
    logs = np.log(np.maximum(own, LEAST_SHARE * own.mean())) - digamma(df / 2) + np.log(df / 2)
    prior_df = 2 * _inverse_trigamma(float(logs.var(ddof=1) - polygamma(1, df / 2).mean()))
    common = math.exp(float(logs.mean() + digamma(prior_df / 2)) - math.log(prior_df / 2))
    moderated = (prior_df * common + df * own) / (prior_df + df)
    return Spread(np.maximum(moderated, own), np.minimum(prior_df + df, df.sum()))


def _inverse_trigamma(value: float) -> float:
    """The x with trigamma(x) = value, by Newton's method, but at most half of `LARGE`."""
    from scipy.special import polygamma

    if value <= 2 / LARGE:
        return LARGE / 2
    x = 0.5 + 1 / value
    for _ in range(50):
        slope = float(polygamma(1, x))
        x += slope * (1 - slope / value) / float(polygamma(2, x))
    return min(x, LARGE / 2)
