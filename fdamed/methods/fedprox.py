"""FedProx (Li et al., MLSys 2020, Algorithm 2): local training that is held back to the model it started from.

Source k minimizes F_k(theta) + mu/2 |theta - theta_t|^2 over the trainable parameters: mu (theta - theta_t) is added to
every gradient. The server averages as FedAvg does; with mu = 0 and no stragglers this is FedAvg bit for bit.

Messages: FedAvg's, and two numbers to each source (mu and the share of stragglers).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fdamed.federation.client import Client, step
from fdamed.federation.messages import Scalar, Weights, message
from fdamed.federation.method import Model, OneModel, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import average_models
from fdamed.methods._shared.local_training import Trained, train_from, train_locally
from fdamed.models.flat import FlatModel
from fdamed.training.local import Correct


@message
class Near:
    """theta_t, the weight of the distance to it, and the probability to be a straggler in this round."""

    x: Weights
    mu: Scalar
    stragglers: Scalar


def fewest_steps(client: Client, ask: Near) -> int | None:
    """A straggler may take no more than one epoch's."""
    return client.local_steps(epochs=1) if ask.stragglers else None


@step("fedprox.train", draws=train_locally, noised=True, steps=fewest_steps)
def train_near(client: Client, ask: Near) -> Trained:
    """Train for the client's epochs, or as a straggler for fewer, not far from theta_t."""
    correct = proximal(client.model, ask.x, ask.mu) if ask.mu else None
    loss = train_from(client.with_recipe(epochs=epochs(client, ask.stragglers)), ask.x, correct=correct).loss
    return Trained(x=client.model.read(), n=len(client.data), loss=loss)


def proximal(model: FlatModel, x: Tensor, mu: float) -> Correct:
    """Adds the gradient of mu/2 |theta - x|^2 over the parameters; exactly nothing where theta is x."""
    theta, start = model.trainable, x[: model.layout.trainable].to(model.theta.device)
    apart = torch.empty_like(theta)

    def correct(grad: Tensor) -> None:
        torch.sub(theta, start, out=apart)
        grad.add_(apart, alpha=mu)

    return correct


def epochs(client: Client, stragglers: float) -> int:
    """All of the client's epochs E, or with this probability a number drawn from 1..E."""
    rng = client.rng.child("epochs").numpy
    return int(rng.integers(1, client.recipe.epochs + 1)) if rng.random() < stragglers else client.recipe.epochs


@method(
    "fedprox",
    "FedProx",
    "Federated Optimization in Heterogeneous Networks (MLSys 2020), Algorithm 2",
    (train_near,),
    asks_target=False,
    rule="average",
)
class FedProx(OneModel):
    mu: float = option(0.01, "weight of the distance to the model of the round; 0: FedAvg", low=0.0)
    stragglers: float = option(
        0.0, "probability that a source trains only for a number of its epochs, drawn from 1 to all", low=0.0, high=1.0
    )

    def round(self, state: Model, server: Server) -> Model:
        question = Near(x=state.x, mu=self.mu, stragglers=self.stragglers)
        return average_models(server, state, train_near, question)
