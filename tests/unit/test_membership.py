"""Membership inference on patients with known membership."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

from fdamed.core.rng import stream
from fdamed.evaluation.membership_inference import GATE, LEAST, attacked, surprise, within_class


def test_the_shares_on_paper() -> None:
    """100 others and four members: other, member, other, member, member, member, 98 others, from above.

    One wrong call in 100 finds one member of four; the members beat 99, 98, 98 and 98 others of 100.
    """
    said = np.concatenate([[9.0, 7.0, 6.0, 0.5], [10.0, 8.0], -np.arange(1.0, 99.0)])
    members = np.arange(104) < 4
    found = attacked([members], [said], stream(0, "x"), 1)
    assert found is not None
    assert found["auc"]["value"] == pytest.approx(393 / 400)
    assert found["tpr_at_1"]["value"] == 0.25
    assert found["tpr_at_01"] is None  # one wrong call in 100 is more than one in a thousand


def test_shares_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    members = rng.random(3000) < 0.4
    said = np.round(rng.normal(members * 1.5, 1.0), 2)  # with ties
    result = attacked([members], [said], stream(0, "x"), 11, 200)
    wrong, found, _ = roc_curve(members, said, drop_intermediate=False)
    assert result is not None and result["auc"]["value"] == pytest.approx(roc_auc_score(members, said))
    assert result["tpr_at_1"]["value"] == pytest.approx(found[wrong <= 0.01].max())
    assert result["tpr_at_01"]["value"] == pytest.approx(found[wrong <= 0.001].max())
    for one in result.values():
        assert one["low"] < one["value"] < one["high"]


def test_a_model_that_knows_nobody_is_at_one_half_and_the_interval_holds_it() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for i in range(40):
        members = rng.random(300) < 0.5
        found = attacked([members], [rng.normal(size=300)], stream(i, "x"), 11, 300)
        held += found["auc"]["low"] <= 0.5 <= found["auc"]["high"]
    assert held >= 34  # of 38 to be expected


def test_taking_off_how_hard_an_image_is_finds_members_that_the_loss_alone_hides() -> None:
    rng = np.random.default_rng(2)
    members, hard = rng.random(400) < 0.5, rng.normal(scale=3.0, size=400)
    mine = hard + 0.8 * members + rng.normal(scale=0.3, size=400)
    plain = attacked([members], [mine], stream(0, "x"), 11, 100)
    calibrated = attacked([members], [mine - hard], stream(0, "x"), 11, 100)
    assert plain["auc"]["value"] < GATE < 0.9 < calibrated["auc"]["value"]


def test_few_patients_on_either_side_let_nothing_out() -> None:
    said = np.linspace(0, 1, 50)
    assert attacked([np.arange(50) < 10], [said], stream(0, "x"), 11) is None
    assert attacked([np.arange(50) < 40], [said], stream(0, "x"), 11) is None
    assert attacked([np.arange(50) < 39], [said], stream(0, "x"), 11) is not None


def test_a_share_that_stands_for_few_patients_is_reported_as_a_bound() -> None:
    rng = np.random.default_rng(3)
    members = np.arange(400) < 200
    found = attacked([members], [rng.normal(size=400)], stream(0, "x"), 11, 100)
    assert found["tpr_at_1"] == {"below": 0.055} or found["tpr_at_1"]["value"] == 0.0
    assert found["tpr_at_01"] is None


def test_another_seed_widens_the_interval() -> None:
    rng = np.random.default_rng(4)
    members = rng.random(600) < 0.5
    far = [rng.normal(members * shift, 1.0) for shift in (0.0, 1.0)]
    two = attacked([members, members], far, stream(0, "x"), 11, 400)["auc"]
    one = attacked([members], far[:1], stream(0, "x"), 11, 400)["auc"]
    assert two["high"] - two["low"] > 1.5 * (one["high"] - one["low"])


def test_a_patients_images_are_one_and_a_surprise_has_an_end() -> None:
    said = surprise([1, 0, 1], [[0.2, 0.8], [0.5, 0.5], [1.0, 0.0]])
    assert said.tolist() == pytest.approx([np.log(0.8), np.log(0.5), np.log(LEAST)])


def test_seeds_with_other_members_are_each_asked_about_their_own() -> None:
    """With seed 1 the members are others, and a third of the patients is not asked about."""
    rng = np.random.default_rng(5)
    first, second = rng.random(300) < 0.5, rng.random(300) < 0.5
    said = [first + 0.1 * rng.random(300), np.where(np.arange(300) < 100, np.nan, second + 0.1 * rng.random(300))]
    assert attacked([first, second], said, stream(0, "x"), 11, 50)["auc"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert attacked([first, first], said, stream(0, "x"), 11, 50)["auc"]["value"] < 0.9


def test_classes_that_are_more_frequent_among_members_give_nobody_away() -> None:
    """The network knows nobody, and finds the class easier which most members have."""
    rng = np.random.default_rng(6)
    members = rng.random(600) < 0.5
    y = (rng.random(600) < np.where(members, 0.9, 0.2)).astype(int)
    said = 2.0 * y + rng.normal(scale=0.3, size=600)
    plain = attacked([members], [said], stream(0, "x"), 11, 200)["auc"]
    fair = attacked([members], [within_class(said, y, ~members)], stream(0, "x"), 11, 200)["auc"]
    assert plain["low"] > GATE and fair["low"] < 0.5 < fair["high"]


def test_a_class_that_no_other_patient_has_is_not_asked_about() -> None:
    found = within_class(np.array([3.0, 5.0, 1.0, 2.0]), [0, 0, 0, 1], np.array([False, True, True, False]))
    assert found[:3].tolist() == [0.0, 2.0, -2.0] and np.isnan(found[3])
