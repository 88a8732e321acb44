"""Power: formulas by hand and against simulated studies, and which validation parts can choose."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtri

from fdamed.evaluation.comparison.paired_tests import Scored, auc_of, difference
from fdamed.evaluation.comparison.power import (
    CHOICE,
    Errors,
    auc_error,
    can_choose,
    correlation,
    expected,
    observed,
    part_can_choose,
)


def test_the_error_of_an_auc_is_that_of_hanley_and_mcneil() -> None:
    # Q1 = 0.8 / 1.2, Q2 = 1.28 / 1.8: (0.16 + 49 * 0.02667 + 49 * 0.07111) / 2500 = 0.001981
    assert auc_error(50, 50, 0.8) == pytest.approx(math.sqrt(0.00198044), rel=1e-4)
    assert auc_error(0, 50) == math.inf


def test_without_a_variance_over_seeds_it_is_the_textbooks_formula() -> None:
    assert Errors(0.02, 0.0, 100, 1).smallest_difference() == pytest.approx(0.02 * (1.959964 + 0.841621), rel=1e-5)
    corrected = Errors(0.02, 0.0, 100, 1).smallest_difference(pairs=10)
    assert corrected == pytest.approx(0.02 * (ndtri(1 - 0.0025) + 0.841621), rel=1e-5)
    assert Errors(math.inf, 0.0, 0, 1).smallest_difference() == math.inf


def test_few_seeds_cost_more_than_their_variance() -> None:
    assert Errors(0.01, 0.01, 100, 3).smallest_difference() > Errors(math.sqrt(2e-4), 0.0, 100, 3).smallest_difference()
    assert Errors(0.01, 0.01, 100, 30).smallest_difference() < Errors(0.01, 0.01, 100, 3).smallest_difference()


def two_runs(rng: np.random.Generator, m: int, apart: float, shared: float) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores (2, 2 m) of two runs with binormal AUCs `apart`, whose scores correlate."""
    y = np.repeat([1, 0], m)
    common, own = rng.standard_normal(2 * m), rng.standard_normal((2, 2 * m))
    noise = math.sqrt(shared) * common + math.sqrt(1 - shared) * own
    lifts = math.sqrt(2) * ndtri([0.8 + apart / 2, 0.8 - apart / 2])
    return y, noise + y * lifts[:, None]


def found(apart: float, m: int, shared: float, studies: int) -> tuple[float, float]:
    """The share of simulated studies in which the paired test finds the difference, and the mean correlation."""
    rng, hits, seen = np.random.default_rng(5), 0, []
    for _ in range(studies):
        y, p = two_runs(rng, m, apart, shared)
        scored = auc_of(y, p, np.arange(2 * m))
        assert scored is not None
        hits += difference(scored, [0], [1]).p < 0.05
        c = scored.covariance
        seen.append(c[0, 1] / math.sqrt(c[0, 0] * c[1, 1]))
    return hits / studies, float(np.mean(seen))


def test_four_of_five_simulated_studies_find_the_smallest_difference() -> None:
    _, seen = found(0.0, 80, 0.6, 100)
    smallest = expected(80, 80, correlation=seen).smallest_difference()
    share, _ = found(smallest, 80, 0.6, 600)
    assert share == pytest.approx(0.8, abs=0.06)
    assert found(smallest / 2, 80, 0.6, 300)[0] < 0.45


def test_with_seeds_four_of_five_simulated_studies_find_it_too() -> None:
    rng, k, patients, by_seed = np.random.default_rng(7), 4, 0.02, 0.04
    smallest = Errors(patients, by_seed / math.sqrt(k), 100, k).smallest_difference()
    covariance = np.zeros((2 * k, 2 * k))
    covariance[:k, :k] = patients**2  # the patients' error is the same with every seed
    hits = 0
    for _ in range(1500):
        value = np.zeros(2 * k)
        value[:k] = smallest + patients * rng.standard_normal() + by_seed * rng.standard_normal(k)
        hits += difference(Scored(value, covariance), list(range(k)), list(range(k, 2 * k))).p < 0.05
    assert hits / 1500 == pytest.approx(0.8, abs=0.05)


def test_what_is_needed_shows_the_difference_and_ten_percent_less_does_not() -> None:
    errors = Errors(0.03, 0.002, 200, 3)
    patients, seeds, both = errors.needed(0.05)
    assert patients is not None and both is not None and seeds is None, "no seeds make up for few patients"
    assert Errors(0.03 * math.sqrt(200 / patients), 0.002, patients, 3).smallest_difference() <= 0.05
    assert Errors(0.03 * math.sqrt(200 / (patients / 1.11)), 0.002, patients, 3).smallest_difference() > 0.05
    assert errors.needed(0.0) == (None, None, None)
    assert Errors(0.03, 0.0, 200, 1).needed(0.05).seeds is None, "one seed says nothing about others"
    assert errors.needed(0.5) == (200, 3, (200, 3))


def test_the_observed_correlation_follows_from_three_errors() -> None:
    assert correlation(0.03, 0.03, 0.03) == pytest.approx(0.5)
    assert correlation(0.03, 0.03, 0.0) == pytest.approx(1.0)
    assert correlation(0.0, 0.03, 0.03) is None
    one_seed = {"patients": 0.02, "seeds_error": None, "seeds_df": None, "seeds": 1}
    assert observed(one_seed, 90) == Errors(0.02, 0.0, 90, 1)


@pytest.mark.parametrize(
    ("images", "patients", "positives", "can"),
    [
        (7, 7, 3, False),
        (38, 38, 19, False),
        (40, 40, 20, True),
        (80, 38, 40, False),  # two images of each patient
        (200, 200, 5, False),
        (40, 40, 0, False),
        (0, 0, 0, False),
        (20, 20, None, False),
        (40, 40, None, True),
    ],
)
def test_a_validation_part_chooses_only_with_twenty_patients_of_each_class(
    images: int, patients: int, positives: int | None, can: bool
) -> None:
    assert can_choose(images, patients, positives) is can
    assert expected(20, 20).smallest_difference() <= CHOICE < expected(19, 19).smallest_difference()


def test_counts_that_are_hidden_or_missing_choose_nothing() -> None:
    whole = {"images": {"val": 90}, "patients": {"val": 90}, "positives": {"val": 45}}
    assert part_can_choose(whole) and part_can_choose(whole | {"positives": None})
    assert not part_can_choose({})
    assert not part_can_choose(whole | {"patients": {"val": "<11"}})
