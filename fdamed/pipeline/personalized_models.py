"""Models that are not the bare network: kept in a hospital and judged there, or shared with parts beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdamed.config.study import Config
from fdamed.pipeline.paths import Places, foreign_weights, tensors_in

if TYPE_CHECKING:
    from torch import Tensor

    from fdamed.federation.method import Method
    from fdamed.federation.server import Server
    from fdamed.models.flat import FlatModel

    Own = Callable[[Tensor], FlatModel | None]
    """What predicts at the moment, after a round that ended with this `final`; None: nothing yet."""


def own_path(places: Places, client: str, run: str, target: str, seed: int) -> Path:
    """Where a hospital has its own model of a run."""
    return places.client(client) / "models" / run / target / f"{seed}.safetensors"


def keep(method: Method[Any], server: Server, client: str, path: Path) -> None:
    """Save the part of a client's state that is its model to this file in its own folder."""
    from fdamed.federation.client_state import pack_state, write_state

    write_state(server.transport.state(client, method.keeps) or pack_state({}), path)


def predicting(config: Config, method: Method[Any], server: Server, path: Path) -> Own | None:
    """What predicts where it is not the bare network: the target's own model, or the shared one with its parts."""

    def own(final: Tensor) -> FlatModel | None:
        keep(method, server, server.target, path)
        return kept_model(config, method, path)

    def shared(final: Tensor) -> FlatModel | None:
        return whole_model(config, method, method.named(final, server.layout))

    return own if method.keeps else shared if method.parts else None


def kept_model(config: Config, method: Method[Any], path: Path) -> FlatModel | None:
    """The model in a hospital's file; None where a part of it is missing."""
    from fdamed.federation.client_state import read_state

    return whole_model(config, method, read_state(path))


def shared_model(config: Config, method: Method[Any], path: Path) -> FlatModel:
    """The model in a run's theta.safetensors, with the parts that are more than the network."""
    try:
        found = whole_model(config, method, tensors_in(path, "federate"))
    except (KeyError, ValueError):
        found = None
    if found is None:
        raise foreign_weights(path, "federate")
    return found


def whole_model(config: Config, method: Method[Any], tensors: Mapping[str, Tensor]) -> FlatModel | None:
    """The model of these tensors; None where a part of it is missing."""
    from fdamed.models.backbone import build
    from fdamed.models.flat import FlatModel
    from fdamed.pipeline.clients import device

    module = method.predictor(build(config.model), tensors)
    return FlatModel(module, device(config)) if module else None
