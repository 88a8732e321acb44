"""Two methods on the same patients: how far apart they are, and how sure that is.

Images of one patient are not independent, so variances are of sums over patients: DeLong's for the AUC in Obuchowski's
form for clusters (Biometrics 1997; with one image a patient it is DeLong, DeLong and Clarke-Pearson 1988), and the
ratio estimator's for accuracy (with one image a patient and no correction for the mean it is McNemar's).
Groups of patients share patients (views do), so what each patient adds to a score is kept where groups are compared:
`Influence`. Runs are repeated with several seeds. The spread of a difference over seeds comes from training, the rest
from patients: the two variances are added, and degrees of freedom are Satterthwaite's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fdamed.evaluation.intervals import LEVEL
from fdamed.evaluation.metrics import THRESHOLD

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
LARGE = 1e12
"""Degrees of freedom that are as good as infinitely many."""


@dataclass(frozen=True)
class Scored:
    """A score of R models on the same patients, `value` (R,), and the covariance of its errors, (R, R)."""

    value: Floats
    covariance: Floats


@dataclass(frozen=True)
class Estimate:
    """A score, or the difference of two, as a mean over seeds, with what is known about its error."""

    value: float
    patients: float
    """Standard error from the choice of patients, the trained models given."""
    seeds: float | None
    """Standard error from the choice of seeds; None with one seed, where it cannot be known."""
    low: float
    high: float
    p: float
    """Of the value being zero."""
    df: float

    @property
    def error(self) -> float:
        """Standard error from both."""
        return math.hypot(self.patients, self.seeds or 0.0)


def auc_of(y: ArrayLike, chances: ArrayLike, patient: ArrayLike) -> Scored | None:
    """AUCs of `chances` (R, n) for labels `y` (n,); None where a class has fewer than two patients."""
    labels, p, owner = _checked(y, chances, patient)
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


def _added(p: Floats, positive: Ints, negative: Ints, owner: Ints, clusters: int) -> tuple[Floats, Floats, Floats]:
    """Areas (R,), and what each patient's positives and negatives add beyond as many average ones, (R, clusters)."""
    of_positive, of_negative = _placements(p[:, positive], p[:, negative])
    area = of_positive.mean(axis=1)
    a = _by_owner(of_positive - area[:, None], owner[positive], clusters)
    b = _by_owner(of_negative - area[:, None], owner[negative], clusters)
    return area, a, b


def accuracy_of(y: ArrayLike, chances: ArrayLike, patient: ArrayLike) -> Scored | None:
    """Accuracies of `chances` (R, n) at the threshold of one half; None with fewer than two patients."""
    labels, p, owner = _checked(y, chances, patient)
    return share_of((p >= THRESHOLD) == (labels == 1), owner)


def share_of(hits: ArrayLike, owner: Ints) -> Scored | None:
    """Shares of true entries in `hits` (R, n), entries of one owner in 0, 1, ... counting as one draw."""
    hit = np.asarray(hits, dtype=np.float64)
    clusters = int(owner.max(initial=-1)) + 1
    if clusters < 2:
        return None
    share = hit.mean(axis=1)
    excess = _by_owner(hit - share[:, None], owner, clusters)
    return Scored(share, clusters / (clusters - 1) * (excess @ excess.T) / hit.shape[1] ** 2)


@dataclass(frozen=True)
class Influence:
    """A score of R models, `value` (R,), and how far each of K patients moves it, `of` (R, K); 0: not among them."""

    value: Floats
    of: Floats

    def rows(self, chosen: Sequence[int]) -> Influence:
        return Influence(self.value[list(chosen)], self.of[list(chosen)])


def auc_influence(y: ArrayLike, chances: ArrayLike, owner: Ints, patients: int) -> Influence | None:
    """AUCs and the patients' influences; `owner` counts among all `patients`. None where a class has fewer than two."""
    labels, p = np.asarray(y, dtype=np.float64), np.atleast_2d(np.asarray(chances, dtype=np.float64))
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


def contrast(terms: Sequence[tuple[float, Influence]], level: float = LEVEL) -> Estimate:
    """The sum of sign times score; every term has a row a seed, of the same seeds, and the same K patients."""
    by_seed = np.sum([sign * term.value for sign, term in terms], axis=0)
    moved = np.sum([sign * term.of for sign, term in terms], axis=0).mean(axis=0)
    among = int(np.any([term.of.any(axis=0) for _, term in terms], axis=0).sum())
    return _told(by_seed, among / max(1, among - 1) * float(moved @ moved), level)


def difference(scored: Scored, first: Sequence[int], second: Sequence[int], level: float = LEVEL) -> Estimate:
    """First minus second; rows of the same place in both are of the same seed."""
    if len(first) != len(second) or not first:
        raise ValueError("a paired difference needs the same seeds, at least one, on both sides")
    weights = np.zeros(len(scored.value))
    np.add.at(weights, list(first), 1 / len(first))
    np.add.at(weights, list(second), -1 / len(first))
    return _estimate(scored, weights, scored.value[list(first)] - scored.value[list(second)], level)


