"""Images of a cohort: the same bytes whatever the number of processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from numpy.typing import NDArray

from fdamed.core.progress import track
from fdamed.core.rng import stream
from fdamed.data.phantom import findings
from fdamed.data.phantom.anatomy import frontal
from fdamed.data.phantom.lateral import lateral
from fdamed.data.phantom.population import Cohort
from fdamed.data.phantom.primitives import grow_trees
from fdamed.data.phantom.scanner import expose

Pixels = NDArray[np.uint16]
CHUNK = 64
"""Images that one process draws between two reports."""
FINE = 176
"""Above this size anatomy is drawn on a coarser grid and scaled up; the detector's noise never is."""


def render(cohort: Cohort, rows: NDArray[np.int64]) -> Iterator[tuple[int, Pixels]]:
    """Row number and 12-bit pixels of each asked image; each depends on its own row alone."""
    work = cohort.size if cohort.size <= FINE else max(FINE, round(0.55 * cohort.size))
    for row in rows.tolist():
        project = lateral if cohort.lateral[row] else frontal
        scene = project(cohort.chest.at(slice(row, row + 1)), work)
        for kind, shown in zip(findings.KINDS, cohort.shows[row], strict=True):
            if shown:
                place = findings.place(cohort.seed, int(cohort.patient[row]), kind)
                findings.draw(scene, 0, kind, place, float(cohort.strength[row]))
        rng = stream(cohort.seed, "pixels", row).numpy
        look = cohort.looks[cohort.domain[row]]
        gain = float(rng.normal(0, 0.035))
        pixels = expose(scene.density[0], cohort.size, look, gain, rng, int(cohort.marker[row]))
        yield row, _crop(pixels, int(cohort.crop[row]))


def _crop(pixels: Pixels, crop: int) -> Pixels:
    size = len(pixels)
    cut = round(0.18 * size)
    if crop == 1:
        return pixels[cut // 4 : size - (cut - cut // 4)]
    return pixels[:, cut // 2 : size - (cut - cut // 2)] if crop == 2 else pixels


Save = Callable[[int, Pixels], None]
"""Writes one image: (row, pixels)."""
_shared: dict[str, tuple[Cohort, Save]] = {}


def _begin(cohort: Cohort, save: Save) -> None:
    _shared["job"] = (cohort, save)


def _work(rows: NDArray[np.int64]) -> int:
    cohort, save = _shared["job"]
    for row, pixels in render(cohort, rows):
        save(row, pixels)
    return len(rows)


def save_all(cohort: Cohort, save: Save, processes: int | None = None) -> None:
    """Draw and save every image, in several processes where it pays."""
    chunks = np.array_split(np.arange(len(cohort)), max(1, -(-len(cohort) // CHUNK)))
    workers = min(processes or len(os.sched_getaffinity(0)), len(chunks))
    if workers == 1:
        _begin(cohort, save)
        for _ in track(map(_work, chunks), "phantom", total=len(chunks)):
            pass
        return
    grow_trees()  # once, before the processes part
    with ProcessPoolExecutor(workers, initializer=_begin, initargs=(cohort, save)) as pool:
        for _ in track(pool.map(_work, chunks), "phantom", total=len(chunks)):
            pass
