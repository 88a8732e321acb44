"""Synthetic chest radiographs in the real layouts of CheXpert, MIMIC-CXR and MIDRC."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fdamed.config.datasets import Phantom
from fdamed.core.errors import FdamedError
from fdamed.data.phantom.folder import grow
from fdamed.data.phantom.population import Cohort
from fdamed.data.phantom.trees import chexpert, midrc, mimic

Draw = Callable[[Phantom], Cohort]
Fill = Callable[[Phantom, Path], None]
WRITERS: dict[str, tuple[Draw, Fill]] = {
    "chexpert": (chexpert.cohort_of, chexpert.fill),
    "mimic": (mimic.cohort_of, mimic.fill),
    "midrc": (midrc.cohort_of, midrc.fill),
}

__all__ = ["cohort_of", "write"]


def write(phantom: Phantom, layout: str, root: Path | str) -> Path:
    """Write the phantom's tree to `root`, whole or not at all; keep a tree that these settings made before."""
    _, fill = _writer(layout)
    return grow(phantom, layout, Path(root), partial(fill, phantom))


def cohort_of(phantom: Phantom, layout: str) -> Cohort:
    """The patients, labels and findings that `write` would draw."""
    draw, _ = _writer(layout)
    return draw(phantom)


def _writer(layout: str) -> tuple[Draw, Fill]:
    if layout not in WRITERS:
        raise FdamedError(
            f"there is no phantom in the layout `{layout}`", "data.layout", f"Use one of: {', '.join(WRITERS)}."
        )
    return WRITERS[layout]