def mean_of(scored: Scored, rows: Sequence[int], level: float = LEVEL) -> Estimate:
    """The mean over the rows of one method, a row a seed."""
    weights = np.zeros(len(scored.value))
    weights[list(rows)] = 1 / len(rows)
    return _estimate(scored, weights, scored.value[list(rows)], level)


def _estimate(scored: Scored, weights: Floats, by_seed: Floats, level: float) -> Estimate:
    return _told(by_seed, max(0.0, float(weights @ scored.covariance @ weights)), level)


def _told(by_seed: Floats, by_patients: float, level: float) -> Estimate:
    """From the values of k seeds and the variance of their mean over patients."""
    from scipy.special import stdtr, stdtrit

    k = len(by_seed)
    by_seeds = float(by_seed.var(ddof=1)) / k if k > 1 else 0.0
    total = by_patients + by_seeds
    df = math.inf if by_seeds == 0 else total**2 / by_seeds**2 * (k - 1)
    value, error = float(by_seed.mean()), math.sqrt(total)
    half = float(stdtrit(min(df, LARGE), 0.5 + level / 2)) * error
    p = float(2 * stdtr(min(df, LARGE), -abs(value) / error)) if error > 0 else float(value == 0)
    spread = math.sqrt(by_seeds) if k > 1 else None
    return Estimate(value, math.sqrt(by_patients), spread, value - half, value + half, p, df)


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided mid-p of McNemar's exact test: images that only one of two methods gets right."""
    from scipy.stats import binom

    n, fewer = only_first + only_second, min(only_first, only_second)
    if n == 0:
        return 1.0
    return float(min(1.0, 2 * binom.cdf(fewer, n, 0.5) - binom.pmf(fewer, n, 0.5)))


def cohens_h(first: float, second: float) -> float:
    """Cohen's h of two shares: 0.2 is called small, 0.5 medium, 0.8 large, wherever between 0 and 1 they lie."""
    return 2 * math.asin(math.sqrt(first)) - 2 * math.asin(math.sqrt(second))


def separation(first: float, second: float) -> float | None:
    """How much further apart the first AUC's classes lie, in standard deviations (d' of two normal classes)."""
    from scipy.special import ndtri

    inside = all(0 < area < 1 for area in (first, second))
    return math.sqrt(2) * float(ndtri(first) - ndtri(second)) if inside else None


def cliffs_delta(first: ArrayLike, second: ArrayLike) -> float:
    """Share of pairs in which a value of the first is above one of the second, less the share where it is below."""
    return float(np.sign(np.subtract.outer(np.asarray(first), np.asarray(second))).mean())


def holm(p: Sequence[float]) -> list[float]:
    """p-values as they are after so many tests (Holm 1979): below 5 % for all of them errs once in 5 %, together."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    out, largest = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
        out[i] = largest
    return out


def _checked(y: ArrayLike, chances: ArrayLike, patient: ArrayLike) -> tuple[Floats, Floats, Ints]:
    labels, p = np.asarray(y, dtype=np.float64), np.atleast_2d(np.asarray(chances, dtype=np.float64))
    _, owner = np.unique(np.asarray(patient), return_inverse=True)
    if labels.ndim != 1 or p.shape[1:] != labels.shape or owner.shape != labels.shape:
        raise ValueError(f"labels {labels.shape}, scores {p.shape}, patients {owner.shape}: need (n,), (R, n), (n,)")
    if not np.isin(labels, (0.0, 1.0)).all() or not np.isfinite(p).all():
        raise ValueError("labels must be 0 or 1, and scores finite")
    return labels, p, owner


def _placements(positive: Floats, negative: Floats) -> tuple[Floats, Floats]:
    """Share of the negatives that each positive beats, and of the positives that beat each negative; ties a half."""
    of_positive, of_negative = np.empty_like(positive), np.empty_like(negative)
    for r, (x, y) in enumerate(zip(positive, negative, strict=True)):
        below = np.sort(y)
        beaten = np.searchsorted(below, x, side="left") + np.searchsorted(below, x, side="right")
        of_positive[r] = beaten / (2 * len(y))
        above = np.sort(x)
        not_above = np.searchsorted(above, y, side="left") + np.searchsorted(above, y, side="right")
        of_negative[r] = 1 - not_above / (2 * len(x))
    return of_positive, of_negative


def _by_owner(values: Floats, owner: Ints, clusters: int) -> Floats:
    """(R, n) -> (R, clusters): sums over the entries of each owner."""
    return np.stack([np.bincount(owner, weights=row, minlength=clusters) for row in values])
