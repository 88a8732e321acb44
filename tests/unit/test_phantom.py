"""The phantoms' population, anatomy, findings and scanners."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fdamed.config.datasets import Phantom
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.data.phantom import LAYOUTS, write
from fdamed.data.phantom import findings as f
from fdamed.data.phantom.population import Cohort, Shift, _shares, draw_cohort
from fdamed.data.phantom.primitives import path_length, step
from fdamed.data.phantom.projection import frontal, lateral
from fdamed.data.phantom.render import render
from fdamed.data.phantom.scanner import FULL, expose, grain
from fdamed.data.vocabulary import parse_race

SMALL = Phantom(patients=300, size=64)


def cohort_of(phantom: Phantom, layout: str, **changes: object) -> Cohort:
    return draw_cohort(phantom, replace(LAYOUTS[layout], **changes))  # type: ignore[arg-type]


def test_a_step_is_0_half_and_1_at_the_ends_and_middle_of_its_width() -> None:
    at = np.array([-0.5, 0.0, 0.5], dtype=np.float32)
    assert step(at, 1.0).tolist() == [0.0, 0.5, 1.0]
    assert step(at, 1.0).dtype == np.float32


def test_the_path_through_a_ball_is_longest_in_the_middle_and_zero_outside() -> None:
    q = np.array([0.0, 0.75, 1.0, 4.0], dtype=np.float32)
    assert path_length(q).tolist() == [1.0, 0.5, 0.0, 0.0]


def test_patients_are_shared_out_by_weight_and_no_domain_is_empty() -> None:
    # 10 * (16203, 3717, 560, 557, 501) / 21538 = 7.52, 1.73, .26, .26, .23
    shares = np.bincount(_shares(10, np.array([16203.0, 3717.0, 560.0, 557.0, 501.0])))
    assert shares.tolist() == [6, 1, 1, 1, 1]
    assert np.bincount(_shares(8, np.array([2.0, 1.0, 1.0]))).tolist() == [4, 2, 2]


def test_the_published_midrc_proportions_and_positive_rates_come_out() -> None:
    # 2154 * (16203, 3717, 560, 557, 501) / 21538 = 1620.5, 371.7, 56.0, 55.7, 50.1
    cohort = cohort_of(Phantom(patients=2154, size=64), "midrc")
    first = cohort.images.drop_duplicates("patient")
    states = list(cohort.shifts)
    assert first["domain"].value_counts()[states].tolist() == [1620, 372, 56, 56, 50]
    rates = first.groupby("domain")["positive"].mean()[states].tolist()
    assert rates == pytest.approx([0.62, 0.54, 0.28, 0.62, 0.16], abs=0.01)


def tied(cohort: Cohort, domain: str, values: np.ndarray) -> float:  # type: ignore[type-arg]
    """Correlation of the label with the values over the patients of a domain, at their first study."""
    first = ((cohort.images["study"] == 1) & (cohort.images["view"] == 1) & (cohort.images["domain"] == domain)).array
    return float(np.corrcoef(cohort.images["positive"][first], values[first])[0, 1])


def test_a_correlation_has_the_sign_and_size_asked_for_at_its_own_client_alone() -> None:
    asked = {"NC": {"sex": 0.3, "race": -0.2}, "IL": {"sex": -0.3, "age": 0.25}}
    cohort = cohort_of(Phantom(patients=6000, size=64, correlation=asked), "midrc")
    images = cohort.images
    male, age, white = images["male"].to_numpy(), images["age"].to_numpy(), (images["race"] == "White").to_numpy()
    assert tied(cohort, "NC", male) == pytest.approx(0.3, abs=0.04)
    assert tied(cohort, "NC", white) == pytest.approx(-0.2, abs=0.04)
    assert tied(cohort, "NC", age) == pytest.approx(0, abs=0.06)
    assert tied(cohort, "IL", male) == pytest.approx(-0.3, abs=0.02)
    assert tied(cohort, "IL", age) == pytest.approx(0.25, abs=0.02)
    assert tied(cohort, "IL", white) == pytest.approx(0, abs=0.04)
    rates = images.drop_duplicates("patient").groupby("domain")["positive"].mean()
    assert rates[["IL", "NC"]].tolist() == pytest.approx([0.62, 0.54], abs=0.005)


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_without_a_correlation_neither_sex_nor_age_nor_position_predicts_who_is_ill(layout: str) -> None:
    cohort = cohort_of(Phantom(patients=6000, size=64), layout)
    for domain in list(cohort.shifts)[:2]:
        for name in ("male", "age", "supine"):
            assert tied(cohort, domain, cohort.images[name].to_numpy()) == pytest.approx(0, abs=0.08)


@pytest.mark.parametrize(
    ("layout", "correlation", "message"),
    [
        ("chexpert", {"IL": {"sex": 0.1}}, "no client 'IL'"),
        ("midrc", {"TX": {"sex": 0.5}}, "0.5 with sex is impossible with 16% positives"),
        ("mimic", {"White": {"race": 0.1}}, "0.1 with race is impossible"),  # all of its patients have one race
    ],
)
def test_an_impossible_correlation_is_refused(layout: str, correlation: object, message: str) -> None:
    with pytest.raises(FdamedError, match=message):
        cohort_of(Phantom(patients=2000, correlation=correlation), layout)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def thumbnails() -> dict[str, tuple[Cohort, np.ndarray, np.ndarray]]:  # type: ignore[type-arg]
    """Layout -> cohort, rows of one frontal image for each patient, and these at 32 x 32, standardized."""
    out = {}
    for layout in LAYOUTS:
        cohort = cohort_of(Phantom(patients=900, size=64), layout)
        images = cohort.images
        rows = np.flatnonzero(~images["lateral"] & (images["study"] == 1) & (images["view"] == 1))
        small = [Image.fromarray(p.astype(np.float32)).resize((32, 32)) for _, p in render(cohort, rows)]
        x = np.stack([np.asarray(image).ravel() for image in small])
        out[layout] = cohort, rows, (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    return out


@pytest.mark.parametrize(
    ("layout", "sex", "age", "race"),  # AUC on the last third; measured 0.94 0.82 0.79, 0.95 0.89 0.91, 0.90 0.72 0.77
    [("chexpert", 0.85, 0.72, 0.7), ("mimic", 0.85, 0.8, 0.8), ("midrc", 0.8, 0.64, 0.68)],
)
def test_logistic_regression_on_1024_pixels_sees_sex_age_and_race(thumbnails, layout, sex, age, race) -> None:  # type: ignore[no-untyped-def]
    cohort, rows, x = thumbnails[layout]
    images = cohort.images.iloc[rows]
    races = np.array([parse_race(name) or "" for name in images["race"]])
    tasks = {
        "male": (images["male"], sex),
        "old": (images["age"] > 60, age),
        "White": (races == "White", race),
        "Black": (races == "Black", race),
    }
    learned = 2 * len(x) // 3
    for name, (truth, least) in tasks.items():
        y = np.asarray(truth)
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.003, max_iter=2000))
        scores = model.fit(x[:learned], y[:learned]).predict_proba(x[learned:])[:, 1]
        assert roc_auc_score(y[learned:], scores) > least, name


def test_at_concept_distance_0_every_client_draws_the_same_finding_and_at_1_its_own() -> None:
    for layout, shared in (("chexpert", f.EDEMA), ("midrc", f.COVID)):
        same, own = (cohort_of(Phantom(patients=300, size=64, concept=c), layout) for c in (0.0, 1.0))
        ill = same.images["positive"].to_numpy()
        assert (same.drawn[ill, f.KINDS.index(shared)] == 1).all()
        assert (same.drawn[~ill, f.KINDS.index(shared)] == 0).all()
        looks = {
            d: f.KINDS[int(own.drawn[(own.images["domain"] == d) & ill].mean(axis=0).argmax())] for d in own.shifts
        }
        assert len(set(looks.values())) == 5
        assert (same.shows == own.shows).all()  # what the reports say does not change


def test_half_way_a_client_draws_half_of_both_looks() -> None:
    cohort = cohort_of(Phantom(patients=300, size=64, concept=0.5), "chexpert")
    ill = (cohort.images["domain"] == f.LESION) & cohort.images["positive"]
    drawn = cohort.drawn[ill.to_numpy()][:, [f.KINDS.index(f.LESION), f.KINDS.index(f.EDEMA)]]
    assert (drawn >= 0.5).all() and drawn.mean() < 0.6


def test_scanner_0_is_one_scanner_and_noise_is_added_to_all() -> None:
    same = cohort_of(Phantom(patients=50, scanner=0.0, noise=0.4), "midrc").shifts.values()
    assert {(s.gamma, s.exposure, s.blur, s.position, s.noise) for s in same} == {(0, 0, 0, 0, 0.4)}
    twice = cohort_of(Phantom(patients=50, scanner=2.0), "midrc").shifts["IL"]
    assert (twice.gamma, twice.exposure, twice.prevalence) == (-1.6, 1.8, 0.62)


def test_label_noise_is_the_share_of_patients_whose_images_show_the_opposite_of_their_label() -> None:
    plain, noisy = (cohort_of(Phantom(patients=3000, size=64, label_noise=n), "midrc") for n in (0.0, 0.2))
    assert plain.images.equals(noisy.images)
    wrong = (noisy.drawn[:, f.KINDS.index(f.COVID)] > 0) != noisy.images["positive"]
    at_il = noisy.images["domain"] == "IL"  # elsewhere another disease looks like this one
    assert wrong[at_il].groupby(noisy.images["patient"]).nunique().max() == 1
    assert wrong[at_il].mean() == pytest.approx(0.2, abs=0.03)


def test_a_layout_without_phantoms_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FdamedError, match="nih"):
        write(SMALL, "nih", tmp_path)


def test_an_image_shows_its_domains_finding_exactly_when_it_is_positive() -> None:
    cohort = cohort_of(SMALL, "chexpert")
    own = [f.KINDS.index(d) for d in cohort.images["domain"]]
    assert (cohort.shows[np.arange(len(cohort)), own] == cohort.images["positive"]).all()


def test_some_negatives_of_a_condition_show_another_condition_and_some_show_none() -> None:
    cohort = cohort_of(SMALL, "chexpert")
    lungs = cohort.shows[:, :5].any(axis=1)[~cohort.images["positive"]]
    assert 0.15 < lungs.mean() < 0.45


def test_no_finding_means_that_nothing_but_devices_is_drawn() -> None:
    cohort = cohort_of(SMALL, "mimic")
    diseases = [i for i, kind in enumerate(f.KINDS) if kind != f.DEVICES]
    assert (cohort.shows[:, diseases].any(axis=1) == cohort.images["positive"]).all()


def test_sex_age_and_domain_of_a_patient_do_not_change_between_images() -> None:
    cohort = cohort_of(SMALL, "chexpert")
    for values in (cohort.images["male"], cohort.images["domain"], cohort.chest["tree"], cohort.chest["width"]):
        assert len({(p, v) for p, v in zip(cohort.images["patient"].tolist(), values.tolist(), strict=True)}) == 300
    assert len(cohort) > 450


@pytest.mark.parametrize("project", [frontal, lateral])
def test_lungs_are_darker_than_the_belly_and_air_is_nothing(project) -> None:  # type: ignore[no-untyped-def]
    scenes = [project(cohort_of(SMALL, "chexpert").chest_of(row), 96) for row in range(20)]
    assert all(s.density.dtype == s.lung.dtype == np.float32 for s in scenes)
    assert min(s.density.min() for s in scenes) >= 0
    density, lung = (np.stack([getattr(s, name) for s in scenes]) for name in ("density", "lung"))
    belly = np.stack([(np.abs(s.x) < 0.4) & (s.y > 0.62) for s in scenes])
    assert density[lung > 0.8].mean() < 0.75 * density[belly].mean()
    assert 0.08 < (lung > 0.5).mean() < 0.5


def test_a_male_and_a_female_chest_differ_in_breast_and_width() -> None:
    cohort = cohort_of(SMALL, "chexpert")
    chest = cohort.chest
    assert (chest["breast"][cohort.images["male"]] == 0).all()
    assert (chest["breast"][~cohort.images["male"]] > 0).all()
    assert chest["width"][cohort.images["male"]].mean() > chest["width"][~cohort.images["male"]].mean() + 0.02


@pytest.mark.parametrize("kind", [k for k in f.KINDS if k != f.CARDIOMEGALY])
def test_every_finding_adds_density_and_most_of_it_in_the_lungs(kind: str) -> None:
    chest = cohort_of(SMALL, "chexpert").chest_of(3)
    scene = frontal(chest, 128)
    before = scene.density.copy()
    f.draw(scene, kind, f.place(0, 5, kind), 1.0)
    added = scene.density - before
    assert added.min() >= 0
    assert added.max() > 0.05
    if kind != f.DEVICES:
        assert added[scene.lung > 0.05].sum() > 0.8 * added.sum()


def test_edema_and_covid_are_on_both_sides_and_pneumonia_on_one() -> None:
    chest = cohort_of(SMALL, "chexpert").chest_of(3)
    for kind, both in ((f.EDEMA, True), (f.COVID, True), (f.PNEUMONIA, False), (f.CONSOLIDATION, False)):
        scene = frontal(chest, 128)
        before = scene.density.copy()
        f.draw(scene, kind, f.place(0, 5, kind), 1.0)
        added = scene.density - before
        sides = [added[scene.x < -0.05].sum(), added[scene.x > 0.05].sum()]
        assert bool(min(sides) > 0.25 * max(sides)) is both, kind


def test_atelectasis_raises_the_diaphragm_of_its_own_side() -> None:
    cohort = cohort_of(SMALL, "chexpert")
    collapsed = cohort.shows[:, f.KINDS.index(f.ATELECTASIS)]
    lift = np.stack([cohort.chest["lift_right"], cohort.chest["lift_left"]])
    assert ((lift > 0).sum(axis=0) == collapsed).all()
    row = int(np.flatnonzero(collapsed)[0])
    side = f.side_of(f.place(cohort.seed, int(cohort.images["patient"][row]), f.ATELECTASIS))
    assert bool(lift[0, row] > 0) is (side < 0)


def test_noise_has_mean_0_and_deviation_1() -> None:
    noise = grain(stream(0, "noise").numpy, 256)
    assert noise.mean() == pytest.approx(0, abs=0.02)
    assert noise.std() == pytest.approx(1, abs=0.02)


def _exposed(shift: Shift) -> np.ndarray:  # type: ignore[type-arg]
    chest = cohort_of(SMALL, "chexpert").chest_of(3)
    density = frontal(chest, 128).density
    return expose(density, 128, shift, 0.0, stream(0, "x").numpy, 0).astype(np.float64)


def test_each_scanner_knob_does_what_its_name_says() -> None:
    plain = _exposed(Shift())
    assert 0 <= plain.min() <= plain.max() <= FULL
    assert _exposed(Shift(exposure=1.0)).mean() > plain.mean() + 200
    assert _exposed(Shift(gamma=1.0)).mean() < plain.mean() - 200

    def detail(image: np.ndarray) -> float:  # type: ignore[type-arg]
        return float(np.abs(np.diff(image, axis=1)).mean())

    assert detail(_exposed(Shift(noise=1.0))) > 1.5 * detail(plain)
    assert detail(_exposed(Shift(blur=1.5))) < 0.95 * detail(plain)


def test_position_scatters_the_patients() -> None:
    still, loose = (
        cohort_of(Phantom(patients=200), "chexpert", domains={f.EDEMA: Shift(position=p)}).chest["shift_x"].std()
        for p in (0.0, 1.0)
    )
    assert loose > 2.5 * still


def test_an_image_depends_on_its_own_row_alone() -> None:
    cohort = cohort_of(SMALL, "chexpert")
    alone = dict(render(cohort, np.array([7])))[7]
    among = dict(render(cohort, np.arange(5, 9)))[7]
    assert (alone == among).all()
    other = dict(render(cohort_of(SMALL.model_copy(update={"seed": 1}), "chexpert"), np.array([7])))[7]
    assert alone.shape != other.shape or (alone != other).any()


def test_subtlety_makes_findings_fainter_and_moves_nothing_else() -> None:
    loud, faint = (cohort_of(Phantom(patients=50, size=64, subtlety=s), "chexpert") for s in (0.0, 1.0))
    assert np.allclose(loud.images["strength"] / faint.images["strength"], 10.0)
    assert (loud.shows == faint.shows).all()
    assert (loud.chest["width"] == faint.chest["width"]).all()


def test_no_two_patients_look_alike() -> None:
    cohort = cohort_of(SMALL, "chexpert")
    rows = np.flatnonzero(~cohort.images["lateral"] & (cohort.images["view"] == 1) & (cohort.images["crop"] == 0))[:60]
    small = np.stack([p.reshape(16, 4, 16, 4).mean(axis=(1, 3)).ravel() for _, p in render(cohort, rows)])
    apart = np.abs(small[:, None] - small[None]).mean(axis=2)
    patient = cohort.images["patient"].to_numpy()[rows]
    apart[patient[:, None] == patient[None]] = np.inf
    assert apart.min() > 0.01 * FULL
