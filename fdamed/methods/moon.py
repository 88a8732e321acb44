"""MOON (Li, He, Song, CVPR 2021, Algorithm 1): model-contrastive federated learning.

A source minimizes l_sup + mu l_con with l_con = -log(e^{sim(z, z_glob)/tau} / (e^{sim(z, z_glob)/tau} + e^{sim(z,
z_prev)/tau})): its representation z stays near that of the round's global model and away from that of its own model of
the last time it trained. sim is the cosine. A source that trains for the first time has no last model and trains as in
FedAvg, as in the authors' code. z is the hidden feature that the heads read (512 -> 128): the paper's projection head.

Messages: FedAvg's, and two numbers (mu and tau) to each source. The last model stays with its source.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fdamed.federation.client import Client, step
from fdamed.federation.messages import Scalar, Weights, message
from fdamed.federation.method import Model, OneModel, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import average_models
from fdamed.methods._shared.local_training import Trained, train_from, train_locally

LAST = "moon.x"
"""In a client's state: its model after its last training."""


@message
class Contrast:
    """w^t, the weight of l_con and its temperature."""

    x: Weights
    mu: Scalar
    tau: Scalar


@step("moon.train", draws=train_locally)
def train_contrastively(client: Client, ask: Contrast) -> Trained:
    """Train with l_con, where there is a last model."""
    task = None
    if ask.mu and LAST in client.memory:
        w_glob, w_prev = client.frozen(ask.x), client.frozen(client.memory[LAST])

        def task(x: Tensor, z: Tensor, y: Tensor) -> Tensor:
            with torch.no_grad():
                z_glob, z_prev = w_glob.features(x), w_prev.features(x)  # type: ignore[operator]
            l_sup = F.cross_entropy(client.model.module.head(z), y)  # type: ignore[operator]
            return l_sup + ask.mu * contrast(z, z_glob, z_prev, ask.tau)

    loss = train_from(client, ask.x, task=task).loss
    x = client.model.read()
    client.memory[LAST] = x.clone()
    return Trained(x=x, n=len(client.data), loss=loss)


def contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    """l_con, the mean over a batch of representations (B, d)."""
    near, far = (F.cosine_similarity(z, other, dim=1) / tau for other in (z_glob, z_prev))
    return F.softplus(far - near).mean()  # -log(e^near / (e^near + e^far))


@method(
    "moon",
    "MOON",
    "Model-Contrastive Federated Learning (CVPR 2021), Algorithm 1",
    (train_contrastively,),
    asks_target=False,
    rule="average",
    work="features of two frozen models",
)
class Moon(OneModel):
    mu: float = option(1.0, "weight of the contrastive loss; the paper chooses from 0.1, 1, 5 and 10", low=0.0)
    tau: float = option(0.5, "temperature", low=1e-3)

    def round(self, state: Model, server: Server) -> Model:
        question = Contrast(x=state.x, mu=self.mu, tau=self.tau)
        return average_models(server, state, train_contrastively, question)
