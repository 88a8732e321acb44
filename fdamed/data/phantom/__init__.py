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

LAYOUTS = {layout.name: layout for layout in (chexpert.LAYOUT, mimic.LAYOUT, midrc.LAYOUT)}


def write(phantom: Phantom, layout: str, root: Path | str) -> Path:
    """Write the phantom's folder, complete or not at all; keep a folder that these settings made before."""
    if layout not in LAYOUTS:
        what = f"there is no phantom in the layout `{layout}`"
        raise FdamedError(what, "data.layout", f"Use one of: {', '.join(LAYOUTS)}.")
    return write_folder(phantom, LAYOUTS[layout], Path(root))
