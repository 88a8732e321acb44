"""Synthetic chest radiographs in the real layouts of CheXpert, MIMIC-CXR and MIDRC.

population (patients, studies, images) -> anatomy (bodies) -> projection (a radiograph) -> findings -> scanner (pixels)
-> layouts (files and tables of a data set). render.py joins the steps of an image; folder.py keeps the result.
"""

from __future__ import annotations

from pathlib import Path

from fdamed.config.datasets import Phantom
from fdamed.core.errors import FdamedError
from fdamed.data.phantom.folder import write_folder
from fdamed.data.phantom.layouts import chexpert, midrc, mimic
from fdamed.data.phantom.population import Cohort, Layout, draw_cohort

LAYOUTS = {layout.name: layout for layout in (chexpert.LAYOUT, mimic.LAYOUT, midrc.LAYOUT)}

__all__ = ["LAYOUTS", "cohort_of", "write"]


def write(phantom: Phantom, layout: str, root: Path | str) -> Path:
    """Write the phantom's folder, complete or not at all; keep a folder that these settings made before."""
    return write_folder(phantom, _known(layout), Path(root))


def cohort_of(phantom: Phantom, layout: str) -> Cohort:
    """The patients, labels and findings that `write` would draw."""
    return draw_cohort(phantom, _known(layout))


def _known(layout: str) -> Layout:
    if layout not in LAYOUTS:
        raise FdamedError(
            f"there is no phantom in the layout `{layout}`", "data.layout", f"Use one of: {', '.join(LAYOUTS)}."
        )
    return LAYOUTS[layout]
