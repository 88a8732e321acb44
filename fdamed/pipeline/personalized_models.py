"""Models that are more than the bare network: a client's own, which stays there, or a shared one with more parts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fdamed.config.study import Config
from fdamed.federation.client_state import pack_state, read_state, write_state
from fdamed.federation.method import Method
from fdamed.federation.server import Server
from fdamed.models.backbone import build
from fdamed.models.flat import FlatModel
from fdamed.pipeline.clients import Own, device
from fdamed.pipeline.paths import Places, foreign_weights, tensors_in


def own_path(places: Places, client: str, run: str, target: str, seed: int) -> Path:
    """The file with a client's own model of a run."""
    return places.client(client) / "models" / run / target / f"{seed}.safetensors"


def keep(method: Method[Any], server: Server, client: str, path: Path) -> None:
    """Save the part of a client's state that is its model to this file in its own folder."""
    write_state(server.transport.state(client, method.keeps) or pack_state({}), path)


def predicting(config: Config, method: Method[Any], server: Server, path: Path) -> Own | None:
    """The model that predicts, if it is not the bare network: the target's own, or the shared one with its parts."""

    def own(final: Tensor) -> FlatModel | None:
        keep(method, server, server.target, path)
        return kept_model(config, method, path)

    def shared(final: Tensor) -> FlatModel | None:
        return whole_model(config, method, method.named(final, server.layout))

    return own if method.keeps else shared if method.parts else None


def kept_model(config: Config, method: Method[Any], path: Path) -> FlatModel | None:
    """The model in a client's file; None if a part of it is missing."""
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
    """The model of these tensors; None if a part of it is missing."""
    module = method.predictor(build(config.model), tensors)
    return FlatModel(module, device(config)) if module else None
