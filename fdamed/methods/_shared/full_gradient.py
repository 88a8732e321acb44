"""The gradient of a client's local loss over all of its images, or over one epoch of training."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from fdamed.federation.client import Client
from fdamed.methods._shared.adversarial_training import batch_of
from fdamed.methods._shared.local_training import train_from
from fdamed.training.local import AuxiliaryTasks, batches, in_order, local_loss
from fdamed.training.precision import autocast


def mean_gradient(client: Client, auxiliary: AuxiliaryTasks | None = None) -> Tensor:
    """The gradient (P,) of the local loss over all images at the present weights, in evaluation mode.

    It is the model's own gradient, valid until the next one. In float32 where training is in float16: nothing scales
    this loss.
    """
    model, n = client.model, len(client.data)
    model.module.eval()
    model.grad.zero_()
    parameters, precision = list(model.module.parameters()), client.precision
    precision = "float32" if precision == "float16" else precision
    for number, rows in enumerate(in_order(n, client.recipe.batch)):
        b = batch_of(client, rows, client.rng.child("jacobian"), 0, number)
        with autocast(b.x.device, precision):
            loss = local_loss(model, b.x, cast(Tensor, b.y), b.side, auxiliary)
        (loss * (len(rows) / n)).backward(inputs=parameters)  # type: ignore[no-untyped-call]
    return model.grad


def epoch_gradient(client: Client, x: Tensor) -> Tensor:
    """The gradient of F_k at x over one epoch's batches in training mode, weight decay included, (P,) on the CPU."""
    still = client.with_recipe(lr=0.0, epochs=1, steps=None, optimizer="sgd", weight_decay=0.0)
    sizes = [len(rows) for rows in batches(len(client.data), client.recipe.batch, client.rng)]
    shares = iter([size / sum(sizes) for size in sizes])
    total = torch.zeros_like(client.model.grad)

    def add(grad: Tensor) -> None:
        total.add_(grad, alpha=next(shares))

    train_from(still, x, correct=add)  # at a learning rate of 0 nothing moves
    total.add_(client.model.trainable, alpha=client.recipe.weight_decay)
    return total.cpu()
