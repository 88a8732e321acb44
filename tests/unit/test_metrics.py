"""Scores and their intervals, against numbers worked out by hand and against scikit-learn."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdamed.evaluation.intervals import Interval, over_seeds
from fdamed.evaluation.metrics import TWO, scores


def test_auc_counts_the_pairs_that_are_in_order() -> None:
    # Pairs (positive, negative): .8>.4 .8>.6 .5>.4 .5<.6 -> 3 of 4.
    assert scores([1, 1, 0, 0], [0.8, 0.5, 0.4, 0.6])["auc"] == 0.75


def test_a_tie_counts_half_a_pair() -> None:
    assert scores([1, 0], [0.5, 0.5])["auc"] == 0.5
    # Pairs: .5=.5 (1/2), .5>.1 (1), .9>.5 (1), .9>.1 (1) -> 3.5 of 4.
    assert scores([1, 1, 0, 0], [0.5, 0.9, 0.5, 0.1])["auc"] == 0.875


def test_the_other_scores_by_hand() -> None:
    found = scores([1, 1, 1, 0], [0.9, 0.5, 0.2, 0.6])
    assert found["acc"] == 0.5  # right: .9 and .5 (the threshold counts as positive)
    assert found["balanced_acc"] == pytest.approx((2 / 3 + 0) / 2)
    assert found["brier"] == pytest.approx((0.01 + 0.25 + 0.64 + 0.36) / 4)


def test_scores_of_a_threshold_by_hand() -> None:
    y, p = [1, 1, 1, 0, 0], [0.9, 0.5, 0.2, 0.6, 0.1]
    found = scores(y, p)
    assert (found["sensitivity"], found["specificity"]) == (2 / 3, 0.5)
    assert found["f1"] == pytest.approx(2 * 2 / (3 + 3))
    assert found["sens_at_spec90"] == pytest.approx(1 / 3)  # no negative may be above: .9 alone is
    # Recall 1/3 at precision 1 (.9), then 2/3 at 2/3 (.5, after .6), then 1 at 3/4 (.2).
    assert found["ap"] == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)


@pytest.mark.parametrize("seed", range(5))
def test_scores_of_a_threshold_are_scikit_learns(seed: int) -> None:
    from sklearn import metrics

    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, 80)
    p = np.round(np.clip(rng.normal(0.4 + 0.2 * y, 0.25), 0, 1), 2)
    ours = scores(y, p)
    assert ours["ap"] == pytest.approx(metrics.average_precision_score(y, p), abs=1e-12)
    assert ours["f1"] == pytest.approx(metrics.f1_score(y, p >= 0.5), abs=1e-12)
    assert ours["sensitivity"] == pytest.approx(metrics.recall_score(y, p >= 0.5), abs=1e-12)
    wrong, found, _ = metrics.roc_curve(y, p, drop_intermediate=False)
    assert ours["sens_at_spec90"] == pytest.approx(found[wrong <= 0.1 + 1e-12].max(), abs=1e-12)


@pytest.mark.parametrize(("y", "reason"), [([0, 0], "no positives"), ([1, 1], "no negatives")])
def test_without_both_classes_the_auc_is_none_and_says_why(y: list[int], reason: str) -> None:
    found = scores(y, [0.2, 0.7])
    assert found["auc"] is None
    assert {"auc": reason, "balanced_acc": reason, "sens_at_spec90": reason}.items() <= found["why"].items()
    assert (found["sensitivity"] is None) == (reason == "no positives")
    assert (found["specificity"] is None) == (reason == "no negatives")
    assert found["acc"] == 0.5


def test_no_images_give_no_score_at_all() -> None:
    found = scores([], [])
    assert found["n"] == 0
    assert set(found["why"].values()) == {"no images"}
    assert set(found["why"]) == set(TWO)


@pytest.mark.parametrize(
    ("y", "p"), [([0, 2], [0.1, 0.2]), ([0, 1], [0.1, math.nan]), ([0, 1], [0.1, 1.2]), ([0, 1], [0.1])]
)
def test_labels_and_probabilities_that_are_none_are_refused(y: list[int], p: list[float]) -> None:
    with pytest.raises(ValueError, match=r"labels|probabilities"):
        scores(y, p)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 8)), min_size=2, max_size=60))
def test_scores_agree_with_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    from sklearn.metrics import balanced_accuracy_score, brier_score_loss, roc_auc_score

    y = np.array([a for a, _ in pairs])
    p = np.array([b / 8 for _, b in pairs])
    found = scores(y, p)
    if 0 < y.sum() < len(y):
        assert found["auc"] == pytest.approx(roc_auc_score(y, p))
        assert found["balanced_acc"] == pytest.approx(balanced_accuracy_score(y, p >= 0.5))
        assert found["brier"] == pytest.approx(brier_score_loss(y, p))
    else:
        assert found["auc"] is None


def test_the_t_interval_of_three_seeds_by_hand() -> None:
    # mean .8, s = .02, t(2, .975) = 4.30265 -> half = 4.30265 * .02 / sqrt(3)
    found = over_seeds([0.78, 0.80, 0.82])
    assert found.mean == pytest.approx(0.8)
    assert found.half == pytest.approx(4.30265 * 0.02 / math.sqrt(3), rel=1e-5)
    assert found.n == 3


def test_undefined_values_are_left_out() -> None:
    found = over_seeds([0.7, None, 0.9, math.nan])
    assert found.mean == pytest.approx(0.8)
    assert found.n == 2


def test_one_seed_has_no_interval_and_none_has_no_mean() -> None:
    assert over_seeds([0.7]) == Interval(0.7, None, 1)
    assert over_seeds([None]) == Interval(None, None, 0)
    assert over_seeds([0.7]).overlaps(over_seeds([0.7, 0.8])) is None


def test_intervals_overlap_when_they_share_a_point() -> None:
    assert Interval(0.7, 0.1, 3).overlaps(Interval(0.85, 0.06, 3)) is True
    assert Interval(0.7, 0.1, 3).overlaps(Interval(0.9, 0.05, 3)) is False


def test_the_scores_load_without_torch_and_pandas() -> None:
    code = "import sys, fdamed.evaluation.metrics; print(sorted({'torch', 'pandas', 'sklearn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
