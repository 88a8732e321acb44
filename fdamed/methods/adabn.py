"""AdaBN (Li et al. 2016, arXiv:1603.04779): FedAvg, whose BatchNorm statistics are replaced by those of the target.

The target passes its unlabeled images through the average, and replaces the sources' mean and variance of each
BatchNorm input by its own: means over batches that are normalized with their own statistics, as in training. Nothing is
learned from its images, and FedAvg continues with its own statistics: this is the control of every method that trains
on them. With `fedavg: false` only the target is asked: a second phase (`then`) after any method.

Messages: FedAvg's; the average to the target, and the statistics of its layers back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from fdamed.core.errors import FdamedError
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Check, Images, Statistic, Weights, message
from fdamed.federation.method import Method, Model, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import average_models
from fdamed.methods._shared.local_training import train_locally
from fdamed.training.input import held, prepared
from fdamed.training.local import batches


@message
class Statistics:
    """The buffers of all BatchNorm layers (B,), and the number of images behind them."""

    b: Annotated[Statistic, Check(shape=lambda _, layout: (layout.size - layout.trainable,))]
    n: Images


@message
class State:
    """FedAvg's model, and the same with the target's statistics."""

    x: Weights
    adapted: Weights


@step("adabn.measure")
def measure(client: Client, ask: Model) -> Statistics:
    """Mean and variance of each BatchNorm input on the client's images; a single image has no variance."""
    model = client.model
    model.load(ask.x)
    layers = [m for m in model.module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    usual = [layer.momentum for layer in layers]
    try:
        if len(client.data) > 1:
            for layer in layers:
                layer.reset_running_stats()
            _pass_through(client, layers)
    finally:
        for layer, momentum in zip(layers, usual, strict=True):
            layer.momentum = momentum
    return Statistics(b=model.read()[model.layout.trainable :], n=len(client.data))


@torch.no_grad()
def _pass_through(client: Client, layers: Sequence[nn.modules.batchnorm._BatchNorm]) -> None:
    """One epoch of the client's images in training mode; statistics are the mean over all batches."""
    module, device = client.model.module.train(), client.model.theta.device
    images = held(client.data, device)
    for number, rows in enumerate(batches(len(client.data), client.recipe.batch, client.rng.child("order"))):
        for layer in layers:
            layer.momentum = 1.0 / (number + 1)  # what None means, without a question to the device
        module(prepared(images, rows, device, client.rng, 0, number, noise=client.data.noise))


@method(
    "adabn",
    "FedAvg with AdaBN",
    "Li et al. 2016, Revisiting Batch Normalization For Practical Domain Adaptation",
    (train_locally, measure),
    rule="average",
    work="BatchNorm statistics of the target’s images",
    baseline=True,
)
class AdaBN(Method[State]):
    fedavg: bool = option(True, "train on the sources with FedAvg; false: adapt the model of the phase before")

    def start(self, theta: Tensor) -> State:
        return State(x=theta, adapted=theta)

    def round(self, state: State, server: Server) -> State:
        if not len(server.layout.variances):
            what, fix = "the network has no BatchNorm to adapt", "Set `model.norm: batch`, or use fedavg."
            raise FdamedError(what, "adabn", fix)
        x = average_models(server, Model(x=state.x)).x if self.fedavg else state.x
        b = server.ask(server.target, measure, Model(x=x)).b
        return State(x=x, adapted=torch.cat([x[: server.layout.trainable], b]))

    def final(self, state: State) -> Tensor:
        return state.adapted
