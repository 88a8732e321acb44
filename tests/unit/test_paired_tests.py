"""Paired comparisons against published examples and independent implementations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from fdamed.evaluation.comparison.paired_tests import (
    Scored,
    auc_of,
    difference,
    holm,
    mcnemar,
    share_of,
)

# DeLong, DeLong and Clarke-Pearson (1988): albumin, total protein, K-G score, benefit of surgery; patients with all.
OVARIAN = """
3.0 5.8 10 0  3.2 6.3 5 1  3.9 6.8 3 1  2.8 4.8 6 0  3.2 5.8 3 1  0.9 4.0 5 0  2.5 5.7 8 0  1.6 5.6 5 1
3.8 5.7 5 1  3.7 6.7 6 1  3.2 5.4 4 1  3.8 6.6 6 1  4.1 6.6 5 1  3.6 5.7 5 1  4.3 7.0 4 1  3.6 6.7 4 0
2.3 4.4 6 1  4.2 7.6 4 0  4.0 6.6 6 0  3.5 5.8 6 1  3.8 6.8 7 1  3.0 4.7 8 0  4.5 7.4 5 1  3.7 7.4 5 1
3.1 6.6 6 1  4.1 8.2 6 1  4.3 7.0 5 1  4.3 6.5 4 1  3.2 5.1 5 1  2.6 4.7 6 1  3.3 6.8 6 0  1.7 4.0 7 0
3.7 6.1 5 1  3.3 6.3 7 1  4.2 7.7 6 1  3.5 6.2 5 1  2.9 5.7 9 0  2.1 4.8 7 1  2.8 6.2 8 0  4.0 7.0 7 1
3.3 5.7 6 1  3.7 6.9 5 1  3.6 6.6 5 1
"""


@pytest.fixture(scope="module")
def ovarian() -> Scored:
    albumin, protein, score, benefit = np.array(OVARIAN.split(), dtype=float).reshape(-1, 4).T
    found = auc_of(benefit, [albumin, 10 - score, protein], np.arange(len(benefit)))
    assert found is not None
    return found


def test_areas_and_errors_of_delongs_own_data_are_those_of_the_r_package_proc(ovarian) -> None:
    assert ovarian.value == pytest.approx([0.73655913978, 0.7258064516, 0.6478494624], abs=1e-9)
    errors = np.sqrt(np.diag(ovarian.covariance))
    assert errors == pytest.approx([0.09269434605, 0.1028216090, 0.1000473756], abs=1e-9)
    assert ovarian.covariance[0, 1] == pytest.approx(0.005037059811, abs=1e-12)


def test_differences_of_delongs_own_data_are_those_of_the_r_package_proc(ovarian) -> None:
    albumin, protein = difference(ovarian, [0], [1]), difference(ovarian, [2], [1])
    assert (albumin.low, albumin.high) == pytest.approx((-0.17611737, 0.19762275), abs=1e-8)
    assert (protein.low, protein.high) == pytest.approx((-0.28298802, 0.12707404), abs=1e-8)
    assert (albumin.p, protein.p) == pytest.approx((0.9102063472, 0.4561397075), abs=1e-9)


def many(seed: int, patients: int = 60, images: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Patients with several images each whose scores move together."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(patients), images)
    y = rng.integers(0, 2, patients)[owner]
    common = rng.normal(size=(2, patients))[:, owner]
    return y, y + 1.5 * common + rng.normal(size=(2, len(y))), owner


def test_areas_are_scikit_learns_also_with_ties() -> None:
    y, p, owner = many(1)
    rounded = np.round(p, 1)
    found = auc_of(y, rounded, owner)
    assert found is not None
    assert found.value == pytest.approx([roc_auc_score(y, row) for row in rounded], abs=1e-12)


def test_the_error_over_patients_is_the_spread_over_repeated_studies() -> None:
    """With one variance an image it would be 1.6 times too small here."""
    studies = [many(seed) for seed in range(400)]
    found = [auc_of(*s) for s in studies]
    spread = np.std([f.value[0] - f.value[1] for f in found], ddof=1)
    result = np.sqrt(np.mean([difference(f, [0], [1]).patients ** 2 for f in found]))
    as_if_independent = np.sqrt(
        np.mean([difference(auc_of(y, p, np.arange(len(y))), [0], [1]).patients ** 2 for y, p, _ in studies])
    )
    assert result == pytest.approx(spread, rel=0.1)
    assert as_if_independent < 0.7 * spread


def test_one_image_a_patient_is_plain_delong_and_order_does_not_matter() -> None:
    y, p, _ = many(3, images=1)
    names = [f"patient {i % 7}{i}" for i in range(len(y))]
    turned = np.random.default_rng(0).permutation(len(y))
    a, b = auc_of(y, p, names), auc_of(y[turned], p[:, turned], [names[i] for i in turned])
    assert a is not None and b is not None
    assert np.allclose(a.covariance, b.covariance, atol=1e-15)
    positive, negative = p[0][y == 1], p[0][y == 0]
    beats = (positive[:, None] > negative).astype(float)
    by_hand = beats.mean(1).var(ddof=1) / len(positive) + beats.mean(0).var(ddof=1) / len(negative)
    assert a.covariance[0, 0] == pytest.approx(by_hand, rel=1e-12)


def test_accuracy_of_single_images_is_the_paired_difference_of_proportions() -> None:
    y, p, _ = many(4, patients=200, images=1)
    p = 1 / (1 + np.exp(-p))
    found = share_of((p >= 0.5) == (y == 1), np.arange(len(y)))
    assert found is not None
    apart = ((p[0] >= 0.5) == y).astype(float) - ((p[1] >= 0.5) == y)
    result = difference(found, [0], [1])
    assert result.value == pytest.approx(apart.mean())
    assert result.patients == pytest.approx(stats.sem(apart), rel=1e-12)


def test_the_same_predictions_are_no_difference() -> None:
    y, p, owner = many(5)
    found = auc_of(y, np.stack([p[0], p[0]]), owner)
    assert found is not None
    result = difference(found, [0], [1])
    assert (result.value, result.p, result.low, result.high) == (0.0, 1.0, 0.0, 0.0)


def test_seeds_add_their_own_variance_by_hand() -> None:
    """Differences 0.02 and 0.06 over two seeds, patients independent of each other with variance 0.0001 a model."""
    scored = Scored(np.array([0.82, 0.86, 0.80, 0.80]), np.eye(4) * 1e-4)
    result = difference(scored, [0, 1], [2, 3])
    assert result.value == pytest.approx(0.04)
    assert result.patients == pytest.approx(0.01)  # sqrt(4 x 0.0001 / 4)
    assert result.seeds_error == pytest.approx(0.02)  # sqrt(0.0008 / 2)
    z, t = stats.norm.isf(result.p / 2), stats.t.isf(result.p / 2, 1)
    assert z**2 * 0.0001 + t**2 * 0.0004 == pytest.approx(0.04**2), "the interval of this p ends at 0"
    z, t = stats.norm.isf(0.025), stats.t.isf(0.025, 1)
    assert result.high - result.value == pytest.approx(np.sqrt(z**2 * 0.0001 + t**2 * 0.0004))


def test_without_a_variance_over_patients_it_is_students_test() -> None:
    scored = Scored(np.array([0.82, 0.86, 0.87, 0.80, 0.80, 0.80]), np.zeros((6, 6)))
    result = difference(scored, [0, 1, 2], [3, 4, 5])
    assert result.p == pytest.approx(stats.ttest_1samp([0.02, 0.06, 0.07], 0.0).pvalue)


def test_too_few_patients_of_a_class_have_no_interval() -> None:
    assert auc_of([1, 1, 0, 0], [[0.1, 0.2, 0.3, 0.4]], ["a", "a", "b", "c"]) is None
    assert share_of([[True, False]], np.zeros(2, dtype=int)) is None


def test_unequal_seeds_and_unfit_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match="same seeds"):
        difference(Scored(np.zeros(3), np.eye(3)), [0, 1], [2])
    with pytest.raises(ValueError, match="need"):
        auc_of([0, 1], [[0.5, 0.5, 0.5]], [1, 2])
    with pytest.raises(ValueError, match="finite"):
        auc_of([0, 1], [[0.5, np.nan]], [1, 2])


def test_mcnemar_by_hand() -> None:
    """Of 7 images that one alone gets right, the first has 6: 2 x (1 + 7) / 128 less the half of what is as likely."""
    assert mcnemar(6, 1) == pytest.approx((2 * 8 - 7) / 128)
    assert mcnemar(1, 6) == mcnemar(6, 1)
    assert mcnemar(0, 0) == 1.0


@pytest.mark.parametrize(("a", "b", "exact", "middle"), [(1, 7, 0.070, 0.039), (6, 16, 0.052, 0.035)])
def test_mcnemar_of_the_examples_of_fagerland_lydersen_and_laake(a: int, b: int, exact: float, middle: float) -> None:
    """BMC Medical Research Methodology 13:91 (2013), Tables 1 and 2: exact and mid-p as they print them."""
    conditional = stats.binomtest(a, a + b).pvalue
    assert conditional == pytest.approx(exact, abs=6e-4)
    assert mcnemar(a, b) == pytest.approx(middle, abs=6e-4)
    assert mcnemar(a, b) == pytest.approx(conditional - stats.binom.pmf(a, a + b, 0.5), rel=1e-12)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
