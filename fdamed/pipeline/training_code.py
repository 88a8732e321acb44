"""The code on which the numbers of a training depend: the core, and the run's own methods, not the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fdamed.config.runs import Run
from fdamed.core.provenance import PACKAGE, digest_code

CORE = "fdamed.pipeline.phases"
DECIDES_DATA = ("fdamed.config.split", "fdamed.config.datasets")
"""They decide the data, which have digests of their own."""
SHARED = "_shared"


def training_code(spec: Run, catalog: Mapping[str, Mapping[str, Any]]) -> str:
    """Twelve hex digits that change when, and only when, code changes that can change this run's numbers."""
    own = {catalog[name]["module"] for name in (spec.method, *([spec.then.method] if spec.then else []))}
    kept = {SHARED, *(_room(module) for module in own)}
    rooms = {p.stem for p in (PACKAGE / "methods").iterdir()} - kept
    return digest_code(CORE, *sorted(own), without=(*DECIDES_DATA, *(f"fdamed.methods.{room}" for room in rooms)))


def _room(module: str) -> str:
    """The file or package of a method: fdamed.methods.fada.method -> fada."""
    return module.split(".")[2]
