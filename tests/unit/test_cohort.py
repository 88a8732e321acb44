"""Splitting the index into clients: classes, patients, parts, and what cannot be split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fdamed.config.split import Split
from fdamed.core.errors import FdamedError
from fdamed.data.manifest import as_index, pseudonyms
from fdamed.data.splitting.assignment import Keys, whole_patients
from fdamed.data.splitting.cohort import build, one_place, truth_of, truths
from fdamed.data.splitting.leakage import Leakage, check_manifests
from fdamed.data.splitting.stratification import fill, sizes

CONDITIONS = {"Lesion": "Lung Lesion", "Edema": "Edema", "Collapse": "Atelectasis"}
RACES = {"A": "Asian", "W": "White"}


def index_of(patients: int = 400, seed: int = 0, salt: str = "s") -> pd.DataFrame:
    """Patients with one to four images and three conditions at 1, 0, -1 and blank."""
    rng = np.random.default_rng(seed)
    images = rng.integers(1, 5, patients)
    patient = pd.Series([f"patient{p:05d}" for p in np.repeat(np.arange(patients), images)])
    n = len(patient)
    frame = pd.DataFrame({"image": patient + "/" + pd.Series([f"{i}.jpg" for i in range(n)])})
    frame["patient"] = pseudonyms(salt, patient)
    frame["study"] = pseudonyms(salt, frame["image"])
    frame["race"] = np.repeat(rng.choice(["Asian", "White", "Black"], patients), images)
    frame["sex"] = np.repeat(rng.choice(["F", "M"], patients), images)
    frame["age"] = rng.integers(18, 90, n)
    frame["view"] = rng.choice(["frontal", "lateral"], n)
    for label in CONDITIONS.values():
        frame[f"label.{label}"] = rng.choice([1, 0, -1, np.nan], n, p=[0.3, 0.3, 0.1, 0.3])
    frame["label.No Finding"] = rng.choice([1, np.nan], n, p=[0.3, 0.7])
    return as_index(frame)


def cut_of(**keys: Any) -> Split:
    return Split.model_validate({"by": "condition", "clients": CONDITIONS, "target": "Edema", "labeled": 20, **keys})


def fate(manifests: dict[str, pd.DataFrame]) -> dict[str, tuple[str, int, str]]:
    """Image -> (client, y, split)."""
    rows = [
        (i, (p, y, s)) for p, f in manifests.items() for i, y, s in zip(f["image"], f["y"], f["split"], strict=True)
    ]
    return dict(rows)


# --- classes ---

RAW = [1, 0, -1, np.nan]


@pytest.mark.parametrize(
    ("keys", "y"),
    [
        ({}, [1, 0, None, None]),
        ({"uncertain": "ones"}, [1, 0, 1, None]),
        ({"uncertain": "zeros"}, [1, 0, 0, None]),
        ({"negatives": "blank"}, [1, None, None, 0]),
        ({"negatives": "blank", "uncertain": "zeros"}, [1, None, None, 0]),
        ({"negatives": "no_finding"}, [1, 0, None, 0]),
        ({"positive_is": 0}, [0, 1, None, None]),
    ],
)
def test_classes_follow_the_rules_for_uncertain_and_negative(keys: dict[str, Any], y: list[int | None]) -> None:
    frame = pd.DataFrame({"label.Edema": RAW, "label.No Finding": [1, 1, np.nan, 1]}, dtype="float32")
    found = truth_of(frame, "Edema", cut_of(**keys), "Edema")
    assert [None if np.isnan(v) else int(v) for v in found] == y


def test_either_of_two_labels_makes_a_positive_and_both_zeros_a_negative() -> None:
    frame = pd.DataFrame({"label.Mass": [1, 0, 0, np.nan, -1], "label.Nodule": [np.nan, 0, 1, 0, 0]}, dtype="float32")
    found = truth_of(frame, "Nodule|Mass", cut_of(), "Lesion")
    assert found.tolist()[:3] == [1, 0, 1]
    assert np.isnan(found[3:]).all()


def test_no_finding_turned_round_takes_blank_with_a_finding_as_finding() -> None:
    frame = pd.DataFrame(
        {
            "label.No Finding": [1, np.nan, np.nan, np.nan],
            "label.Edema": [np.nan, 1, np.nan, -1],
            "label.Support Devices": [np.nan, np.nan, 1, np.nan],
        },
        dtype="float32",
    )
    cut = cut_of(by="race", label="No Finding", positive_is=0, clients={"A": "Asian", "W": "White"}, target="A")
    found = truth_of(frame, "No Finding", cut, "A")
    assert found.tolist()[:2] == [0, 1]
    assert np.isnan(found[2:]).all()


# --- places and splits ---


def test_every_patient_has_one_hospital_and_one_split() -> None:
    cohort = build(index_of(), cut_of())
    assert check_manifests(cohort.manifests) == Leakage(0, 0, 0)
    for frame in cohort.manifests.values():
        assert len(frame) > 100
        assert frame["y"].mean() == 0.5


def test_the_order_of_rows_and_the_salt_change_nothing() -> None:
    index = index_of()
    expected = fate(build(index, cut_of(per_class=60)).manifests)
    shuffled = index.sample(frac=1, random_state=3).reset_index(drop=True)
    assert fate(build(shuffled, cut_of(per_class=60)).manifests) == expected
    assert fate(build(index_of(salt="other"), cut_of(per_class=60)).manifests) == expected
    turned = dict(reversed(CONDITIONS.items()))
    assert fate(build(index, cut_of(per_class=60, clients=turned)).manifests) == expected
    assert fate(build(index, cut_of(per_class=60, seed=1)).manifests) != expected


def test_the_target_is_not_in_the_data() -> None:
    one, two = (build(index_of(), cut_of(target=t)).manifests for t in ("Edema", "Lesion"))
    assert fate(one) == fate(two)


def test_a_known_cohort_stays_the_same_on_every_machine() -> None:
    cohort = build(index_of(100), cut_of(labeled=4))
    first = {p: (f["image"].iloc[0], f["split"].iloc[0], len(f)) for p, f in cohort.manifests.items()}
    assert first == KNOWN


KNOWN = {
    "Lesion": ("patient00003/10.jpg", "adapt", 50),
    "Edema": ("patient00000/1.jpg", "test", 40),
    "Collapse": ("patient00008/17.jpg", "train", 38),
}


@pytest.mark.parametrize("per_class", [25, 50])
def test_per_class_gives_that_many_images_of_each_class_to_train_on(per_class: int) -> None:
    cohort = build(index_of(), cut_of(per_class=per_class, labeled=4, val=0.1, test=0.3))
    for frame in cohort.manifests.values():
        trained = frame[frame["split"].isin(("train", "adapt"))]
        assert trained["y"].value_counts().to_dict() == pytest.approx({0: per_class, 1: per_class}, abs=2)
        assert (frame["split"] == "test").mean() == pytest.approx(0.3, abs=0.01)
        assert (frame["split"] == "val").mean() == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    ("keys", "train", "test", "val"),
    [
        ({}, (140, 70), (40, 20), (20, 10)),
        ({"balanced": True}, (70, 70), (20, 20), (10, 10)),
        ({"per_class": 35, "balanced": True}, (35, 35), (10, 10), (5, 5)),
        ({"per_class": 80}, (80, 70), (23, 20), (12, 10)),
        ({"val": 30, "test": 60}, (140, 70), (40, 20), (20, 10)),
        ({"per_class": 20, "val": 31, "test": 0.5, "balanced": True}, (20, 20), (35, 36), (15, 16)),
        ({"per_class": 20, "val": 30, "test": "rest"}, (20, 20), (160, 70), (20, 10)),
        ({"per_class": 95, "val": 30, "test": "rest", "balanced": True}, (85, 85), (0, 0), (15, 15)),
        ({"per_class": 95, "test": 200, "balanced": True}, (0, 0), (90, 90), (10, 10)),
    ],
)
def test_sizes_are_shares_numbers_or_the_rest(keys: dict[str, Any], train: Any, test: Any, val: Any) -> None:
    """A client has 200 negative and 100 positive images."""
    asked = sizes(cut_of(**{"balanced": False, **keys}), np.array([200, 100]), True)
    assert [tuple(row) for row in asked.tolist()] == [train, test, val]


def test_a_source_keeps_nothing_back_when_only_targets_are_tested() -> None:
    cut = cut_of(held_out="targets", per_class=60, test="rest", val=20)
    manifests = build(index_of(), cut).manifests
    for client in ("Lesion", "Collapse"):
        assert set(manifests[client]["split"]) == {"train", "adapt"}
        assert manifests[client]["y"].value_counts().to_dict() == {0: 60, 1: 60}
    parts = manifests["Edema"]["split"].value_counts().to_dict()
    assert (parts["val"], parts["train"] + parts["adapt"]) == pytest.approx((20, 120), abs=2)
    assert len(manifests["Edema"]) == len(build(index_of(), cut_of()).manifests["Edema"])


def test_every_stratum_of_patients_is_divided_as_the_parts_ask() -> None:
    """20 patients of three positives, 10 of one, 60 of one negative; train, test and val ask for 70, 20 and 10 %."""
    images = np.array([[0, 3]] * 20 + [[0, 1]] * 10 + [[1, 0]] * 60)
    asked = np.array([[42, 49], [12, 14], [6, 7]])
    parts = fill(images, np.linspace(0, 0.9, 90), asked)
    counted = [[int((parts[rows] == p).sum()) for p in range(3)] for rows in (range(20), range(20, 30), range(30, 90))]
    assert counted == [[14, 4, 2], [7, 2, 1], [42, 12, 6]]


def test_no_part_lacks_a_class_that_has_a_patient_for_each() -> None:
    """Three patients have the only positives, six each: the largest takes more than test and val ask for."""
    images = np.array([[0, 6]] * 3 + [[2, 0]] * 20)
    parts = fill(images, np.linspace(0, 0.9, 23), np.array([[28, 13], [8, 4], [4, 1]]))
    assert sorted(parts[:3]) == [0, 1, 2]
    assert set(parts[3:]) == {0, 1, 2}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    patients=st.integers(20, 200),
    val=st.floats(0, 0.3) | st.integers(2, 10),
    test=st.floats(0, 0.5) | st.integers(2, 10),
)
def test_sizes_and_positives_are_met_within_one_patient(
    seed: int, patients: int, val: float | int, test: float | int
) -> None:
    rng = np.random.default_rng(seed)
    total = np.minimum(rng.geometric(0.4, patients), 8)
    positive = np.where(
        rng.random(patients) < 0.5, rng.binomial(total, 0.4), np.where(rng.random(patients) < 0.4, total, 0)
    )
    images = np.stack([total - positive, positive], axis=1)
    asked = sizes(cut_of(balanced=False, val=val, test=test), images.sum(axis=0), True)
    parts = fill(images, rng.random(patients), asked)
    got = np.stack([images[parts == p].sum(axis=0) for p in range(3)])
    assert np.abs(got - asked).max() <= total.max()
    assert ((got > 0) | (asked == 0)).all()


@pytest.mark.parametrize("images", [2, 10, 16])
def test_a_part_of_a_few_images_has_both_classes(images: int) -> None:
    """3 % of 1,000 images are positive: of 10 or 16 images none would be."""
    asked = sizes(cut_of(balanced=False, val=images, test=images), np.array([970, 30]), True)
    assert asked[1:].tolist() == [[images - 1, 1]] * 2


def test_a_shortage_is_reported_and_stays_balanced() -> None:
    cohort = build(index_of(), cut_of(per_class=5000))
    notes = [n for n in cohort.notes if "per_class asks for 5000" in n]
    assert len(notes) == 3
    for frame in cohort.manifests.values():
        assert frame["y"].mean() == 0.5


def test_unbalanced_keeps_every_image_of_its_patients() -> None:
    index = index_of()
    cut = cut_of(by="race", clients={"A": "Asian", "W": "White"}, target="A", label="Edema", balanced=False)
    cohort = build(index, cut)
    usable = index["label.Edema"].isin((0, 1))
    for client, race in cut.clients.items():
        assert len(cohort.manifests[client]) == int((usable & (index["race"] == race)).sum())


def test_adapt_has_the_labeled_images_half_of_each_class() -> None:
    frame = build(index_of(), cut_of(labeled=40)).manifests["Edema"]
    adapt = frame[frame["split"] == "adapt"]
    assert adapt["y"].value_counts().to_dict() == {0: 20, 1: 20}
    assert set(adapt["patient"]).isdisjoint(frame.loc[frame["split"] != "adapt", "patient"])


def test_adapt_takes_part_of_a_patient_only_when_no_whole_one_fits() -> None:
    """Patient 0 has three positives, patients 1 to 3 a negative each: of four labeled images two are positive."""
    pool = pd.DataFrame({"patient": [0, 0, 0, 1, 2, 3], "y": [1, 1, 1, 0, 0, 0]})
    assert whole_patients(pool, 4) == ([3, 4, 0, 1], [2])
    # With a fourth patient of one positive image and quotas of one each nobody is cut.
    more = pd.DataFrame({"patient": [0, 0, 0, 1, 2, 4], "y": [1, 1, 1, 0, 0, 1]})
    assert whole_patients(more, 2) == ([3, 5], [])
    # Two negatives are all there are: the rest is positive.
    assert whole_patients(more, 6) == ([0, 1, 2, 3, 4, 5], [])


@pytest.mark.parametrize("balanced", [True, False])
def test_the_exact_number_of_labeled_images_cuts_one_patient_at_most(balanced: bool) -> None:
    """Patients with images of both classes, few of them positive: half of each class cannot be had from whole ones."""
    rng = np.random.default_rng(0)
    cut = 0
    for _ in range(200):
        images = rng.integers(1, 8, rng.integers(20, 60))
        patient = np.repeat(np.arange(len(images)), images)
        pool = pd.DataFrame({"patient": patient, "y": (rng.random(len(patient)) < rng.uniform(0.1, 0.9)).astype(int)})
        wanted = int(rng.integers(2, len(pool)))
        chosen, left_out = whole_patients(pool, wanted, balanced)
        assert len(set(chosen)) == len(chosen) == wanted and not set(chosen) & set(left_out)
        in_part, outside = set(pool["patient"][chosen]), pool.drop(index=[*chosen, *left_out])
        assert in_part.isdisjoint(outside["patient"]), "nobody is in two parts"
        assert pool["patient"][left_out].nunique() <= 1
        cut += bool(left_out)
    assert cut > 20


def test_without_balance_the_labeled_images_have_the_share_of_positives_of_the_hospital() -> None:
    rng = np.random.default_rng(1)
    index = index_of(400)
    index["label.Edema"] = (rng.random(len(index)) < 0.2).astype("float32")
    cut = cut_of(by="race", clients=RACES, target="A", label="Edema", balanced=False, labeled=60)
    for frame in build(index, cut).manifests.values():
        adapt = frame[frame["split"] == "adapt"]
        assert len(adapt) == 60 and adapt["y"].mean() == pytest.approx(frame["y"].mean(), abs=2 / 60)
        assert frame[frame["split"] == "train"]["y"].mean() == pytest.approx(frame["y"].mean(), abs=0.02)


@pytest.mark.parametrize("keys", [{}, {"balanced": False}, {"per_class": 20}])
def test_every_row_of_a_hospital_is_an_image_or_left_out_for_a_reason(keys: dict) -> None:
    index = index_of(200)
    cohort = build(index, cut_of(by="race", clients=RACES, target="A", label="Edema", labeled=10, **keys))
    for client, race in RACES.items():
        left = cohort.left_out[client]
        assert cohort.rows[client] == int((index["race"] == race).sum()), "a row that belongs to it"
        assert cohort.rows[client] == len(cohort.manifests[client]) + sum(left.values()) and min(left.values()) >= 0
        usable = index["label.Edema"].isin((0, 1)) & (index["race"] == race)
        assert left["without a usable label"] == cohort.rows[client] - int(usable.sum())


def test_too_few_labeled_images_because_of_balance_say_so() -> None:
    index = index_of(200)
    index["label.Edema"] = (np.arange(len(index)) % 9 == 0).astype("float32")
    cut = {"by": "race", "clients": RACES, "target": "A", "label": "Edema"}
    keep = build(index, cut_of(**cut, balanced=False, labeled=20)).manifests["A"]
    labeled = int((keep["split"] != "test").sum() * 0.6)
    with pytest.raises(FdamedError, match="its classes are balanced") as raised:
        build(index, cut_of(**cut, labeled=labeled))
    assert raised.value.fix.startswith("Set split.balanced: false")
    frame = build(index, cut_of(**cut, labeled=labeled, balanced=False)).manifests["A"]
    assert int((frame["split"] == "adapt").sum()) == labeled, "the cure helps"


def test_shares_are_the_probabilities_of_patients_who_fit_everywhere() -> None:
    n = 4000
    keys = Keys(
        0, np.arange(n), np.arange(n, dtype="uint64") * np.uint64(2654435761), np.array([str(i) for i in range(n)])
    )
    truth = {p: np.tile(np.array([1, 0], dtype="float32"), n // 2) for p in CONDITIONS}
    placed = one_place(truth, keys, cut_of(shares={"Lesion": 3.0}, balanced=False))
    share = {p: float((~np.isnan(y)).mean()) for p, y in placed.items()}
    assert share["Lesion"] == pytest.approx(0.6, abs=0.03)
    assert share["Edema"] == pytest.approx(0.2, abs=0.03)
    assert sum(share.values()) == 1.0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"test": 1.0}, r"test"),
        ({"val": 1}, r"val"),
        ({"val": 0.5, "test": 0.4}, "leave nothing to train on"),
        ({"test": "rest"}, "`test: rest` and `per_class: all`"),
    ],
)
def test_sizes_that_mean_nothing_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        cut_of(**keys)


def test_a_share_of_zero_or_less_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"shares\.Edema"):
        cut_of(shares={"Edema": 0.0})


def test_patients_who_fit_one_hospital_go_there() -> None:
    index = index_of()
    cut = cut_of(by="race", clients={"A": "Asian", "W": "White"}, target="A", label="Edema")
    for client, frame in build(index, cut).manifests.items():
        assert set(frame["race"]) == {cut.clients[client]}


def test_expressions_split_and_where_filters() -> None:
    clients = {"Young": "age < 50", "Old": "age >= 50 and sex == 'F'"}
    cut = cut_of(by="expression", clients=clients, target="Old", label="Edema", where="view == 'frontal'", labeled=6)
    manifests = build(index_of(), cut).manifests
    assert manifests["Young"]["age"].max() < 50
    assert manifests["Old"]["age"].min() >= 50
    assert set(manifests["Old"]["sex"]) == {"F"}
    assert set(manifests["Old"]["view"]) == {"frontal"}
    assert check_manifests(manifests).patients_in_two_clients == 0


def test_the_manifest_has_no_label_columns() -> None:
    frame = build(index_of(), cut_of()).manifests["Edema"]
    assert not [c for c in frame.columns if c.startswith("label.")]
    assert str(frame["y"].dtype) == "int8"


# --- what cannot be cut ---

RACE = {"by": "race", "label": "Edema", "clients": {"A": "Asian", "W": "White"}, "target": "A"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"clients": {"A": "Edema", "B": "Oedema"}, "target": "A"},
            "unknown label `Oedema` (did you mean `Edema`?) for B",
        ),
        (
            {**RACE, "clients": {"A": "Asiann", "W": "White"}},
            "no row has race = 'Asiann' (did you mean `Asian`?), which A asks",
        ),
        ({**RACE, "by": "rase"}, "cannot split by `rase` (did you mean `race`?)"),
        ({**RACE, "by": "age"}, "cannot split by `age`"),
        ({**RACE, "by": "patient"}, "cannot split by `patient`"),
        ({**RACE, "label": "Oedema"}, "unknown label `Oedema`"),
        ({"where": "age > 300"}, "no row matches"),
        ({"labeled": 5000}, "Edema has"),
        ({"where": "label['Edema'] == 1"}, "Edema has no negative row for Edema"),
        ({"where": "isna(label['Edema'])"}, "Edema is empty"),
        ({**RACE, "where": "race == 'White'"}, "race is 'Asian': split.where leaves none of its rows"),
        ({**RACE, "label": "No Finding"}, "A has no negative row for No Finding"),
        ({**RACE, "rule": "reference"}, "defined for a split by condition"),
    ],
)
def test_what_cannot_be_split_is_one_error_that_names_the_client(keys: dict[str, Any], message: str) -> None:
    index = index_of()
    if keys.get("label") == "No Finding":
        labels = [c for c in index.columns if c.startswith("label.")]
        index.loc[:, [c for c in labels if c != "label.No Finding"]] = np.nan
        index = index.astype(dict.fromkeys(labels, "float32"))
    with pytest.raises(FdamedError) as error:
        build(index, cut_of(**keys))
    assert message in error.value.what


def test_small_counts_are_not_shown_when_a_value_is_unknown() -> None:
    index = index_of()
    index.loc[:4, "race"] = "Rare"
    with pytest.raises(FdamedError) as error:
        truths(index, cut_of(**{**RACE, "clients": {"A": "Asian", "W": "Wite"}}), 11)
    assert "Rare" not in error.value.fix and "rarer ones" in error.value.fix
    assert "Asian" in error.value.fix and not any(c.isdigit() for c in error.value.fix), "a site's rows are its images"


def test_a_class_that_no_training_image_has_is_an_error() -> None:
    frame = pd.DataFrame({"image": [f"{i}.jpg" for i in range(60)], "patient": [f"p{i}" for i in range(60)]})
    frame["study"], frame["race"] = frame["image"], ["Asian", "White"] * 30
    frame["label.Edema"] = [1, 1, 0, 0] + [0] * 56
    cut = cut_of(**RACE, balanced=False, labeled=2, val=0.0, test=0.85)
    with pytest.raises(FdamedError, match=r"no (positive|negative) image in its|has no image left|too few"):
        build(as_index(frame), cut)


# --- the published rule ---


def test_the_reference_rule_takes_the_first_blank_rows_and_splits_by_image() -> None:
    index = index_of()
    cohort = build(index, cut_of(rule="reference", labeled=10))
    for client, condition in CONDITIONS.items():
        frame = cohort.manifests[client]
        raw = index[f"label.{condition}"]
        yes = index["image"][raw == 1]
        no = index["image"][raw.isna()][: len(yes)]
        assert set(frame.loc[frame["y"] == 1, "image"]) == set(yes)
        assert set(frame.loc[frame["y"] == 0, "image"]) == set(no)
        trained = int((frame["split"] != "test").sum())
        assert trained == len(frame) * 4 // 5
        assert (frame["split"] == "adapt").sum() == 10
    leakage = check_manifests(cohort.manifests, "reference")
    assert leakage.patients_in_two_splits > 0
    assert leakage.patients_in_two_clients > 0
    assert "LEAKS" in cohort.notes[0]
    with pytest.raises(FdamedError):
        check_manifests(cohort.manifests)


def test_the_reference_rule_can_be_capped_as_in_its_runs() -> None:
    frame = build(index_of(), cut_of(rule="reference", labeled=10, per_class=50, val=0)).manifests["Edema"]
    assert (frame["split"] == "test").sum() == 25
    assert (frame["split"] != "test").sum() == 100


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), patients=st.integers(2, 60), labeled=st.integers(2, 12))
def test_any_index_gives_disjoint_hospitals_or_one_error(seed: int, patients: int, labeled: int) -> None:
    index = index_of(patients, seed)
    cut = cut_of(labeled=labeled, seed=seed)
    try:
        cohort = build(index, cut)
    except FdamedError:
        return
    assert check_manifests(cohort.manifests) == Leakage(0, 0, 0)
    target = cohort.manifests["Edema"]
    assert (target["split"] == "adapt").sum() == labeled
    shuffled = index.sample(frac=1, random_state=1).reset_index(drop=True)
    assert fate(build(shuffled, cut).manifests) == fate(cohort.manifests)
