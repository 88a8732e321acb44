"""FedBN (Li et al., ICLR 2021, Algorithm 1): every client keeps its BatchNorm layers, all other layers are averaged.

In the paper all clients train and are tested with their own BatchNorm: so here the target takes part with its few
labels, and predicts with the average and its own BatchNorm (scale, shift, running statistics), which never leaves it.
Models are averaged by number of images. A client that trains for the first time has the common start's BatchNorm.

Messages: FedAvg's, from the sources and the target alike; in the place of BatchNorm a model carries what it was sent
with. After each round the target gets the average, M bytes, to predict with.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fdamed.core.errors import FdamedError
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Count, message
from fdamed.federation.method import Model, OneModel, method
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import log_loss
from fdamed.methods._shared.local_training import Trained, train_from, train_locally
from fdamed.models.flat import FlatModel, Layout
from fdamed.ops.aggregation import mean

NORM, OWN = "fedbn.norm", "fedbn.x"
"""In a client's state: its BatchNorm, and the model that it predicts with."""


@message
class Received:
    """Whether the client has a BatchNorm of its own (0 or 1)."""

    own: Count


@step("fedbn.train", draws=train_locally)
def train_around_norm(client: Client, ask: Model) -> Trained:
    """Train from the average with the client's own BatchNorm, and send all but that."""
    loss, norm = train_from(client, personal(client, ask.x)).loss, batch_norm(client.model.layout)
    x = client.model.read()
    client.memory[NORM] = x[norm]
    x[norm] = ask.x[norm]
    return Trained(x=x, n=len(client.data), loss=loss)


@step("fedbn.receive")
def receive(client: Client, ask: Model) -> Received:
    """Keep the average with the client's own BatchNorm, to predict with."""
    client.memory[OWN] = personal(client, ask.x)
    return Received(own=int(NORM in client.memory))


def personal(client: Client, x: Tensor) -> Tensor:
    """x with the client's own BatchNorm, where it has one."""
    if NORM not in client.memory:
        return x.clone()
    return x.index_copy(0, batch_norm(client.model.layout), client.memory[NORM])


def batch_norm(layout: Layout) -> Tensor:
    """Where the BatchNorm layers are in a model."""
    suffix = ".running_var"
    layers = {s.name.removesuffix(suffix) for s in layout if s.name.endswith(suffix)}
    if not layers:
        raise FdamedError("the network has no BatchNorm to keep", "fedbn", "Set `model.norm: batch`, or use fedavg.")
    places = [torch.arange(s.start, s.stop) for s in layout if s.name.rpartition(".")[0] in layers]
    return torch.cat(places)


@method(
    "fedbn",
    "FedBN",
    "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization (ICLR 2021), Algorithm 1",
    (train_around_norm, receive),
    target_labels=True,
    rule="average",
    keeps=(OWN,),
)
class FedBN(OneModel):
    def round(self, state: Model, server: Server) -> Model:
        h = server.ask_all((*server.sources, server.target), train_around_norm, state)
        if h:
            log_loss(server, h)
            state = Model(x=mean([r.x for r in h.values()], [r.n for r in h.values()]))
        server.ask_all((server.target,), receive, state)
        return state

    def predictor(self, network: nn.Module, kept: Mapping[str, Tensor]) -> nn.Module | None:
        if OWN not in kept:
            return None
        FlatModel(network).load(kept[OWN])
        return network
