"""Patients, their studies, images and findings, drawn before any pixel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdamed.config.datasets import Phantom, Shift
from fdamed.core.rng import stream
from fdamed.data.phantom import findings as f
from fdamed.data.phantom.anatomy import Chest
from fdamed.data.phantom.primitives import TREES
from fdamed.data.phantom.profiles import domains

Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Reals = NDArray[np.float64]
Shows = Callable[[np.random.Generator, Numbers, Flags, tuple[str, ...]], Flags]
"""Draws what the studies show: (rng, domain, positive, names of the domains) -> (studies, KINDS)."""


@dataclass(frozen=True)
class Cohort:
    """Everything about the images except their pixels; arrays have one entry an image unless said."""

    seed: int
    size: int
    names: tuple[str, ...]
    looks: tuple[Shift, ...]
    """One a domain."""
    domain: Numbers
    patient: Numbers
    study: Numbers
    """Number within the patient, from 1."""
    view: Numbers
    """Number within the study, from 1."""
    study_index: Numbers
    """Number within the cohort, from 0."""
    lateral: Flags
    supine: Flags
    male: Flags
    age: Numbers
    positive: Flags
    """The study's main label."""
    shows: Flags
    """(n, KINDS): what is drawn."""
    strength: Reals
    crop: Numbers
    """0: square, 1: landscape, 2: portrait."""
    marker: Numbers
    chest: Chest

    def __len__(self) -> int:
        return len(self.patient)


def draw_cohort(phantom: Phantom, layout: str, shows: Shows, change: float = 0.12) -> Cohort:
    """Draw a whole cohort; `change` is the probability that a later study's label differs from the first.

    Every group of numbers has its own stream, so that one knob does not move the others.
    """
    shifts = domains(phantom, layout)
    names, looks = tuple(shifts), tuple(shifts.values())
    seed = phantom.seed

    # Patients.
    rng = stream(seed, layout, "patients").numpy
    domain = _shares(phantom.patients, np.array([s.weight for s in looks]))
    rng.shuffle(domain)
    male = rng.random(phantom.patients) < 0.55
    age = np.clip(rng.normal(60, 17, phantom.patients), 18, 90).astype(np.int64)
    ill = _ill(stream(seed, layout, "illness").numpy, domain, looks, male, age)

    # Studies: a later one may show that the patient fell ill or recovered.
    rng = stream(seed, layout, "studies").numpy
    count = np.minimum(rng.geometric(0.62, phantom.patients), 6)
    owner = np.repeat(np.arange(phantom.patients), count)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count) + 1
    positive = ill[owner] ^ ((number > 1) & (rng.random(len(owner)) < change))
    drawn = shows(stream(seed, layout, "findings").numpy, domain[owner], positive, names)
    supine = rng.random(len(owner)) < np.clip(0.55 + 0.25 * positive + 0.003 * (age[owner] - 60), 0.1, 0.92)

    # Images: standing patients are often seen from the side as well.
    chance = rng.random(len(owner))
    views = np.where(supine, 1 + (chance < 0.10), 1 + (chance < 0.50))
    image = np.repeat(np.arange(len(owner)), views)
    view = np.arange(len(image)) - np.repeat(np.cumsum(views) - views, views) + 1
    lateral = (view == 2) & ~(supine[image] & (rng.random(len(image)) < 0.6))
    who = owner[image]
    strong = np.exp(rng.normal(0, 0.22, len(image))) * (1.35 - 0.9 * phantom.subtlety)
    position = np.array([s.position for s in looks])[domain[who]]
    chest = _chests(
        stream(seed, layout, "anatomy").numpy, who, male, age, supine[image], drawn[image], position, (seed, layout)
    )
    return Cohort(
        seed=stream(seed, layout).key,
        size=phantom.size,
        names=names,
        looks=looks,
        domain=domain[who],
        patient=who,
        study=number[image],
        view=view,
        study_index=image,
        lateral=lateral,
        supine=supine[image],
        male=male[who],
        age=np.minimum(age[who] + (number[image] - 1), 90),
        positive=positive[image],
        shows=drawn[image],
        strength=strong,
        crop=rng.choice(3, len(image), p=(0.4, 0.35, 0.25)),
        marker=rng.choice(3, len(image), p=(0.25, 0.45, 0.30)),
        chest=chest,
    )


def _shares(total: int, weights: Reals) -> Numbers:
    """`total` domain numbers in proportion to the weights, by largest remainder, none of them empty."""
    exact = weights / weights.sum() * total
    count = np.maximum(np.floor(exact).astype(np.int64), 1)
    order = np.argsort(-(exact - np.floor(exact)), kind="stable")
    missing = total - int(count.sum())
    if missing > 0:
        count[order[np.arange(missing) % len(order)]] += 1
    while count.sum() > total:
        count[np.argmax(count)] -= 1
    return np.repeat(np.arange(len(weights)), count)


