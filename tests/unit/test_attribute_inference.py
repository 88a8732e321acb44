"""Attribute inference: it finds what is there, nothing where nothing is, never on a training patient."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fdamed.core.rng import stream
from fdamed.evaluation import attribute_inference as probe
from fdamed.evaluation.comparison.paired_tests import contrast

SMALLEST = 11


def people(n: int = 150, seed: int = 0) -> pd.DataFrame:
    """Two images a patient."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(n), 2)
    return pd.DataFrame(
        {
            "patient": [f"p{i:04d}" for i in owner],
            "sex": np.where(rng.random(n) < 0.5, "Female", "Male")[owner],
            "age": rng.uniform(20, 95, n)[owner],
            "race": rng.choice(["A", "B", "C", None], n, p=[0.4, 0.3, 0.27, 0.03])[owner],
            "view": "frontal",
        }
    )


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return people()


@pytest.fixture(scope="module")
def asked(frame) -> dict[str, probe.Question]:
    return {q.name: q for q in probe.questions(frame, SMALLEST, stream(0, "test"))}


def noise(n: int, d: int = 20, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def test_sex_that_stands_in_the_features_is_read_without_error(frame, asked) -> None:
    z = noise(len(frame))
    z[:, 3] = np.where(frame["sex"] == "Male", 5.0, -5.0)
    found = probe.area(asked["sex"], probe.read(asked["sex"], z)[None, 0])
    assert found.value[0] == 1.0
    assert contrast([(1, found)]).low > 0.99


@pytest.mark.parametrize("name", ["sex", "age", "race"])
def test_nothing_is_read_from_noise(frame, asked, name: str) -> None:
    """Over 40 draws of random features the mean is a half, and intervals cover it as often as they should (0.95)."""
    found = []
    for seed in range(40):
        said = probe.read(asked[name], noise(len(frame), 10, seed))
        found.append(contrast([(1, probe.area(asked[name], said[None, 0]))]))
    assert np.mean([f.value for f in found]) == pytest.approx(0.5, abs=0.03)
    assert sum(f.low <= 0.5 <= f.high for f in found) >= 35


def test_attributes_dealt_out_at_random_are_not_read_even_where_the_true_ones_are(frame, asked) -> None:
    z = noise(len(frame))
    z[:, 0] = np.where(frame["sex"] == "Male", 1.0, -1.0)
    said = probe.read(asked["sex"], z)
    dealt = [probe.area(asked["sex"], said[None, i], i).value[0] for i in range(1, 1 + probe.SHUFFLES)]
    assert np.mean(dealt) == pytest.approx(0.5, abs=0.1)
    assert (asked["sex"].truth[0] != asked["sex"].truth[1]).any()
    for row in asked["sex"].truth:
        by_patient = pd.Series(row).groupby(frame["patient"].to_numpy()[asked["sex"].rows]).nunique()
        assert by_patient.max() == 1, "the images of a patient stay alike"
        assert row.sum() == asked["sex"].truth[0].sum()


def test_nobody_is_read_by_a_probe_that_has_seen_them(asked) -> None:
    for question in asked.values():
        by_patient = pd.Series(question.fold).groupby(question.owner).nunique()
        assert by_patient.max() == 1 and set(question.fold) == set(range(probe.FOLDS))


def test_a_patients_own_mark_does_not_help(frame, asked) -> None:
    """Features that name each patient: within patients they are perfect, between patients they say nothing."""
    owner = pd.factorize(frame["patient"])[0]
    z = np.eye(owner.max() + 1)[owner] * 10
    found = contrast([(1, probe.area(asked["sex"], probe.read(asked["sex"], z)[None, 0]))])
    assert found.low < 0.5 < found.high


def test_ages_are_read_as_years_and_reported_as_above_the_median(frame, asked) -> None:
    question = asked["age"]
    z = noise(len(frame))
    z[:, 0] = frame["age"] / 10 + noise(len(frame), 1, 2)[:, 0]
    said = probe.read(question, z)[None, 0]
    years = frame["age"].to_numpy()
    assert probe.explained(question, said)[0] == pytest.approx(
        r2_score(years, np.clip(said[0, :, 0], years.min(), years.max()))
    )
    middle = np.median(years)
    assert question.classes == (f"under {middle:g}", f"{middle:g} and over")
    by_fold = [roc_auc_score(years[f] >= middle, said[0, f, 0]) for f in (question.fold == i for i in range(5))]
    assert probe.area(question, said).value[0] == pytest.approx(np.mean(by_fold), abs=0.01)


def test_more_than_two_classes_are_the_mean_of_one_against_the_rest(frame, asked) -> None:
    question = asked["race"]
    z = noise(len(frame))
    z[:, 0] = np.where(frame["race"] == "A", 2.0, 0.0)
    said = probe.read(question, z)[None, 0]
    found = probe.area(question, said)
    truth = question.truth[0]
    one_by_one = [
        np.mean([roc_auc_score(truth[f] == c, said[0, f, c]) for f in (question.fold == i for i in range(5))])
        for c in range(3)
    ]
    assert question.classes == ("A", "B", "C")
    assert found.value[0] == pytest.approx(np.mean(one_by_one), abs=0.01)
    assert one_by_one[0] > 0.95 > one_by_one[1], "A is known, and of the others only that they are not A"


def test_a_small_class_and_an_attribute_of_one_class_are_not_asked_about(frame, asked) -> None:
    assert "view" not in asked
    rare = frame.assign(race=np.where(frame.index < 20, "Rare", frame["race"]))
    (race,) = [q for q in probe.questions(rare, SMALLEST, stream(0, "test")) if q.name == "race"]
    assert "Rare" not in race.classes and not set(race.rows) & set(range(20))
    nothing = frame.assign(sex=None, age=np.nan, race=None)
    assert probe.questions(nothing, SMALLEST, stream(0, "test")) == []


def test_whole_patients_are_chosen_and_never_more_images_than_allowed(frame) -> None:
    rows = probe.chosen(frame["patient"].tolist(), 101, stream(3, "x"))
    assert len(rows) == 100 and frame["patient"].iloc[rows].value_counts().eq(2).all()
    assert len(probe.chosen(frame["patient"].tolist(), 10_000, stream(3, "x"))) == len(frame)
    assert rows.tolist() == probe.chosen(frame["patient"].tolist(), 101, stream(3, "x")).tolist()


def test_a_dead_unit_and_a_constant_model_are_no_fault(frame, asked) -> None:
    said = probe.read(asked["sex"], np.zeros((len(frame), 4)))
    assert probe.area(asked["sex"], said[None, 0]).value[0] == 0.5


def test_the_probe_is_scikit_learns_ridge_regression_with_generalized_cross_validation() -> None:
    rng = np.random.default_rng(3)
    x, test = rng.normal(2.0, 3.0, (90, 12)), rng.normal(2.0, 3.0, (20, 12))
    y = np.stack([x[:, 0] + rng.normal(size=90), rng.normal(size=90)], axis=1)
    known = make_pipeline(StandardScaler(), RidgeCV(probe.PENALTIES, alpha_per_target=True)).fit(x, y)
    assert probe.probed(x, y, test) == pytest.approx(known.predict(test), abs=1e-9)
