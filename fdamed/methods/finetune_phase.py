"""Fine-tuning at the target as a second phase (`then`) after any method: the head alone, or the whole model.

`finetune_head` is transferable federated learning (FedGTST paper, section 3, Eq. 3): the extractor f* is fixed and a
new classifier g_T is trained on the target's labels. `finetune_whole` is the usual alternative (FedGP, section 5).
Messages: the target gets the model once a round and sends it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fdamed.core.rng import stream
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Count, Weights, message
from fdamed.federation.method import Method, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.local_training import Trained, finite, fit_client
from fdamed.models.backbone import initialize_head
from fdamed.models.flat import FlatModel, head_place
from fdamed.training.optimizer import Optimizer


@message
class Handover:
    """A model to fine-tune; counts are 0 or 1. `fresh`: with a new head. `afresh`: with a new optimizer."""

    x: Weights
    fresh: Count
    afresh: Count


@message
class Tuned:
    """The model; `begun`: it has the target's head already."""

    x: Weights
    begun: Count


@dataclass(frozen=True)
class Head:
    """The last layer of a model, as an optimizer sees it: views of its parameters and gradients."""

    trainable: Tensor
    grad: Tensor


@step("finetune_head")
def finetune_head(client: Client, ask: Handover) -> Trained:
    """Train the main head; all else stays as it is to the bit, BatchNorm included."""
    place = head_place(client.model.layout)
    return _tune(client, ask, Head(client.model.theta[place], client.model.grad[place]))


@step("finetune_whole")
def finetune_whole(client: Client, ask: Handover) -> Trained:
    """Train the whole model."""
    return _tune(client, ask, client.model)


def _tune(client: Client, ask: Handover, part: Head | FlatModel) -> Trained:
    client.model.load(ask.x)
    if ask.fresh:
        initialize_head(client.model.module, stream(client.seed, client.name, "head").torch)
    optimizer = Optimizer(part, client.recipe)
    if not (ask.fresh or ask.afresh):
        optimizer.restore(client.memory, "tune.")
    loss = _frozen_loss if isinstance(part, Head) else None
    outcome = fit_client(client, loss=loss, optimizer=optimizer)
    if not ask.afresh:
        optimizer.keep(client.memory, "tune.")
    return Trained(x=client.model.read(), n=len(client.data), loss=finite(client, outcome.loss))


def _frozen_loss(model: FlatModel, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of the head on the features of an extractor that neither learns nor counts its batches."""
    model.module.eval()
    with torch.no_grad():
        f = model.module.features(x)  # type: ignore[operator]  # every network here has features
    return F.cross_entropy(model.module.head(f), y)  # type: ignore[operator]


@dataclass(frozen=True)
class Tuning(Method[Tuned]):
    """What both methods have in common: the target trains with their one step."""

    head: Literal["new", "kept"] = option("new", "start with a new classifier g_T, or with the sources' own")
    optimizer: Literal["kept", "fresh"] = option("kept", "one optimizer for the whole phase, or a new one each round")

    def start(self, theta: Tensor) -> Tuned:
        return Tuned(x=theta, begun=0)

    def round(self, state: Tuned, server: Server) -> Tuned:
        fresh = self.head == "new" and not state.begun
        ask = Handover(x=state.x, fresh=int(fresh), afresh=int(self.optimizer == "fresh"))
        h_t = server.ask(server.target, self.steps[0], ask)
        server.log({"train/loss": h_t.loss})
        return Tuned(x=h_t.x, begun=1)


@method(
    "finetune_head", "fine-tuned head", "FedGTST, section 3", (finetune_head,), target_labels=True, asks_sources=False
)
class FinetuneHead(Tuning):
    """Only the main head is trained."""


@method(
    "finetune_whole",
    "fine-tuned whole",
    "FedGP, section 5 and Appendix B",
    (finetune_whole,),
    target_labels=True,
    asks_sources=False,
)
class FinetuneWhole(Tuning):
    """All layers are trained."""

    head: Literal["new", "kept"] = option("kept", "start with a new head, or with the sources' own")
