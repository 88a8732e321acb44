"""What a server does with the models of all sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fdamed.federation.client import Step
from fdamed.federation.method import Model
from fdamed.federation.server import Server
from fdamed.methods._shared.local_training import train_locally
from fdamed.ops.aggregation import mean


def average_models(server: Server, model: Model, step: Step = train_locally, question: Any = None) -> Model:
    """sum_k n_k/n h_k over the sources, each trained from `model` in this step; the model itself without any."""
    h = server.ask_all(server.sources, step, question or model)
    if not h:
        return model
    log_loss(server, h)
    return Model(x=mean([r.x for r in h.values()], [r.n for r in h.values()]))


def log_loss(server: Server, h: Mapping[str, Any]) -> None:
    """Log the sources' mean training loss, weighted by their images, from answers with `n` and `loss`."""
    server.log({"train/loss": sum(r.n * r.loss for r in h.values()) / sum(r.n for r in h.values())})
