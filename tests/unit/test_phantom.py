"""The phantoms' population, anatomy, findings and scanners."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

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


def test_a_domains_prevalence_and_its_correlation_with_sex_are_those_of_its_shift() -> None:
    shift = Shift(prevalence=0.3, sex=0.8)
    cohort = cohort_of(Phantom(patients=1000, size=64), "chexpert", domains={f.EDEMA: shift, f.PNEUMONIA: Shift()})
    first = (cohort.images["study"] == 1) & (cohort.images["view"] == 1)
    edema, other = first & (cohort.images["domain"] == f.EDEMA), first & (cohort.images["domain"] == f.PNEUMONIA)
    assert cohort.images["positive"][edema].mean() == pytest.approx(0.3)
    assert np.corrcoef(cohort.images["positive"][edema], cohort.images["male"][edema])[0, 1] > 0.45
    assert abs(np.corrcoef(cohort.images["positive"][other], cohort.images["male"][other])[0, 1]) < 0.15


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
    assert np.allclose(loud.images["strength"] / faint.images["strength"], 3.0)
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
