"""A hospital's Jacobian: the gradient of its local loss over all of its images, and statistics over all sources.

FedGTST's server knows norms alone. `log_jacobians` is for the paper's Figure 2: every so many rounds the sources send
their whole Jacobians at the common model, as many bytes as a second model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from fdamed.federation.client import Client, step
from fdamed.federation.messages import Images, Update, message
from fdamed.federation.method import Model
from fdamed.federation.server import Server
from fdamed.methods._shared.adversarial_training import batch_of
from fdamed.methods._shared.local_training import auxiliary_tasks, train_from
from fdamed.training.local import AuxiliaryTasks, batches, in_order, local_loss


@message
class Gradient:
    """J_k (buffers zero), a mean over n images."""

    g: Update
    n: Images


@step("full_gradient")
def full_gradient(client: Client, ask: Model) -> Gradient:
    """J_k at this model."""
    client.model.load(ask.x)
    g = torch.zeros(client.model.layout.size)
    g[: client.model.layout.trainable] = mean_gradient(client, auxiliary_tasks(client)).cpu()
    return Gradient(g=g, n=len(client.data))


def mean_gradient(client: Client, auxiliary: AuxiliaryTasks | None = None) -> Tensor:
    """The gradient (P,) of the local loss over all images at the present weights, in evaluation mode.

    It is the model's own gradient, valid until the next one.
    """
    model, n = client.model, len(client.data)
    model.module.eval()
    model.grad.zero_()
    parameters = list(model.module.parameters())
    for number, rows in enumerate(in_order(n, client.recipe.batch)):
        b = batch_of(client, rows, client.rng.child("jacobian"), 0, number)
        loss = local_loss(model, b.x, cast(Tensor, b.y), b.side, auxiliary, precision=client.precision)
        (loss * (len(rows) / n)).backward(inputs=parameters)  # type: ignore[no-untyped-call]
    return model.grad


def epoch_gradient(client: Client, x: Tensor) -> Tensor:
    """The gradient of F_k at x over one epoch's batches in training mode, weight decay included, (P,) on the CPU."""
    recipe = client.recipe.model_copy(update={"lr": 0.0, "epochs": 1, "optimizer": "sgd", "weight_decay": 0.0})
    sizes = [len(rows) for rows in batches(len(client.data), recipe.batch, client.rng)]
    shares = iter([size / sum(sizes) for size in sizes])
    total = torch.zeros_like(client.model.grad)

    def add(grad: Tensor) -> None:
        total.add_(grad, alpha=next(shares))

    train_from(client, x, recipe, correct=add)  # at a learning rate of 0 nothing moves
    total.add_(client.model.trainable, alpha=client.recipe.weight_decay)
    return total.cpu()


def statistics(j: Sequence[Tensor]) -> tuple[float, float, float]:
    """|mean J_k|, mean |J_k| and sigma^2 = mean |J_k|^2 - |mean J_k|^2 of Jacobians (P,) (FedGTST, Definition 4)."""
    total = torch.zeros_like(j[0], dtype=torch.float64)
    for g in j:
        total += g
    norms = [float(torch.linalg.vector_norm(g, dtype=torch.float64)) for g in j]
    together = float(torch.linalg.vector_norm(total)) / len(j)
    squares = sum(x * x for x in norms) / len(j)
    return together, sum(norms) / len(j), max(0.0, squares - together**2)


def log_jacobians(server: Server, x: Tensor, every: int) -> None:
    """Log the sources' cross-client statistics at x every so many rounds, from the first on; 0: never."""
    if not every or (server.round - 1) % every:
        return
    j = [reply.g for reply in server.ask_all(server.sources, full_gradient, Model(x=x)).values()]
    if j:
        together, alone, variance = statistics(j)
        server.log({"jacobian/together": together, "jacobian/alone": alone, "jacobian/variance": variance})
