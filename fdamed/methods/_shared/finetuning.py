"""What a hospital does with a model that is handed over to it: train the head alone, or all of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fdamed.core.rng import stream
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Count, Weights, message
from fdamed.methods._shared.local_training import Trained, finite
from fdamed.models.backbone import initialize_head
from fdamed.models.flat import FlatModel
from fdamed.ops.slices import head_place
from fdamed.training.local import fit
from fdamed.training.optimizer import Optimizer


@message
class Handover:
    """A model to go on with; counts are 0 or 1. `fresh`: with a new head. `afresh`: with a new optimizer."""

    x: Weights
    fresh: Count
    afresh: Count


@message
class Tuned:
    """The state of a handed-over model; `begun`: its head is the hospital's already."""

    x: Weights
    begun: Count


@dataclass(frozen=True)
class Head:
    """The last layer of a model, as an optimizer sees it: views of its parameters and gradients."""

    trainable: Tensor
    grad: Tensor


@step("finetune_head")
def tune_head(client: Client, ask: Handover) -> Trained:
    """Train the main head on the features of the others, which stay as they are to the bit, BatchNorm included."""
    place = head_place(client.model.layout)
    return _tune(client, ask, Head(client.model.theta[place], client.model.grad[place]))


@step("finetune_whole")
def tune_whole(client: Client, ask: Handover) -> Trained:
    """Train the whole model."""
    return _tune(client, ask, client.model)


def _tune(client: Client, ask: Handover, part: Head | FlatModel) -> Trained:
    client.model.load(ask.x)
    if ask.fresh:
        initialize_head(client.model.module, stream(client.seed, client.name, "head").torch)
    optimizer = Optimizer(part, client.recipe)
    if not (ask.fresh or ask.afresh):
        optimizer.remember({k.removeprefix("tune."): v for k, v in client.memory.items() if k.startswith("tune.")})
    loss = _frozen_loss if isinstance(part, Head) else None
    outcome = fit(
        client.model, client.data, client.recipe, client.rng, loss=loss, optimizer=optimizer, precision=client.precision
    )
    if not ask.afresh:
        client.memory |= {f"tune.{k}": v.clone() for k, v in optimizer.memory().items()}
    return Trained(x=client.model.read(), n=len(client.data), loss=finite(client, outcome.loss))


def _frozen_loss(model: FlatModel, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of the head on the features of an extractor that neither learns nor counts its batches."""
    model.module.eval()
    with torch.no_grad():
        f = model.module.features(x)  # type: ignore[operator]  # every network here has features
    return F.cross_entropy(model.module.head(f), y)  # type: ignore[operator]
