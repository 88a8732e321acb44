"""What a disease adds to one radiograph: thickness in the beam, kept inside the lung where it belongs there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fdamed.core.rng import stream
from fdamed.data.phantom.primitives import bump, mottle, path_length, step

if TYPE_CHECKING:
    from fdamed.data.phantom.projection import Scene

LESION, PNEUMONIA, ATELECTASIS = "Lung Lesion", "Pneumonia", "Atelectasis"
CONSOLIDATION, EDEMA = "Consolidation", "Edema"
CARDIOMEGALY, EFFUSION, DEVICES, COVID = "Cardiomegaly", "Pleural Effusion", "Support Devices", "COVID-19"
KINDS = (LESION, PNEUMONIA, ATELECTASIS, CONSOLIDATION, EDEMA, CARDIOMEGALY, EFFUSION, DEVICES, COVID)
"""Findings that can be drawn, in the order of the columns of `Cohort.shows`."""
PULMONARY = KINDS[:5]
DISEASES = [i for i, kind in enumerate(KINDS) if kind != DEVICES]
"""Columns of the findings that make a chest not clear."""
Draw = Callable[["Scene", np.random.Generator, float], None]
"""Adds a finding to a scene: (scene, place, strength)."""


def incidental(rng: np.random.Generator, n: int) -> NDArray[np.bool_]:
    """Findings (n, KINDS) that no label of a study asks for."""
    shows = np.zeros((n, len(KINDS)), dtype=bool)
    for kind, share in ((CARDIOMEGALY, 0.12), (EFFUSION, 0.06), (DEVICES, 0.22)):
        shows[:, KINDS.index(kind)] = rng.random(n) < share
    return shows


def place(seed: int, patient: int, kind: str) -> np.random.Generator:
    """The place of a patient's finding; it is the same in all of the patient's studies."""
    return stream(seed, "place", patient, kind).numpy


def draw(scene: Scene, kind: str, place: np.random.Generator, strength: float) -> None:
    """Add the finding to the scene at its place."""
    if kind in DRAWINGS:
        DRAWINGS[kind](scene, place, strength)


def side_of(rng: np.random.Generator) -> int:
    """The side that a one-sided finding of this place is on: -1 the patient's right, 1 the left."""
    return -1 if rng.random() < 0.55 else 1


def _lesion(image: Scene, rng: np.random.Generator, strength: float) -> None:
    """One to three round nodules with a sharp rim."""
    for _ in range(int(rng.choice((1, 1, 2, 3)))):
        side, reach, height = side_of(rng), rng.uniform(0.45, 0.85), rng.uniform(-0.45, 0.22)
        radius = rng.uniform(0.045, 0.085)
        width = float(np.interp(height, image.y[:, 0], image.edge[:, 0]))
        dx = (image.x - side * reach * width) * np.float32(1 / radius)
        dy = (image.y - height) * np.float32(1 / radius)
        ball = path_length(dx * dx + dy * dy)
        image.density[...] += 0.50 * strength * ball * (0.3 + 0.7 * image.lung)


def _pneumonia(image: Scene, rng: np.random.Generator, strength: float) -> None:
    """A patch in one lobe, patchy, with a soft edge."""
    side, low = side_of(rng), rng.random() < 0.65
    height = rng.uniform(0.02, 0.2) if low else rng.uniform(-0.5, -0.3)
    center = (side * rng.uniform(0.34, 0.5), height)
    patch = bump(image.x, image.y, center, (rng.uniform(0.14, 0.21), rng.uniform(0.13, 0.21)))
    grain = mottle(rng, len(image.x), 22)
    patch *= np.clip(0.85 + 0.45 * grain, 0, 1.6)
    image.density[...] += 0.50 * strength * patch * image.lung


def _atelectasis(image: Scene, rng: np.random.Generator, strength: float) -> None:
    """Plates: thin bands above a diaphragm that `anatomy` has raised."""
    side = side_of(rng)
    for _ in range(int(rng.integers(1, 4))):
        height, slope = rng.uniform(-0.02, 0.24), rng.uniform(-0.35, 0.35)
        center, half, thick = side * rng.uniform(0.3, 0.45), rng.uniform(0.14, 0.24), rng.uniform(0.018, 0.032)
        dx = image.x - center
        off = np.abs(image.y - height - slope * dx - 0.5 * dx * dx)
        plate = step(thick - off, thick * 1.2) * step(half - np.abs(dx), 0.12)
        image.density[...] += 0.46 * strength * plate * image.lung


