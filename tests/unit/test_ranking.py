"""Mean ranks and critical differences against the worked example of Demsar (2006), and calibration by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fdamed.evaluation.calibration import Bin, by_chance, calibration_error, joined, reliability
from fdamed.evaluation.comparison.run_pairs import ranking

# Demsar, JMLR 7 (2006), Table 6: AUC of C4.5 with four settings on 14 data sets. Its ranks of `voting` are 4, 1, 2, 3:
# the two values printed as 0.975 are not equal, so one has a digit more here.
AUC = """
0.763 0.768 0.771 0.798  0.599 0.591 0.590 0.569  0.954 0.971 0.968 0.967  0.628 0.661 0.654 0.657
0.882 0.888 0.886 0.898  0.936 0.931 0.916 0.931  0.661 0.668 0.609 0.685  0.583 0.583 0.563 0.625
0.775 0.838 0.866 0.875  1.000 1.000 1.000 1.000  0.940 0.962 0.965 0.962  0.619 0.666 0.614 0.669
0.972 0.981 0.9751 0.975  0.957 0.978 0.946 0.970
"""
NAMES = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")


def test_mean_ranks_the_test_and_the_critical_difference_are_the_printed_ones() -> None:
    found = ranking(NAMES, np.array(AUC.split(), dtype=float).reshape(14, 4))
    assert found is not None
    by_name = dict(zip(found.names, found.ranks, strict=True))
    assert [by_name[n] for n in NAMES] == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=5e-4)
    assert found.apart == pytest.approx(2.569 * np.sqrt(4 * 5 / (6 * 14)), abs=1e-3)
    assert found.p == pytest.approx(stats.f.sf(3.69, 3, 39), abs=2e-4)  # F as printed; 2.85 is critical at 5 %
    assert found.cliques == [(0, 3)]  # at 5 % the best and the worst are 1.179 apart, 1.25 is needed


def test_friedmans_statistic_is_scipys() -> None:
    table = np.random.default_rng(0).normal(size=(9, 5)) + np.arange(5) / 2
    found = ranking([*"abcde"], table)
    chi2 = stats.friedmanchisquare(*table.T).statistic
    assert found is not None
    assert found.p == pytest.approx(stats.f.sf(8 * chi2 / (9 * 4 - chi2), 4, 32), rel=1e-9)
    assert found.apart == pytest.approx(stats.studentized_range.ppf(0.95, 5, np.inf) / np.sqrt(2) * np.sqrt(30 / 54))


def test_methods_that_are_far_apart_are_in_no_clique_together() -> None:
    found = ranking(["a", "b", "c"], [[3, 2, 1]] * 12)
    assert found is not None
    assert (found.names, found.ranks) == (("a", "b", "c"), (1.0, 2.0, 3.0))
    assert found.apart == pytest.approx(2.343 * np.sqrt(3 * 4 / (6 * 12)), abs=1e-3)
    assert found.cliques == [] and found.p == 0.0


def test_one_data_set_or_one_method_ranks_nothing() -> None:
    assert ranking(["a", "b"], [[1, 2]]) is None
    assert ranking(["a"], [[1], [2]]) is None
    with pytest.raises(ValueError, match="finite"):
        ranking(["a", "b"], [[1, np.nan], [1, 2]])


def test_reliability_by_hand() -> None:
    bins = reliability([0, 0, 1, 1], [0.1, 0.3, 0.6, 1.0], bins=2)
    assert [(b.n, b.positives, b.probability) for b in bins] == [(2, 0, pytest.approx(0.2)), (2, 2, pytest.approx(0.8))]
    assert calibration_error(bins) == pytest.approx(0.2)


def test_equal_probabilities_stay_together_and_nothing_is_lost() -> None:
    p = np.array([0.5] * 7 + [0.9] * 3)
    bins = reliability(np.arange(10) % 2, p, bins=5)
    assert [b.n for b in bins] == [7, 3]
    assert reliability([], []) == [] and calibration_error([]) is None


def test_bins_are_joined_until_no_class_in_them_is_small() -> None:
    given = [Bin(20, 0, 0.1), Bin(20, 3, 0.3), Bin(20, 12, 0.6), Bin(20, 18, 0.9)]
    shown = joined(given, 5)
    assert [(b.n, b.positives) for b in shown] == [(20, 0), (60, 33)]
    assert sum(b.n * b.probability for b in shown) == pytest.approx(sum(b.n * b.probability for b in given))
    assert joined([Bin(9, 4, 0.5)], 5) == []


def test_bins_are_joined_until_they_have_enough_images() -> None:
    given = [Bin(12, 0, 0.1), Bin(12, 6, 0.3), Bin(30, 15, 0.6), Bin(5, 5, 0.9)]
    assert [(b.n, b.positives) for b in joined(given, 1, least=20)] == [(24, 6), (35, 20)]
    assert joined(given[:1], 1, least=20) == []


def test_the_band_of_a_bin_is_wilsons_interval() -> None:
    # 10 of 20: middle (10 + 1.9207) / 23.8415 = 0.5, half sqrt(3.8415 * (5 + 0.9604)) / 23.8415 = 0.2007
    assert Bin(20, 10, 0.4).interval == pytest.approx((0.2993, 0.7007), abs=1e-4)
    low, high = Bin(20, 0, 0.4).interval
    assert low == pytest.approx(0.0, abs=1e-12) and high == pytest.approx(0.1611, abs=1e-4)


def test_true_probabilities_have_the_error_of_random_samples() -> None:
    """Of 400 samples of true probabilities, 5 % have a larger error than the limit; it falls with the root of n."""
    rng = np.random.default_rng(0)
    p = rng.beta(2, 2, 300)
    errors = [calibration_error(reliability(rng.random(300) < p, p)) for _ in range(400)]
    limit = by_chance(np.zeros(300), p)
    assert np.mean(np.array(errors) > limit) == pytest.approx(0.05, abs=0.03)
    assert by_chance(np.zeros(1200), np.repeat(p, 4)) == pytest.approx(limit / 2, rel=0.05)
    assert by_chance([], []) is None
