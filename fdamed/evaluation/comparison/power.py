"""Power: the smallest difference that a paired comparison can show, and how many patients or seeds show a given one.

The test is that of `paired_tests`: a variance over patients, and one over seeds with its degrees of freedom. Before
training, the variance over patients is Hanley and McNeil's (1982) for the AUC, with an assumed correlation of two runs
on the same patients; after it, both variances are those observed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fdamed.evaluation.comparison.seed_variance import LARGE
from fdamed.evaluation.intervals import SURE

POWER = 0.8
"""Probability that a difference is found significant."""
AUC, CORRELATION, SEEDS = 0.8, 0.5, 0.01
"""Assumed before training: the AUC, the correlation of two runs, the standard deviation of their difference by seed."""
CHOICE = 0.2
"""A validation part that cannot show a difference of this size cannot choose a round or a model."""
MOST, MOST_SEEDS = 1_000_000, 1000
"""Patients and seeds that could be asked for."""


@dataclass(frozen=True)
class Errors:
    """Standard errors of a difference: from the choice of `n` patients, and from that of `k` seeds."""

    patients: float
    seeds: float
    n: int
    k: int
    df: float = 0.0
    """Degrees of freedom of the latter; 0: of `k` seeds."""

    def smallest_difference(self, pairs: int = 1) -> float:
        """The difference that is found in 80% of studies, at 5% divided by the number of compared pairs."""
        from scipy.special import nctdtrinc, ndtri, stdtrit

        if not math.isfinite(self.patients):
            return math.inf
        level, df = 1 - SURE / pairs / 2, self.df or max(1, self.k - 1)
        known = float(ndtri(level) + ndtri(POWER))
        learned = known if df > 1e4 else float(nctdtrinc(df, 1 - POWER, stdtrit(df, level)))
        return math.hypot(known * self.patients, learned * self.seeds)

    def needed(self, difference: float, pairs: int = 1) -> Needed:
        """What would show the difference, in steps of 10%: more precision would be pretended."""
        times = [1.1**i for i in range(int(math.log(MOST) / math.log(1.1)))]

        def first(patients: bool, seeds: bool) -> Errors | None:
            for factor in times if difference else ():
                # With one seed the variance over seeds is unknown: nothing follows for more of them.
                n, k = round(self.n * factor) if patients else self.n, math.ceil(self.k * factor) if seeds else self.k
                if n > MOST or k > MOST_SEEDS or (seeds and self.k == 1):
                    return None
                df = self.df + (k - self.k if self.df else 0)
                more = Errors(self.patients * math.sqrt(self.n / n), self.seeds * math.sqrt(self.k / k), n, k, df)
                if more.smallest_difference(pairs) <= abs(difference):
                    return more
            return None

        by_patients, by_seeds, both = first(True, False), first(False, True), first(True, True)
        return Needed(
            by_patients.n if by_patients else None,
            by_seeds.k if by_seeds else None,
            (both.n, both.k) if both else None,
        )


class Needed(NamedTuple):
    """What would show a difference: patients with the same seeds, seeds with the same patients, or more of both."""

    patients: int | None
    seeds: int | None
    both: tuple[int, int] | None


def auc_error(positives: float, negatives: float, auc: float = AUC) -> float:
    """Standard error of an AUC over so many patients of each class (Hanley and McNeil 1982)."""
    if min(positives, negatives) < 1:
        return math.inf
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = auc * (1 - auc) + (positives - 1) * (q1 - auc**2) + (negatives - 1) * (q2 - auc**2)
    return math.sqrt(spread / (positives * negatives))


def expected(positives: float, negatives: float, seeds: int = 1, correlation: float = CORRELATION) -> Errors:
    """The errors of a difference of two AUCs, before any run is trained; all runs vary alike over seeds."""
    patients = math.sqrt(2 * (1 - correlation)) * auc_error(positives, negatives)
    by_seeds = SEEDS / math.sqrt(seeds) if seeds > 1 else 0.0
    return Errors(patients, by_seeds, round(positives + negatives), seeds, LARGE)


def observed(pair: Mapping[str, Any], patients: int) -> Errors:
    """The errors of a compared pair of runs, as an audit has them."""
    by_seeds, df = float(pair["seeds_error"] or 0.0), float(pair["seeds_df"] or 0.0)
    return Errors(float(pair["patients"]), by_seeds, patients, int(pair["seeds"]), df)


def correlation(first: float, second: float, difference: float) -> float | None:
    """The correlation of two scores, from the standard errors of both and of their difference."""
    both = 2 * first * second
    return (first**2 + second**2 - difference**2) / both if both else None


def can_choose(images: int, patients: int, positives: int | None) -> bool:
    """Whether a validation part can choose a round or a model.

    It can if it could show a difference of `CHOICE`. With several classes (`positives` is None), of the accuracy.
    """
    if not images or not patients:
        return False
    if positives is None:
        share = math.sqrt(2 * (1 - CORRELATION) * AUC * (1 - AUC) / patients)
        return Errors(share, 0.0, patients, 1).smallest_difference() <= CHOICE
    ill = positives * patients / images  # several images of a patient are not independent
    return expected(ill, patients - ill).smallest_difference() <= CHOICE


def part_can_choose(client: Mapping[str, Any], part: str = "val") -> bool:
    """The same for a part of a client in the cohort's file; a count that is not known or hidden is none."""
    images, patients = (_known((client.get(key) or {}).get(part)) for key in ("images", "patients"))
    positives = client.get("positives")
    return can_choose(images, patients, None if positives is None else _known(positives.get(part)))


def _known(count: object) -> int:
    return count if isinstance(count, int) else 0
