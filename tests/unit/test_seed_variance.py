"""The variance over seeds: numbers on paper, and how often the corrected test errs in simulated studies."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.special import polygamma

from fdamed.evaluation.comparison.paired_tests import Scored
from fdamed.evaluation.comparison.run_pairs import pairs
from fdamed.evaluation.comparison.seed_variance import LEAST_RUNS, MANY_SEEDS, seed_spread

SEEDS = 3


def test_runs_that_vary_alike_share_their_variance() -> None:
    """E log(chi2_2 / 2) is -gamma: the logarithm of a variance of three seeds is too small by Euler's constant."""
    spread = seed_spread([[0.80, 0.82, 0.84], [0.70, 0.72, 0.74], [0.50, 0.52, 0.54], [0.90, 0.92, 0.94]])
    assert spread is not None
    assert spread.variance == pytest.approx([0.0004 * np.exp(np.euler_gamma)] * 4, rel=1e-4)
    assert spread.df.tolist() == [8.0] * 4, "no more than the runs have together, as limma's eBayes has it"


def test_runs_that_differ_a_lot_keep_most_of_their_own() -> None:
    scores = np.outer([1e-3, 1e-2, 3e-2, 1e-1], [-1.0, 0.0, 1.0])
    spread = seed_spread(list(scores))
    assert spread is not None
    excess = np.log(np.array([1e-6, 1e-4, 9e-4, 1e-2])).var(ddof=1) - polygamma(1, 1)
    assert polygamma(1, (spread.df[0] - 2) / 2) == pytest.approx(excess), "the prior's degrees of freedom"
    assert spread.variance[3] == pytest.approx(1e-2), "never below the observed one"
    assert 1e-6 < spread.variance[0] < spread.variance[1] < spread.variance[2]


def test_few_runs_or_one_seed_know_nothing_of_each_other() -> None:
    assert seed_spread([[0.8, 0.9]] * (LEAST_RUNS - 1)) is None
    assert seed_spread([[0.8, 0.9]] * LEAST_RUNS + [[0.7]]) is None
    same = seed_spread([[0.8, 0.8]] * LEAST_RUNS)
    assert same is not None and not same.variance.any()


def false_alarms(deviations: list[float], patients: float, studies: int, seeds: int = SEEDS) -> float:
    """The share of simulated studies without any difference in which a corrected pair is significant."""
    rng, count = np.random.default_rng(11), len(deviations)
    runs = {str(r): {s: r * seeds + s for s in range(seeds)} for r in range(count)}
    owner = np.repeat(np.arange(count), seeds)
    covariance = patients**2 * np.equal.outer(owner, owner).astype(float)
    frame, none = pd.DataFrame({"y": [0, 1], "patient": ["a", "b"]}), np.zeros((count * seeds, 2))
    alarms = 0
    for _ in range(studies):
        values = patients * rng.standard_normal(count)[owner]
        values += np.repeat(deviations, seeds) * rng.standard_normal(count * seeds)
        found = pairs({"auc": Scored(values, covariance)}, runs, "0", frame, none)
        alarms += min(pair["p_holm"] for pair in found) < 0.05
    return alarms / studies


@pytest.mark.parametrize(
    "deviations",
    [[0.02] * 6, [0.01] * 5 + [0.1], [0.005, 0.01, 0.01, 0.02, 0.03, 0.06], [0.05, 0.05, 0.05]],
    ids=["alike", "one varies ten times as much", "all differ", "three runs"],
)
def test_at_most_one_study_in_twenty_reports_a_difference_that_is_not_there(deviations: list[float]) -> None:
    assert false_alarms(deviations, 0.01, 250) <= 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / 250)


def test_with_many_seeds_every_pair_has_the_variance_of_its_own_differences() -> None:
    assert false_alarms([0.005, 0.01, 0.01, 0.02, 0.03, 0.06], 0.01, 250, MANY_SEEDS) <= 0.05 + 0.035
    together = 0.05 * np.random.default_rng(1).standard_normal(10)  # what all runs owe to their seed
    values = np.concatenate([together + shift for shift in (0.0, 0.0, 0.01, 0.01)])
    values += 0.001 * np.random.default_rng(2).standard_normal(40)
    runs = {str(r): {s: r * 10 + s for s in range(10)} for r in range(4)}
    frame, none = pd.DataFrame({"y": [0, 1], "patient": ["a", "b"]}), np.zeros((40, 2))
    found = pairs({"auc": Scored(values, 1e-6 * np.eye(40))}, runs, "0", frame, none)
    p = {(pair["first"], pair["second"]): pair["p_holm"] for pair in found}
    assert p["0", "2"] < 1e-3 and p["1", "3"] < 1e-3 and p["0", "1"] > 0.05
