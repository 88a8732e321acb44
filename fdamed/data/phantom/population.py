"""Patients, their studies and images, drawn before any pixel; and what distinguishes the layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fdamed.config.datasets import Phantom
from fdamed.core.rng import stream
from fdamed.data.phantom.anatomy import Chest, draw_chests
from fdamed.data.phantom.primitives import Flags, Numbers, Reals, Words

Shows = Callable[[np.random.Generator, Words, Flags], Flags]
"""Draws what the studies show: (rng, domain of each study, positive) -> (studies, KINDS)."""


@dataclass(frozen=True)
class Shift:
    """How a domain differs from the reference scanner, for which every value is 0."""

    gamma: float = 0.0
    exposure: float = 0.0
    noise: float = 0.0
    blur: float = 0.0
    position: float = 0.0
    prevalence: float = 0.5
    sex: float = 0.0
    """Correlation of the finding with male sex."""
    age: float = 0.0
    """Correlation of the finding with old age."""
    weight: float = 1.0
    """Relative number of patients."""


@dataclass(frozen=True)
class Layout:
    """The phantom of one data set: its domains, the findings of its studies, and its files."""

    name: str
    title: str
    domains: Mapping[str, Shift]
    shows: Shows
    write: Callable[[Cohort, Path], None]
    change: float = 0.12
    """Probability that a later study's label differs from the first."""


@dataclass(frozen=True)
class Cohort:
    """Everything about the images except their pixels."""

    seed: int
    size: int
    shifts: Mapping[str, Shift]
    """Of each domain."""
    images: pd.DataFrame
    """One row per image: domain, patient, study (number within the patient, from 1), view (within the study, from 1),
    study_index (within the cohort, from 0), lateral, supine, male, age, positive (the study's main label), strength (of
    its findings), crop (0: square, 1: landscape, 2: portrait), marker (0: none, 1: L, 2: R)."""
    shows: Flags
    """(images, KINDS): what is drawn."""
    chest: dict[str, NDArray[np.float32]]
    """The body and its position (anatomy.py)."""

    def __len__(self) -> int:
        return len(self.images)

    @property
    def patients(self) -> int:
        return int(self.images["patient"].iloc[-1]) + 1

    def chest_of(self, row: int) -> Chest:
        return Chest(**{name: values[row] for name, values in self.chest.items()})


def draw_cohort(phantom: Phantom, layout: Layout) -> Cohort:
    """Draw a whole cohort. Every group of numbers has its own stream, so that one knob does not change the others."""
    names, shifts = np.array(list(layout.domains), dtype=object), tuple(layout.domains.values())
    people, seed = phantom.patients, stream(phantom.seed, layout.name).key

    def group(name: str) -> np.random.Generator:
        return stream(phantom.seed, layout.name, name).numpy

    # Patients.
    rng = group("patients")
    domain = _shares(people, np.array([s.weight for s in shifts]))
    rng.shuffle(domain)
    male = rng.random(people) < 0.55
    age = np.clip(rng.normal(60, 17, people), 18, 90).astype(np.int64)
    ill = _ill(group("illness"), domain, shifts, male, age)

    # Studies: a later one may show that the patient fell ill or recovered.
    rng = group("studies")
    owner, number = repeated(np.minimum(rng.geometric(0.62, people), 6))
    positive = ill[owner] ^ ((number > 0) & (rng.random(len(owner)) < layout.change))
    shows = layout.shows(group("findings"), names[domain[owner]], positive)
    supine = rng.random(len(owner)) < np.clip(0.55 + 0.25 * positive + 0.003 * (age[owner] - 60), 0.1, 0.92)

    # Images: standing patients are often seen from the side as well.
    image, view = repeated(1 + (rng.random(len(owner)) < np.where(supine, 0.10, 0.50)))
    lateral = (view == 1) & ~(supine[image] & (rng.random(len(image)) < 0.6))
    who = owner[image]
    strength = np.exp(rng.normal(0, 0.22, len(image))) * (1.35 - 0.9 * phantom.subtlety)
    position = np.array([s.position for s in shifts])[domain[who]]
    images = {
        "domain": names[domain[who]],
        "patient": who,
        "study": number[image] + 1,
        "view": view + 1,
        "study_index": image,
        "lateral": lateral,
        "supine": supine[image],
        "male": male[who],
        "age": np.minimum(age[who] + number[image], 90),
        "positive": positive[image],
        "strength": strength,
        "crop": rng.choice(3, len(image), p=(0.4, 0.35, 0.25)),
        "marker": rng.choice(3, len(image), p=(0.25, 0.45, 0.30)),
    }
    chest = draw_chests(group("anatomy"), seed, who, male, age, supine[image], shows[image], position)
    return Cohort(seed, phantom.size, layout.domains, pd.DataFrame(images), shows[image], chest)


def repeated(count: Numbers) -> tuple[Numbers, Numbers]:
    """For `count[i]` things of each i: the i of each thing, and its number among those of i, from 0."""
    owner = np.repeat(np.arange(len(count)), count)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)


def words(rng: np.random.Generator, shares: Mapping[str, float], n: int) -> Words:
    """n words drawn by their shares."""
    p = np.array(list(shares.values()))
    return np.array(list(shares), dtype=object)[rng.choice(len(p), n, p=p / p.sum())]


def _shares(total: int, weights: Reals) -> Numbers:
    """`total` domain numbers in proportion to the weights, by largest remainder, none of them empty."""
    exact = weights / weights.sum() * total
    count = np.maximum(np.floor(exact).astype(np.int64), 1)
    order = np.argsort(-(exact - np.floor(exact)), kind="stable")
    count[order[: max(0, total - int(count.sum()))]] += 1
    while count.sum() > total:
        count[np.argmax(count)] -= 1
    return np.repeat(np.arange(len(weights)), count)


def _ill(rng: np.random.Generator, domain: Numbers, shifts: tuple[Shift, ...], male: Flags, age: Numbers) -> Flags:
    """Who is ill: each domain's prevalence, correlated with sex and age as configured."""
    ill = np.zeros(len(domain), dtype=bool)
    noise = rng.standard_normal(len(domain))
    for d, shift in enumerate(shifts):
        rows = np.flatnonzero(domain == d)
        rest = np.sqrt(max(0.0, 1 - shift.sex**2 - shift.age**2))
        score = shift.sex * _standard(male[rows]) + shift.age * _standard(age[rows]) + rest * noise[rows]
        ill[rows[np.argsort(-score, kind="stable")[: round(shift.prevalence * len(rows))]]] = True
    return ill


def _standard(values: NDArray[np.generic]) -> Reals:
    numbers: Reals = values.astype(np.float64)
    numbers -= numbers.mean()
    return numbers / float(numbers.std() or 1.0)
