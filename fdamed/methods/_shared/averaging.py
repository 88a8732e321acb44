"""What a server does with the models or updates of all sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fdamed.federation.client import Step
from fdamed.federation.method import Model
from fdamed.federation.server import Server
from fdamed.methods._shared.local_training import Moved, move_locally, train_locally
from fdamed.ops.aggregation import mean, stacked


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


@dataclass(frozen=True)
class Updates:
    """The updates of a round: the target's, and of N sources, which may be none."""

    target: Moved
    names: list[str]
    g: Tensor
    """(N, P)."""
    n: list[int]
    align: list[float]
    """The target's nominal reach by each source's (Eq. 8 of the healthcare paper)."""


def collect_updates(server: Server, model: Model) -> Updates:
    """Ask the target and the sources to train from `model`."""
    t: Moved = server.ask(server.target, move_locally, model)
    s: dict[str, Moved] = server.ask_all(server.sources, move_locally, model)
    server.log({"train/loss": t.loss})
    names, n, align = list(s), [r.n for r in s.values()], [t.reach / r.reach for r in s.values()]
    return Updates(t, names, stacked((s.pop(name).g for name in names), len(names), server.layout.size), n, align)
