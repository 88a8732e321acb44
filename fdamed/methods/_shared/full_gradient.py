"""A hospital's Jacobian: the gradient of its local loss over all of its images, and what the sources' come to together.

The server of FedGTST knows norms alone. `watch` is for a study of the paper's Figure 2: every so many rounds the
sources send their whole Jacobians at the common model, which is as much as a second model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from fdamed.federation.client import Client, step
from fdamed.federation.messages import Count, Update, message
from fdamed.federation.method import Model
from fdamed.federation.server import Server
from fdamed.methods._shared.adversarial_training import batch_of
from fdamed.methods._shared.local_training import auxiliary_tasks, train_from
from fdamed.training.local import AuxiliaryTasks, batches, in_order, local_loss


@message
class Slope:
    """J_k (buffers zero), and over how many images it is a mean."""

    g: Update
    n: Count


@step("full_gradient")
def gradient_at(client: Client, ask: Model) -> Slope:
    """J_k at this model."""
    client.model.load(ask.x)
    g = torch.zeros(client.model.layout.size)
    g[: client.model.layout.trainable] = mean_gradient(client, auxiliary_tasks(client)).cpu()
    return Slope(g=g, n=len(client.data))


def mean_gradient(client: Client, auxiliary: AuxiliaryTasks | None = None, start: int = 0) -> Tensor:
    """The gradient (P,) of the local loss over all images at the present weights, in evaluation mode.

    Only from place `start` of the vector on; it is the model's own gradient, so good until the next one.
    """
    model, n = client.model, len(client.data)
    model.module.eval()
    model.grad.zero_()
    named = dict(model.module.named_parameters())
    own = [named[s.name] for s in model.layout.parameters if s.start >= start]
    for number, rows in enumerate(in_order(n, client.recipe.batch)):
        b = batch_of(client, rows, client.rng.child("jacobian"), 0, number)
        loss = local_loss(model, b.x, cast(Tensor, b.y), b.side, auxiliary, precision=client.precision)
        (loss * (len(rows) / n)).backward(inputs=own)  # type: ignore[no-untyped-call]
    return model.grad


def epoch_gradient(client: Client, x: Tensor) -> Tensor:
    """The gradient of F_k at x over one epoch's batches in training mode, weight decay included, (P,) on the CPU."""
    recipe = client.recipe.model_copy(update={"lr": 0.0, "epochs": 1, "optimizer": "sgd", "weight_decay": 0.0})
    sizes = [len(rows) for rows in batches(len(client.data), recipe.batch, client.rng)]
    shares = iter([size / sum(sizes) for size in sizes])
    total = torch.zeros_like(client.model.grad)

    def add(grad: Tensor) -> None:
        total.add_(grad, alpha=next(shares))

    train_from(client, x, recipe, add)  # at a learning rate of 0 nothing moves, auxiliary heads neither
    total.add_(client.model.trainable, alpha=client.recipe.weight_decay)
    return total.cpu()


def statistics(j: Sequence[Tensor]) -> tuple[float, float, float]:
    """|mean J_k|, mean |J_k| and sigma^2 = mean |J_k|^2 - |mean J_k|^2 of Jacobians (P,) (FedGTST, Definition 4)."""
    total = torch.zeros_like(j[0], dtype=torch.float64)
    lengths = []
    for g in j:
        total += g
        lengths.append(float(torch.linalg.vector_norm(g, dtype=torch.float64)))
    together = float(torch.linalg.vector_norm(total)) / len(j)
    squares = sum(x * x for x in lengths) / len(j)
    return together, sum(lengths) / len(j), max(0.0, squares - together**2)


def watch(server: Server, x: Tensor, every: int) -> None:
    """Note the sources' cross-client statistics at x in every so many rounds, from the first on; 0: never."""
    if not every or (server.round - 1) % every:
        return
    j = [reply.g for reply in server.ask_all(server.sources, gradient_at, Model(x=x)).values()]
    if j:
        together, alone, variance = statistics(j)
        server.log({"jacobian/together": together, "jacobian/alone": alone, "jacobian/variance": variance})


def note_norms(server: Server, gammas: Sequence[float]) -> None:
    """Note what norms alone tell: their mean, and their variance, below which sigma^2 cannot be."""
    if gammas:
        mean = sum(gammas) / len(gammas)
        spread = sum((g - mean) ** 2 for g in gammas) / len(gammas)
        server.log({"jacobian/norm": mean, "jacobian/spread": spread})
