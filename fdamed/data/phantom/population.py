"""Patients, their studies and images, drawn before any pixel; and what distinguishes the layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fdamed.config.datasets import Correlation, Phantom
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.data.phantom.anatomy import Chest, draw_chests
from fdamed.data.phantom.findings import KINDS
from fdamed.data.phantom.primitives import Flags, Numbers, Reals, Words

Shows = Callable[[np.random.Generator, Words, Flags], Flags]
"""Draws what the studies show: (rng, domain of each study, positive) -> (studies, KINDS)."""


@dataclass(frozen=True)
class Shift:
    """A domain: how its scanner differs from the reference, for which every value is 0, its patients and positives."""

    gamma: float = 0.0
    exposure: float = 0.0
    noise: float = 0.0
    blur: float = 0.0
    position: float = 0.0
    prevalence: float = 0.5
    weight: float = 1.0
    """Relative number of patients."""

    def adjusted(self, phantom: Phantom) -> Shift:
        """With the configured factor and the noise of every image."""
        k = phantom.scanner
        return replace(
            self,
            gamma=k * self.gamma,
            exposure=k * self.exposure,
            noise=k * self.noise + phantom.noise,
            blur=k * self.blur,
            position=k * self.position,
        )


@dataclass(frozen=True)
class Layout:
    """The phantom of one data set: its domains, the findings of its studies, and its files."""

    name: str
    title: str
    domains: Mapping[str, Shift]
    shows: Shows
    write: Callable[[Cohort, Path], None]
    races: Mapping[str, float] = field(default_factory=dict)
    """Races as the tables write them, with their shares; empty: the domain is the race."""
    looks: Mapping[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    """Domain -> finding -> how it looks there at concept distance 0 and 1; others look like themselves."""
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
    study_index (within the cohort, from 0), lateral, supine, male, age, race, positive (the study's main label),
    strength (of its findings), crop (0: square, 1: landscape, 2: portrait), marker (0: none, 1: L, 2: R)."""
    shows: Flags
    """(images, KINDS): what the reports say."""
    drawn: NDArray[np.float32]
    """(images, KINDS): how much of each look is drawn, 0..1."""
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
    domains = {name: shift.adjusted(phantom) for name, shift in layout.domains.items()}
    names, shifts = np.array(list(domains), dtype=object), tuple(domains.values())
    people, seed = phantom.patients, stream(phantom.seed, layout.name).key

    def group(name: str) -> np.random.Generator:
        return stream(phantom.seed, layout.name, name).numpy

    # Patients.
    rng = group("patients")
    domain = _shares(people, np.array([s.weight for s in shifts]))
    rng.shuffle(domain)
    male = rng.random(people) < 0.55
    age = np.clip(rng.normal(60, 17, people), 18, 90).astype(np.int64)
    race = words(group("races"), layout.races, people) if layout.races else names[domain]
    common = max(layout.races, key=lambda r: layout.races[r]) if layout.races else names[0]
    ill = _ill(group("illness"), domain, domains, phantom, {"sex": male, "age": age, "race": race == common})
    mislabeled = group("labels").random(people) < phantom.label_noise

    # Studies: a later one may show that the patient fell ill or recovered.
    rng = group("studies")
    owner, number = repeated(np.minimum(rng.geometric(0.62, people), 6))
    positive = ill[owner] ^ ((number > 0) & (rng.random(len(owner)) < layout.change))
    where = names[domain[owner]]
    shows = layout.shows(group("findings"), where, positive)
    drawn = _drawn(layout, phantom.concept, where, layout.shows(group("findings"), where, positive ^ mislabeled[owner]))
    supine = rng.random(len(owner)) < 0.65

    # Images: standing patients are often seen from the side as well.
    image, view = repeated(1 + (rng.random(len(owner)) < np.where(supine, 0.10, 0.50)))
    lateral = (view == 1) & ~(supine[image] & (rng.random(len(image)) < 0.6))
    who = owner[image]
    strength = np.exp(rng.normal(0, 0.22, len(image))) * 1.35 * (1 - 0.9 * phantom.subtlety)
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
        "race": race[who],
        "positive": positive[image],
        "strength": strength,
        "crop": rng.choice(3, len(image), p=(0.4, 0.35, 0.25)),
        "marker": rng.choice(3, len(image), p=(0.25, 0.45, 0.30)),
    }
    chest = draw_chests(group("anatomy"), seed, who, male, age, race, supine[image], drawn[image], position)
    return Cohort(seed, phantom.size, domains, pd.DataFrame(images), shows[image], drawn[image], chest)


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


def _ill(
    rng: np.random.Generator,
    domain: Numbers,
    domains: Mapping[str, Shift],
    phantom: Phantom,
    demographics: Mapping[str, NDArray[Any]],
) -> Flags:
    """Who is ill: each domain's prevalence, correlated with the demographics as configured.

    The probability of illness is linear in the standardized demographics, so its slopes are the correlations.
    """
    if unknown := phantom.correlation.keys() - domains.keys():
        fix = f"Use one of: {', '.join(domains)}."
        raise FdamedError(f"there is no client {sorted(unknown)[0]!r}", "phantom.correlation", fix)
    ill = np.zeros(len(domain), dtype=bool)
    ties = rng.random(len(domain))
    for d, (name, shift) in enumerate(domains.items()):
        rows = np.flatnonzero(domain == d)
        spread = np.sqrt(shift.prevalence * (1 - shift.prevalence))
        wanted = phantom.correlation.get(name, Correlation()).model_dump()
        z = {k: _standard(values[rows]) for k, values in demographics.items()}
        slope = sum((wanted[k] * z[k] for k in z), np.zeros(len(rows)))
        p = np.clip(shift.prevalence + spread * slope, 0, 1)
        for k, r in wanted.items():
            if r and abs(np.mean((p - p.mean()) * z[k]) / spread - r) > 0.05:
                what = f"a correlation of {r:g} with {k} is impossible with {shift.prevalence:.0%} positives"
                raise FdamedError(what, f"phantom.correlation.{name}", "Ask for less, or for more patients.")
        # Systematic sampling: in order of probability, one patient at each whole number that the sum passes.
        order = np.lexsort((ties[rows], p))
        passed = np.floor(np.cumsum(p[order]) + 0.5)
        ill[rows[order[np.diff(passed, prepend=0) > 0]]] = True
    return ill


def _drawn(layout: Layout, concept: float, domain: Words, shows: Flags) -> NDArray[np.float32]:
    """How much of each look is drawn (studies, KINDS), between the looks at concept distance 0 and 1."""
    drawn = shows.astype(np.float32)
    for name, looks in layout.looks.items():
        mix = np.eye(len(KINDS), dtype=np.float32)
        for kind, (near, far) in looks.items():
            row = np.zeros(len(KINDS), dtype=np.float32)
            row[KINDS.index(near)] += 1 - concept
            row[KINDS.index(far)] += concept
            mix[KINDS.index(kind)] = row
        here = domain == name
        drawn[here] = np.minimum(drawn[here] @ mix, 1)
    return drawn


def _standard(values: NDArray[Any]) -> Reals:
    numbers: Reals = values.astype(np.float64)
    numbers -= numbers.mean()
    return numbers / float(numbers.std() or 1.0)