def _ill(rng: np.random.Generator, domain: Numbers, looks: tuple[Shift, ...], male: Flags, age: Numbers) -> Flags:
    """Who is ill: each domain's prevalence, correlated with sex and age as configured."""
    ill = np.zeros(len(domain), dtype=bool)
    chance = rng.standard_normal(len(domain))
    for d, look in enumerate(looks):
        rows = np.flatnonzero(domain == d)
        rest = np.sqrt(max(0.0, 1 - look.sex**2 - look.age**2))
        score = look.sex * _standard(male[rows]) + look.age * _standard(age[rows]) + rest * chance[rows]
        ill[rows[np.argsort(-score, kind="stable")[: round(look.prevalence * len(rows))]]] = True
    return ill


def _standard(values: NDArray[np.generic]) -> Reals:
    numbers = values.astype(np.float64)
    spread = numbers.std()
    return (numbers - numbers.mean()) / spread if spread > 0 else np.zeros(len(numbers))


def _chests(
    rng: np.random.Generator,
    who: Numbers,
    male: Flags,
    age: Numbers,
    supine: Flags,
    shows: Flags,
    position: Reals,
    key: tuple[int, str],
) -> Chest:
    """Body of the patient, seen anew in each image."""
    people, images = len(male), len(who)

    def person(mean: float | Reals, spread: float) -> Reals:
        return (mean + spread * rng.standard_normal(people))[who]

    def image(spread: float | Reals) -> Reals:
        return spread * rng.standard_normal(images)

    old = (age - 50) / 40
    loose = 0.018 + 0.05 * position
    fat = np.abs(person(0.06, 0.05))
    heart = person(np.where(male, 1.0, 0.97) + 0.06 * old, 0.06) + 0.10 * supine + 0.24 * shows[:, _at(f.CARDIOMEGALY)]
    lift = _lift(key, who, shows[:, _at(f.ATELECTASIS)])
    breast = np.clip(person(0.6, 0.25), 0.12, 1.1) * ~male[who]
    values: Mapping[str, Reals] = {
        "male": male[who].astype(np.float64),
        "age": age[who].astype(np.float64),
        "supine": supine.astype(np.float64),
        "shift_x": image(loose),
        "shift_y": image(loose) + 0.08 + 0.05 * position,
        "zoom": np.clip(person(1.16, 0.035) + image(0.012 + 0.04 * position), 0.95, 1.4),
        "tilt": image(0.02 + 0.04 * position + 0.02 * supine),
        "width": person(np.where(male, 0.665, 0.625), 0.03),
        "apex": person(-0.75, 0.03),
        "base": person(np.where(male, 0.37, 0.33), 0.04) - 0.10 * supine + image(0.035),
        "dome": person(0.045, 0.02),
        "lift_right": lift[0],
        "lift_left": lift[1],
        "heart": np.clip(heart, 0.75, 1.6),
        "fat": np.minimum(fat, 0.25),
        "breast": breast,
        "kyphosis": np.clip(person(0.25 + 0.5 * old, 0.2), 0, 1),
        "calcium": np.clip(person(0.1 + 0.6 * old, 0.25), 0, 1),
        "rib_phase": person(0.5, 0.4),
        "rib_space": person(0.155, 0.006),
        "clavicle": person(0.0, 0.025) + image(0.01),
        "vessel": np.clip(person(0.95, 0.15), 0.5, 1.5),
        "arms": np.clip(person(0.35, 0.3), 0, 1),
        "stomach": np.clip(image(0.5) + 0.35, 0, 1),
    }
    trees = rng.integers(0, 2 * TREES, people)[who]
    return Chest(number=trees, **{name: v.astype(np.float32) for name, v in values.items()})


def _at(kind: str) -> int:
    return f.KINDS.index(kind)


def _lift(key: tuple[int, str], who: Numbers, collapsed: Flags) -> tuple[Reals, Reals]:
    """Collapse draws the dome of its own side upwards."""
    right, left = np.zeros(len(who)), np.zeros(len(who))
    seed = stream(*key).key
    for i in np.flatnonzero(collapsed):
        place = f.place(seed, int(who[i]), f.ATELECTASIS)
        side, height = f.side_of(place), 0.06 + 0.07 * ((int(who[i]) * 7919) % 101) / 101
        (right if side < 0 else left)[i] = height
    return right, left
