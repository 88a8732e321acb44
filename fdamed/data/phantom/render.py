"""Images of a cohort, drawn in several processes: the same bytes whatever their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdamed.core.environment import cores
from fdamed.core.progress import track
from fdamed.core.rng import stream
from fdamed.data.phantom import findings
from fdamed.data.phantom.population import Cohort
from fdamed.data.phantom.projection import frontal, lateral
from fdamed.data.phantom.scanner import expose

Pixels = NDArray[np.uint16]
Save = Callable[[int, Pixels], None]
"""Writes one image: (row, pixels)."""
CHUNK = 64
"""Images that one process draws between two progress reports."""
FINE = 176
"""Above this size anatomy is drawn on a coarser grid and scaled up; the detector's noise never is."""


def render(cohort: Cohort, rows: NDArray[np.int64]) -> Iterator[tuple[int, Pixels]]:
    """Row number and 12-bit pixels of each image: anatomy, findings, scanner. Each depends on its own row alone."""
    work = cohort.size if cohort.size <= FINE else max(FINE, round(0.55 * cohort.size))
    image: Any
    for image in cohort.images.iloc[rows].itertuples():
        row = image.Index
        project = lateral if image.lateral else frontal
        scene = project(cohort.chest_of(row), work)
        for k in np.flatnonzero(cohort.drawn[row]):
            place = findings.place(cohort.seed, image.patient, findings.KINDS[k])
            findings.draw(scene, findings.KINDS[k], place, image.strength * float(cohort.drawn[row, k]))
        rng = stream(cohort.seed, "pixels", row).numpy
        gain = float(rng.normal(0, 0.035))
        pixels = expose(scene.density, cohort.size, cohort.shifts[image.domain], gain, rng, image.marker)
        yield row, _crop(pixels, image.crop)


def _crop(pixels: Pixels, crop: int) -> Pixels:
    size = len(pixels)
    cut = round(0.18 * size)
    if crop == 1:
        return pixels[cut // 4 : size - (cut - cut // 4)]
    return pixels[:, cut // 2 : size - (cut - cut // 2)] if crop == 2 else pixels


def _draw(cohort: Cohort, save: Save, rows: NDArray[np.int64]) -> None:
    for row, pixels in render(cohort, rows):
        save(row, pixels)


def save_all(cohort: Cohort, save: Save) -> None:
    """Draw and save every image, in several processes where it pays."""
    chunks = np.array_split(np.arange(len(cohort)), -(-len(cohort) // CHUNK))
    workers = min(cores(), len(chunks))
    with ProcessPoolExecutor(workers) as pool:  # starts no process before the first task
        drawn = (pool.map if workers > 1 else map)(partial(_draw, cohort, save), chunks)
        list(track(drawn, "phantom", total=len(chunks)))
