"""What a hospital does with a model that is handed over to it: train the head alone, or all of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fdamed.core.rng import stream
from fdamed.federation.client import Site, step
from fdamed.federation.messages import Count, Weights, message
from fdamed.methods._shared.local_training import Trained, finite
from fdamed.models.backbone import initialise_head
from fdamed.models.flat import FlatModel
from fdamed.ops.slices import head_place
from fdamed.training.local import fit
from fdamed.training.optimizer import Optimiser


@message
class Handover:
    """A model to go on with; counts are 0 or 1. `fresh`: with a new head. `afresh`: with a new optimiser."""

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
    """The last layer of a model, as an optimiser sees it: views of its parameters and gradients."""

    trainable: Tensor
    grad: Tensor


@step("finetune_head")
def tune_head(site: Site, ask: Handover) -> Trained:
    """Train the main head on the features of the others, which stay as they are to the bit, BatchNorm included."""
    place = head_place(site.model.layout)
    return _tune(site, ask, Head(site.model.theta[place], site.model.grad[place]))


@step("finetune_whole")
def tune_whole(site: Site, ask: Handover) -> Trained:
    """Train the whole model."""
    return _tune(site, ask, site.model)


def _tune(site: Site, ask: Handover, part: Head | FlatModel) -> Trained:
    site.model.load(ask.x)
    if ask.fresh:
        initialise_head(site.model.module, stream(site.seed, site.name, "head").torch)
    optimiser = Optimiser(part, site.recipe)
    if not (ask.fresh or ask.afresh):
        optimiser.remember({k.removeprefix("tune."): v for k, v in site.memory.items() if k.startswith("tune.")})
    loss = _frozen_loss if isinstance(part, Head) else None
    outcome = fit(
        site.model, site.data, site.recipe, site.rng, loss=loss, optimiser=optimiser, precision=site.precision
    )
    if not ask.afresh:
        site.memory |= {f"tune.{k}": v.clone() for k, v in optimiser.memory().items()}
    return Trained(x=site.model.read(), n=len(site.data), loss=finite(site, outcome.loss))


def _frozen_loss(model: FlatModel, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of the head on the features of an extractor that neither learns nor counts its batches."""
    model.module.eval()
    with torch.no_grad():
        f = model.module.features(x)  # type: ignore[operator]  # every network here has features
    return F.cross_entropy(model.module.head(f), y)  # type: ignore[operator]
