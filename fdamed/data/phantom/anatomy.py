"""A patient's body: the numbers that make it individual, with what some findings change of it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from fdamed.data.phantom import findings as f
from fdamed.data.phantom.primitives import TREES, Flags, Numbers, Reals, Words
from fdamed.data.vocabulary import RACES, parse_race

Chest = SimpleNamespace
"""The numbers of one image, float32, by the names in `draw_chests`; lengths in half image widths."""


def draw_chests(
    rng: np.random.Generator,
    seed: int,
    who: Numbers,
    male: Flags,
    age: Numbers,
    race: Words,
    supine: Flags,
    drawn: NDArray[np.float32],
    position: Reals,
) -> dict[str, NDArray[np.float32]]:
    """Draw the bodies of the patients (`male`, `age`, `race`), positioned anew in each image (`who` ... `position`)."""

    def person(mean: float | Reals, spread: float) -> Reals:
        return np.asarray(mean + spread * rng.standard_normal(len(male)))[who]

    def image(spread: float | Reals) -> Reals:
        return spread * rng.standard_normal(len(who))

    old = (age - 50) / 40
    loose = 0.018 + 0.05 * position
    bone, habitus = _marker(race)
    fat = np.clip(person(0.10 + 0.08 * habitus, 0.03), 0.01, 0.25)
    heart = person(np.where(male, 1.0, 0.97) + 0.2 * old, 0.06) + 0.10 * supine
    heart += 0.24 * drawn[:, f.KINDS.index(f.CARDIOMEGALY)]
    lift = _lift(seed, who, drawn[:, f.KINDS.index(f.ATELECTASIS)])
    breast = np.clip(person(0.6, 0.25), 0.12, 1.1) * ~male[who]
    values = {
        "male": male[who],
        "age": age[who],
        "supine": supine,  # 1: AP, lying or sitting; 0: PA, standing
        "shift_x": image(loose),
        "shift_y": image(loose) + 0.08 + 0.05 * position,
        "zoom": np.clip(person(1.16, 0.035) + image(0.012 + 0.04 * position), 0.95, 1.4),
        "tilt": image(0.02 + 0.04 * position + 0.02 * supine),
        "width": person(np.where(male, 0.665, 0.625), 0.03),  # half width of the thorax
        "apex": person(-0.75, 0.03),  # height of the lung's apex
        "base": person(np.where(male, 0.37, 0.33), 0.04) - 0.10 * supine + image(0.035),  # of the right dome
        "dome": person(0.045, 0.02),  # how much lower the left dome is
        "lift_right": lift[0],
        "lift_left": lift[1],
        "heart": np.clip(heart, 0.75, 1.6),
        "knob": np.clip(person(1 + 0.6 * old, 0.12), 0.4, 1.8),  # size of the aortic knob
        "bone": np.clip(person(1 - 0.35 * old + 0.35 * bone, 0.1), 0.3, 2),  # density of the skeleton
        "fat": fat,
        "breast": breast,
        "kyphosis": np.clip(person(0.25 + 0.5 * old, 0.2), 0, 1),
        "calcium": np.clip(person(0.1 + 0.6 * old, 0.25), 0, 1),
        "rib_phase": person(0.5, 0.4),
        "rib_space": person(0.155, 0.006),
        "clavicle": person(0.0, 0.025) + image(0.01),
        "vessel": np.clip(person(0.95, 0.15), 0.5, 1.5),
        "arms": np.clip(person(0.35, 0.3), 0, 1),
        "stomach": np.clip(image(0.5) + 0.35, 0, 1),
        "tree": rng.integers(0, 2 * TREES, len(male))[who],  # number of the vessel tree
    }
    return {name: v.astype(np.float32) for name, v in values.items()}


def _marker(race: Words) -> tuple[Reals, Reals]:
    """A synthetic marker of race, so that the label can be learned: shifts of bone density and habitus.

    The groups stand on a circle, in an arbitrary order; the marker is made up and says nothing about people.
    """
    angle = {name: 2 * np.pi * 3 * k / len(RACES) for k, name in enumerate(RACES)}
    known = [parse_race(name) for name in race]
    bone, habitus = ([turn(angle[r]) if r else 0.0 for r in known] for turn in (np.cos, np.sin))
    return np.array(bone), np.array(habitus)


def _lift(seed: int, who: Numbers, collapsed: NDArray[np.float32]) -> Reals:
    """How far collapse draws the dome of its own side upwards: (2, n), right and left."""
    lift = np.zeros((2, len(who)))
    for i in np.flatnonzero(collapsed):
        left = f.side_of(f.place(seed, int(who[i]), f.ATELECTASIS)) > 0
        lift[int(left), i] = collapsed[i] * (0.06 + 0.07 * (int(who[i]) * 7919 % 101) / 101)
    return lift
