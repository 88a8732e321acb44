"""Paired comparison of models on the same patients: differences, their standard errors, tests and effect sizes.

Images of one patient are not independent, so variances are of sums over patients: DeLong's for the AUC in Obuchowski's
form for clusters (Biometrics 1997; with one image per patient it is DeLong, DeLong and Clarke-Pearson 1988), and the
ratio estimator's for accuracy (with one image per patient and no correction for the mean it is McNemar's).
Subgroups can share patients (views do), so `Influence` keeps what each patient adds to a score where subgroups are
compared. The variance over seeds is estimated from few of them: an interval combines it with that over patients as
Banerjee does (Sankhya 1960), which never promises too much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fdamed.evaluation.intervals import LEVEL

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@dataclass(frozen=True)
class Influence:
    """A score of R models, `value` (R,), and how far each of K patients moves it, `of` (R, K); 0: not among them."""

    value: Floats
    of: Floats

    def rows(self, chosen: Sequence[int]) -> Influence:
        return Influence(self.value[list(chosen)], self.of[list(chosen)])


@dataclass(frozen=True)
class Estimate:
    """A score, or the difference of two, as a mean over seeds, with its error."""

    value: float
    low: float
    high: float
    p: float
    """Of the value being zero."""
    patients: float
    """Standard error from the choice of patients, given the trained models."""
    seeds_error: float | None
    """Standard error from the choice of seeds; None with one seed."""
    seeds_df: float | None
    """Degrees of freedom of the latter."""


@dataclass(frozen=True)
class Scored:
    """A score of R models on the same patients, `value` (R,), and the covariance of its errors, (R, R)."""

    value: Floats
    covariance: Floats


def auc_of(y: ArrayLike, probabilities: ArrayLike, patient: ArrayLike) -> Scored | None:
    """AUCs of `probabilities` (R, n) for labels `y` (n,); None where a class has fewer than two patients."""
    labels, p, owner = _checked(y, probabilities, patient)
    positive, negative = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    m, n, clusters = len(positive), len(negative), int(owner.max(initial=-1)) + 1
    with_positive, with_negative = len(np.unique(owner[positive])), len(np.unique(owner[negative]))
    if with_positive < 2 or with_negative < 2:
        return None
    area, a, b = _added(p, positive, negative, owner, clusters)
    s10 = with_positive / ((with_positive - 1) * m) * (a @ a.T)
    s01 = with_negative / ((with_negative - 1) * n) * (b @ b.T)
    s11 = clusters / (clusters - 1) * (a @ b.T)
    return Scored(area, s10 / m + s01 / n + (s11 + s11.T) / (m * n))


def share_of(hits: ArrayLike, owner: Ints) -> Scored | None:
    """Shares of true entries in `hits` (R, n); all entries of one owner 0, 1, ... are one draw."""
    clusters = int(owner.max(initial=-1)) + 1
    found = mean_influence(hits, owner, clusters)
    if found is None:
        return None
    return Scored(found.value, clusters / (clusters - 1) * (found.of @ found.of.T))


def auc_influence(y: ArrayLike, probabilities: ArrayLike, owner: Ints, patients: int) -> Influence | None:
    """AUCs and the patients' influences; `owner` counts among all `patients`. None where a class has fewer than two."""
    labels, p = np.asarray(y, dtype=np.float64), np.atleast_2d(np.asarray(probabilities, dtype=np.float64))
    positive, negative = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    if min(len(np.unique(owner[positive])), len(np.unique(owner[negative]))) < 2:
        return None
    area, a, b = _added(p, positive, negative, owner, patients)
    return Influence(area, a / len(positive) + b / len(negative))


def mean_influence(values: ArrayLike, owner: Ints, patients: int) -> Influence | None:
    """Means of `values` (R, n) with the patients' influences; None with fewer than two patients."""
    given = np.atleast_2d(np.asarray(values, dtype=np.float64))
    if len(np.unique(owner)) < 2:
        return None
    mean = given.mean(axis=1)
    return Influence(mean, _by_owner(given - mean[:, None], owner, patients) / given.shape[1])


def _added(p: Floats, positive: Ints, negative: Ints, owner: Ints, clusters: int) -> tuple[Floats, Floats, Floats]:
    """AUCs (R,), and what each patient's positives and negatives add beyond as many average ones, (R, clusters)."""
    of_positive = np.stack([_share_below(row[negative], row[positive]) for row in p])
    of_negative = np.stack([1 - _share_below(row[positive], row[negative]) for row in p])
    area = of_positive.mean(axis=1)
    a = _by_owner(of_positive - area[:, None], owner[positive], clusters)
    b = _by_owner(of_negative - area[:, None], owner[negative], clusters)
    return area, a, b


def _share_below(values: Floats, each: Floats) -> Floats:
    """The share of `values` below each entry of `each`; ties count a half."""
    ordered = np.sort(values)
    twice = np.searchsorted(ordered, each, side="left") + np.searchsorted(ordered, each, side="right")
    return np.asarray(twice / (2 * len(values)))