def _consolidation(image: Scene, rng: np.random.Generator, strength: float) -> None:
    """A dense, even opacity that ends bluntly at a fissure."""
    side, upper = side_of(rng), rng.random() < 0.4
    fissure = rng.uniform(-0.3, -0.15) if upper else rng.uniform(-0.02, 0.12)
    slope = rng.uniform(-0.25, 0.25)
    inward = image.x * side
    border = image.y - fissure - slope * (inward - 0.4)
    region = step(-border if upper else border, 0.05) * step(inward - 0.1, 0.1)
    region *= step(rng.uniform(0.5, 0.8) - inward, 0.12)
    if upper:
        region *= step(image.y + rng.uniform(0.55, 0.7), 0.1)
    branches = 1 - 0.5 * image.tree
    image.density[...] += 0.36 * strength * region * image.lung * branches


def _edema(image: Scene, rng: np.random.Generator, strength: float) -> None:
    """Bat wings: haze around both hila, wider vessels, thin septal lines at the bases."""
    height = rng.uniform(-0.1, 0.02)
    spread = (rng.uniform(0.16, 0.22), rng.uniform(0.17, 0.26))
    haze = bump(np.abs(image.x), image.y, (rng.uniform(0.24, 0.32), height), spread)
    grain = mottle(rng, len(image.x), 34)
    haze *= np.clip(0.9 + 0.35 * grain, 0.2, 1.6)
    lung = image.lung
    image.density[...] += strength * lung * (0.17 * haze + 0.09 * image.tree * (0.5 + haze))
    lines = np.abs(image.y * 26 - np.rint(image.y * 26))
    septa = step(0.16 - lines, 0.1) * step(np.abs(image.x) - image.edge + 0.09, 0.05)
    image.density[...] += 0.10 * strength * lung * septa * step(image.y - 0.02, 0.1)


def _effusion(image: Scene, rng: np.random.Generator, strength: float) -> None:
    """Fluid that climbs the chest wall: a blunted angle with a meniscus."""
    side = side_of(rng)
    level = rng.uniform(0.05, 0.16)
    inward = np.clip(image.x * side, 0, 1)
    meniscus = image.diaphragm - level - 0.7 * np.maximum(inward - 0.3, 0) ** 1.5
    region = step(image.y - meniscus, 0.04) * step(image.x * side - 0.05, 0.1)
    image.density[...] += 0.5 * strength * region * image.lung


def _devices(image: Scene, rng: np.random.Generator, strength: float) -> None:
    """A central line or a tube, and an electrode's wire."""
    side = side_of(rng)
    bend = 0.16 * np.clip(-image.y - 0.3, 0, 1)
    tip = rng.uniform(-0.25, 0.05)
    line = step(0.008 - np.abs(image.x + 0.06 - side * bend), 0.012) * step(tip - image.y, 0.03)
    wire = image.x - side * (0.35 + rng.uniform(-0.1, 0.1)) - 0.25 * np.sin(4 * image.y + rng.uniform(0, 6))
    line += 0.7 * step(0.006 - np.abs(wire), 0.01)
    image.density[...] += 0.22 * line


def _covid(image: Scene, rng: np.random.Generator, strength: float) -> None:
    """Ground glass: several faint patches on both sides, near the chest wall, mostly low."""
    total = np.zeros_like(image.x)
    for side in (-1, 1):
        for _ in range(int(rng.integers(2, 4))):
            height = rng.uniform(-0.3, 0.26)
            width = float(np.interp(height, image.y[:, 0], image.edge[:, 0]))
            center = (side * rng.uniform(0.7, 0.95) * width, height)
            patch = bump(image.x, image.y, center, (rng.uniform(0.08, 0.14), rng.uniform(0.08, 0.15)))
            np.maximum(total, patch, out=total)
    grain = mottle(rng, len(image.x), 26)
    total *= np.clip(0.9 + 0.3 * grain, 0.2, 1.5)
    image.density[...] += 0.20 * strength * total * image.lung


DRAWINGS: dict[str, Draw] = {
    LESION: _lesion,
    PNEUMONIA: _pneumonia,
    ATELECTASIS: _atelectasis,
    CONSOLIDATION: _consolidation,
    EDEMA: _edema,
    EFFUSION: _effusion,
    DEVICES: _devices,
    COVID: _covid,
}
"""Cardiomegaly is not among them: the anatomy itself shows it."""
