"""Models that never leave their hospital: in its own folder, judged there. For methods that say what they keep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdamed.config import Config
from fdamed.stages.places import Places

if TYPE_CHECKING:
    from fdamed.federation.method import Method
    from fdamed.federation.network import Network
    from fdamed.models.flat import FlatModel

    Own = Callable[[], FlatModel | None]
    """The model that a hospital has at the moment, if any."""


def own_path(places: Places, party: str, run: str, target: str, seed: int) -> Path:
    """Where a hospital has its own model of a run."""
    return places.party(party) / "models" / run / target / f"{seed}.safetensors"


def keep(method: Method[Any], net: Network, party: str, path: Path) -> None:
    """Let the hospital write what of its memory is its model to this file in its own folder."""
    from fdamed.federation.memory import read_memory, write_memory

    whole = read_memory(path) if net.save_memory(party, path) else {}
    write_memory({k: v for k, v in whole.items() if k in method.keeps}, path)


def up_to_date(config: Config, method: Method[Any], net: Network, path: Path) -> FlatModel | None:
    """The target's own model as it is now; None: it has none yet."""
    keep(method, net, net.target, path)
    return kept_model(config, method, path)


def kept_model(config: Config, method: Method[Any], path: Path) -> FlatModel | None:
    """The model in a hospital's file; None where a part of it is missing."""
    from fdamed.federation.memory import read_memory
    from fdamed.models.backbone import build
    from fdamed.models.flat import FlatModel
    from fdamed.stages.hospitals import device

    module = method.predictor(build(config.model), read_memory(path))
    return FlatModel(module, device(config)) if module else None
