"""The bootstrap over patients: against plain loops with scikit-learn, scipy's own, and by how often it is right."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from fdamed.core.rng import stream
from fdamed.evaluation.bootstrap import bootstrap, scored
from fdamed.evaluation.comparison.paired_tests import auc_of, difference, share_of
from fdamed.evaluation.metrics import SEVERAL, TWO, scores


def patients(n: int = 40, images: int = 90, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rounded probabilities, so that there are ties."""
    g = stream(seed, "data").numpy
    _, owner = np.unique(g.integers(0, n, images), return_inverse=True)
    y = g.integers(0, 2, images)
    return y, np.round(np.clip(0.3 * y + 0.7 * g.random(images), 0, 1), 1), owner


def drawn_images(owner: np.ndarray, replicates: int) -> list[np.ndarray]:
    """The images of each replicate, copied out as a plain program would, from the same random numbers."""
    n = int(owner.max()) + 1
    draws = stream(2, "draw").numpy.integers(0, n, size=(replicates, n), dtype=np.int32)
    return [np.concatenate([np.flatnonzero(owner == one) for one in row]) for row in draws]


def by_scikit_learn(y: np.ndarray, p: np.ndarray) -> dict[str, float]:
    said = p >= 0.5
    wrong, found, _ = metrics.roc_curve(y, p, drop_intermediate=False)
    return {
        "auc": metrics.roc_auc_score(y, p),
        "acc": metrics.accuracy_score(y, said),
        "balanced_acc": metrics.balanced_accuracy_score(y, said),
        "brier": metrics.brier_score_loss(y, p),
        "sensitivity": metrics.recall_score(y, said),
        "specificity": metrics.recall_score(1 - y, ~said),
        "f1": metrics.f1_score(y, said),
        "ap": metrics.average_precision_score(y, p),
        "sens_at_spec90": found[wrong <= 0.1 + 1e-12].max(),
    }


def test_every_score_equals_a_plain_loop_with_scikit_learn_over_drawn_patients() -> None:
    y, p, owner = patients()
    looped = [by_scikit_learn(y[rows], p[rows]) for rows in drawn_images(owner, 100)]
    found = bootstrap(y, p, owner, stream(2, "draw"), replicates=100)
    assert set(found["intervals"]) == set(TWO) == set(looped[0])
    for name, ends in found["intervals"].items():
        assert ends == pytest.approx(tuple(np.quantile([one[name] for one in looped], [0.025, 0.975])), abs=1e-6), name
    assert (found["replicates"], found["undefined"]) == (100, 0)


def test_scores_of_several_classes_equal_a_plain_loop() -> None:
    g = stream(5, "data").numpy
    _, owner = np.unique(g.integers(0, 30, 120), return_inverse=True)
    y, p = g.integers(0, 3, 120), g.dirichlet([1, 1, 1], 120)
    looped = [scores(y[rows], p[rows]) for rows in drawn_images(owner, 100)]
    found = bootstrap(y, p, owner, stream(2, "draw"), replicates=100)
    for name in SEVERAL:
        ends = tuple(np.quantile([one[name] for one in looped], [0.025, 0.975]))
        assert found["intervals"][name] == pytest.approx(ends, abs=1e-6)


def test_the_interval_is_that_of_scipys_bootstrap() -> None:
    """One image a patient; other random numbers, so ends agree to their own error."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 150)
    p = 1 / (1 + np.exp(-(y + rng.normal(size=150))))
    ours = bootstrap(y, p, np.arange(150), stream(0, "b"), 4000)["intervals"]
    theirs = stats.bootstrap(
        (y, p),
        lambda y, p: float(((p >= 0.5) == y).mean()),
        paired=True,
        vectorized=False,
        n_resamples=4000,
        method="percentile",
        rng=rng,
    ).confidence_interval
    assert ours["acc"] == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_images_of_one_patient_move_together() -> None:
    y = np.array([1, 0] * 100)
    p = np.tile([0.9, 0.2, 0.3, 0.6], 50)
    alone = bootstrap(y, p, np.arange(200), stream(0, "b"), replicates=500)["intervals"]["auc"]
    together = bootstrap(y, p, np.arange(200) // 20, stream(0, "b"), replicates=500)["intervals"]["auc"]
    assert alone is not None and alone[1] - alone[0] > 0.05
    assert together == pytest.approx((0.75, 0.75))  # every patient holds the same twenty images


def test_replicates_without_a_class_are_counted_not_scored() -> None:
    found = bootstrap([1, 0], [0.9, 0.1], ["a", "b"], stream(0, "b"), replicates=1000)
    assert found["intervals"]["auc"] == (1.0, 1.0)
    assert 400 < found["undefined"] < 600  # both draws the same patient: one half
    one_class = bootstrap([1, 1], [0.9, 0.1], ["a", "b"], stream(0, "b"), replicates=10)["intervals"]
    assert one_class["auc"] is None and one_class["acc"] is not None and one_class["specificity"] is None
    assert set(bootstrap([], [], [], stream(0, "b"))["intervals"].values()) == {None}


def two_models(seed: int, n: int = 150) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two images a patient, scores of two models that move together."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(n), 2)
    y = rng.integers(0, 2, n)[owner]
    logits = y + rng.normal(size=n)[owner] + rng.normal(size=(2, len(y)))
    return y, 1 / (1 + np.exp(-logits)), owner


def test_the_covariance_of_the_bootstrap_is_that_of_the_closed_forms() -> None:
    y, p, owner = two_models(3)
    found = scored(y, p, owner, stream(0, "s"), replicates=2000)
    assert found["auc"].covariance == pytest.approx(auc_of(y, p, owner).covariance, rel=0.15)
    right = share_of((p >= 0.5) == (y == 1), owner)
    assert found["acc"].covariance == pytest.approx(right.covariance, rel=0.15)
    assert found["acc"].value == pytest.approx(right.value)
    paired, closed = difference(found["auc"], [0], [1]), difference(auc_of(y, p, owner), [0], [1])
    assert (paired.value, paired.patients) == pytest.approx((closed.value, closed.patients), rel=0.1)


def test_a_score_that_the_data_cannot_define_is_not_compared() -> None:
    y, p, owner = two_models(4)
    found = scored(np.ones_like(y), p, owner, stream(0, "s"), replicates=200)
    assert "auc" not in found and "specificity" not in found and "acc" in found
    assert scored(y[:2], p[:, :2], owner[:2], stream(0, "s")) == {}, "one patient"


@pytest.mark.slow
def test_intervals_hold_the_truth_in_95_of_100_studies() -> None:
    """600 studies of 150 patients with two images each; intervals over images would hold it in fewer."""
    names, studies = ("auc", "acc", "f1", "ap", "sens_at_spec90"), 600
    y, p, _ = two_models(10_000, 400_000)
    truth = by_scikit_learn(y, p[0])
    held, alone = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for seed in range(studies):
        y, p, owner = two_models(seed)
        for counts, cluster in ((held, owner), (alone, np.arange(len(y)))):
            ends = bootstrap(y, p[0], cluster, stream(seed, "b"), 500)["intervals"]
            for name in names:
                counts[name] += ends[name][0] <= truth[name] <= ends[name][1]
    for name in names:
        print(
            f"{name}: {100 * held[name] / studies:.1f} % over patients, {100 * alone[name] / studies:.1f} % over images"
        )
    assert all(0.92 <= held[name] / studies <= 0.97 for name in names)
    assert all(alone[name] < held[name] for name in names)