def _by_owner(values: Floats, owner: Ints, clusters: int) -> Floats:
    """(R, n) -> (R, clusters): sums over the entries of each owner."""
    return np.stack([np.bincount(owner, weights=row, minlength=clusters) for row in values])


def _checked(y: ArrayLike, probabilities: ArrayLike, patient: ArrayLike) -> tuple[Floats, Floats, Ints]:
    labels, p = np.asarray(y, dtype=np.float64), np.atleast_2d(np.asarray(probabilities, dtype=np.float64))
    _, owner = np.unique(np.asarray(patient), return_inverse=True)
    if labels.ndim != 1 or p.shape[1:] != labels.shape or owner.shape != labels.shape:
        raise ValueError(f"labels {labels.shape}, scores {p.shape}, patients {owner.shape}: need (n,), (R, n), (n,)")
    if not np.isin(labels, (0.0, 1.0)).all() or not np.isfinite(p).all():
        raise ValueError("labels must be 0 or 1, and scores finite")
    return labels, p, owner


def contrast(terms: Sequence[tuple[float, Influence]]) -> Estimate:
    """The sum of sign times score; all terms have one row per seed, the same seeds, and the same K patients."""
    by_seed = np.sum([sign * term.value for sign, term in terms], axis=0)
    moved = np.sum([sign * term.of for sign, term in terms], axis=0).mean(axis=0)
    among = int(np.any([term.of.any(axis=0) for _, term in terms], axis=0).sum())
    return _estimate(by_seed, among / max(1, among - 1) * float(moved @ moved))


def difference(
    scored: Scored, first: Sequence[int], second: Sequence[int], over_seeds: tuple[float, float] | None = None
) -> Estimate:
    """First minus second; rows at the same place in both have the same seed.

    `over_seeds`: the variance of the mean difference over seeds and its degrees of freedom, if more is known of it than
    these rows say.
    """
    if len(first) != len(second) or not first:
        raise ValueError("a paired difference needs the same seeds, at least one, on both sides")
    places = np.eye(len(scored.value))
    return _combined(scored, places[list(first)] - places[list(second)], over_seeds)


def mean_of(scored: Scored, rows: Sequence[int]) -> Estimate:
    """The mean over the rows of one method, one row per seed."""
    return _combined(scored, np.eye(len(scored.value))[list(rows)])


def _combined(scored: Scored, by_seed: Floats, over_seeds: tuple[float, float] | None = None) -> Estimate:
    """The mean over seeds of sums of scores; `by_seed` (k, R): the factor of each score."""
    weights = by_seed.mean(axis=0)
    return _estimate(by_seed @ scored.value, float(weights @ scored.covariance @ weights), over_seeds)


def _estimate(by_seed: Floats, variance: float, over_seeds: tuple[float, float] | None = None) -> Estimate:
    """From the values of k seeds and the variance of their mean over patients."""
    k, by_patients = len(by_seed), max(0.0, variance)
    if k == 1:
        by_seeds, df = 0.0, 1.0
    else:
        by_seeds, df = over_seeds or (float(by_seed.var(ddof=1)) / k, k - 1.0)
    value, half = float(by_seed.mean()), math.sqrt(_squared_half(1 - LEVEL, by_patients, by_seeds, df))
    p = _p_value(value**2, by_patients, by_seeds, df)
    known = (math.sqrt(by_seeds), df) if k > 1 else (None, None)
    return Estimate(value, value - half, value + half, p, math.sqrt(by_patients), *known)


def _squared_half(p: float, by_patients: float, by_seeds: float, df: float) -> float:
    """Half the width, squared, of the interval that misses with probability `p` at most: z^2 V + t^2 V'."""
    from scipy.special import ndtri, stdtrit

    return float(ndtri(p / 2)) ** 2 * by_patients + float(stdtrit(df, p / 2)) ** 2 * by_seeds


def _p_value(squared: float, by_patients: float, by_seeds: float, df: float) -> float:
    """The p whose interval around a value, given as its square, ends at 0."""
    from scipy.special import ndtr, stdtr

    if by_patients + by_seeds == 0 or squared == 0:
        return float(squared == 0)
    if by_seeds == 0:
        return float(2 * ndtr(-math.sqrt(squared / by_patients)))
    if by_patients == 0:
        return float(2 * stdtr(df, -math.sqrt(squared / by_seeds)))
    low, high = -690.0, 0.0  # log p: the width falls as p rises
    while high - low > 1e-12:
        middle = (low + high) / 2
        wider = _squared_half(math.exp(middle), by_patients, by_seeds, df) > squared
        low, high = (middle, high) if wider else (low, middle)
    return math.exp((low + high) / 2)


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided mid-p of McNemar's exact test, from the images that only one of two methods gets right."""
    from scipy.stats import binom

    n, fewer = only_first + only_second, min(only_first, only_second)
    return float(min(1.0, 2 * binom.cdf(fewer, n, 0.5) - binom.pmf(fewer, n, 0.5)))


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for multiple tests (Holm 1979)."""
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    out = np.empty(len(values))
    out[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(len(values), 0, -1) * values[order]))
    return [float(v) for v in out]
