"""FedSR (Nguyen, Torr, Lim, NeurIPS 2022): a simple representation for domains that nobody has seen; no target needed.

The feature becomes a distribution, z = mu + sigma eps, and a source minimizes CE(head(z), y) + alpha_L2 L2R +
alpha_CMI CMI: the norm of z, and KL(N(c mu, (c sigma)^2) || r(z|y)) to a reference of its own. The prediction is the
softmax averaged over samples of z.

mu and rho are one linear layer behind the feature that all methods share (decision 0019). Reference and scale c never
leave their source; like the moments of its optimizers they continue in the next round.
Sent: the model and that layer, M + 4 * 2d (d + 1) bytes down and up, and a few numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdamed.core.rng import stream
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Check, Count, Images, Scalar, Statistic, Weights, message
from fdamed.federation.method import Method, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.adversarial_training import Batch, Local, all_batches, numbered_batch
from fdamed.methods._shared.averaging import log_loss
from fdamed.methods._shared.local_training import finite, train_locally
from fdamed.models.adversarial import count, flat_part, shape_of
from fdamed.models.flat import FlatModel, Layout, checksum, layout_of, named_tensors, sent, vector_from
from fdamed.ops.aggregation import mean

REFERENCE, STEP = "fedsr.r", "fedsr.step"
"""In a source's memory: r(z|y) with c, and how many batches it has trained on."""


SMALLEST = 1e-6
"""Added to every sigma: its logarithm stays finite."""


class Encoder(nn.Module):
    """f (B, d) -> mu and sigma (B, d) of z ~ N(mu, sigma^2): one linear layer without ReLU."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(d, 2 * d)

    def forward(self, f: Tensor) -> tuple[Tensor, Tensor]:
        mu, rho = self.encoder(f).chunk(2, dim=1)
        return mu, F.softplus(rho) + SMALLEST


class Reference(nn.Module):
    """r(z|y) = N(r_mu[y], r_sigma[y]^2) with r_mu (C, d) from 0, r_sigma = softplus of 1, and the scale c from 1."""

    def __init__(self, classes: int, d: int, scaled: bool) -> None:
        super().__init__()
        self.mu = nn.Parameter(torch.zeros(classes, d))
        self.rho = nn.Parameter(torch.ones(classes, d))
        self.scale = nn.Parameter(torch.full((1,), math.log(math.e - 1.0))) if scaled else None

    def forward(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """KL(N(c mu, (c sigma)^2) || r(z|y)) for each row, (B,)."""
        r_mu, r_sigma = F.embedding(y, self.mu), F.softplus(F.embedding(y, self.rho))
        if self.scale is not None:
            c = F.softplus(self.scale)
            mu, sigma = c * mu, c * sigma
        return divergence(mu, sigma, r_mu, r_sigma)


def divergence(mu: Tensor, sigma: Tensor, r_mu: Tensor, r_sigma: Tensor) -> Tensor:
    """KL(N(mu, sigma^2) || N(r_mu, r_sigma^2)) summed over the dimensions: (B, d) -> (B,)."""
    ratio = sigma / r_sigma
    return (0.5 * (ratio.square() + ((mu - r_mu) / r_sigma).square() - 1.0) - ratio.log()).sum(1)


class Sampled(nn.Module):
    """Images -> log of the softmax averaged over `samples` of z, the same for all images; 0: logits at z = mu."""

    def __init__(self, network: nn.Module, encoder: Encoder, samples: int) -> None:
        super().__init__()
        self.network = network
        self.encoder = encoder
        d = encoder.encoder.in_features
        self.draws = nn.Buffer(torch.randn(samples, d, generator=stream(0, "representation", "draws").torch))

    def forward(self, x: Tensor) -> Tensor:
        mu, sigma = self.encoder(self.network.features(x).float())  # type: ignore[operator]  # every network has both
        head: nn.Module = self.network.head  # type: ignore[assignment]
        if not len(self.draws):
            logits: Tensor = head(mu)
            return logits
        z = mu + sigma * self.draws[:, None]
        logits = head(z.flatten(0, 1)).view(*z.shape[:2], -1)
        return torch.logsumexp(F.log_softmax(logits, dim=2), 0) - math.log(len(z))


@message
class Ask:
    """Network and encoder; the weights of the losses, their forms (0 or 1), and the steps of a round (0: epochs)."""

    x: Weights
    s: Statistic
    l2r: Scalar
    cmi: Scalar
    squared: Count
    scaled: Count
    steps: Count


@message
class Answer:
    x: Weights
    s: Annotated[Statistic, Check(shape=lambda _, layout: (count(Encoder(shape_of(layout).d)),))]
    n: Images
    loss: Scalar


@message
class State:
    """The network and the encoder (none before the first round)."""

    x: Weights
    s: Statistic


@step("fedsr.train", draws=train_locally, steps=lambda client, ask: ask.steps or None)
def train(client: Client, ask: Ask) -> Answer:
    """Train network, encoder and the client's own reference together."""
    client.model.load(ask.x)
    shape, device = shape_of(client.model.layout), client.model.theta.device
    encoder = flat_part(Encoder(shape.d), ask.s, client.rng, device)
    own = Reference(shape.classes, shape.d, bool(ask.scaled))
    reference = flat_part(own, client.memory.get(REFERENCE, torch.empty(0)), client.rng, device)
    local = Local(client, (encoder, reference))
    local.resume("fedsr.")
    total, steps = torch.zeros((), device=device), 0
    for batch in round_batches(client, ask.steps):
        total, steps = total + local.step(batch, objective(local, encoder, reference, ask)), steps + 1
    local.keep("fedsr.")
    client.memory |= {REFERENCE: reference.read(), STEP: torch.tensor([_done(client) + steps])}
    loss = finite(client, float(total) / max(1, steps))
    return Answer(x=client.model.read(), s=encoder.read(), n=len(client.data), loss=loss)


def objective(local: Local, encoder: FlatModel, reference: FlatModel, ask: Ask) -> Callable[[Tensor, Batch], Tensor]:
    """CE(head(z), y) + alpha_L2 L2R + alpha_CMI CMI on features (B, d), one sample of z for each image."""

    def value(f: Tensor, batch: Batch) -> Tensor:
        y = cast(Tensor, batch.y)
        mu, sigma = encoder.module(f)
        z = mu + sigma * sent(torch.randn(mu.shape, generator=batch.rng.child("z").torch), mu.device)
        out: Tensor = F.cross_entropy(local.client.model.module.head(z), y) + local.auxiliary_losses(f, batch)  # type: ignore[operator]
        if ask.l2r:
            out = out + ask.l2r * (z.square().sum(1) if ask.squared else torch.linalg.vector_norm(z, dim=1)).mean()
        if ask.cmi:
            out = out + ask.cmi * reference.module(mu, sigma, y).mean()
        return out

    return value


def round_batches(client: Client, steps: int) -> Iterator[Batch]:
    """The batches of this round: the client's epochs, or the next `steps` of an endless training."""
    if not steps:
        yield from all_batches(client, client.rng)
    elif len(client.data):
        rng, first = stream(client.seed, client.name, "fedsr.batches"), _done(client)
        for number in range(first, first + steps):
            yield numbered_batch(client, number, rng)


def _done(client: Client) -> int:
    return int(client.memory[STEP]) if STEP in client.memory else 0


@method(
    "fedsr",
    "FedSR",
    "FedSR: A Simple and Effective Domain Generalization Method (NeurIPS 2022)",
    (train,),
    asks_target=False,
    rule="average",
    float16=False,
    parts=True,
)
class FedSR(Method[State]):
    alpha_l2r: float = option(0.01, "weight of the norm of z", low=0.0)
    alpha_cmi: float = option(0.001, "weight of the divergence from the source's reference r(z|y)", low=0.0)
    l2r: Literal["norm", "squared"] = option("norm", "norm: |z|, the released code; squared: |z|^2, the paper")
    scale: bool = option(True, "learn the factor c in the divergence, as the released code does; false: c = 1")
    local_steps: int = option(0, "batches of a round, as published (5); 0: the hospital's epochs", low=0)
    samples: int = option(20, "samples of z over which a prediction is averaged; 0: z = mu", low=0)
    weighting: Literal["uniform", "samples"] = option("uniform", "weights of the sources' models in the average")

    def extra_parameters(self, sources: int, features: int, classes: int) -> int:
        """An encoder in every client, and a reference in every source."""
        encoder, own = count(Encoder(features)), count(Reference(classes, features, self.scale))
        return (sources + 1) * encoder + sources * own

    def start(self, theta: Tensor) -> State:
        return State(x=theta, s=torch.empty(0))

    def final(self, state: State) -> Tensor:
        """The network with the encoder behind it."""
        return torch.cat([state.x, state.s]) if state.s.numel() else state.x

    def named(self, final: Tensor, layout: Layout) -> dict[str, Tensor]:
        x, s = final[: layout.size], final[layout.size :]
        parts = named_tensors(s, layout_of(Encoder(shape_of(layout).d))) if len(s) else {}
        return {**named_tensors(x, layout), **parts}

    def predictor(self, network: nn.Module, kept: Mapping[str, Tensor]) -> nn.Module | None:
        encoder = Encoder(shape_of(layout_of(network)).d)
        if not all(s.name in kept for s in layout_of(encoder)):
            return None
        for module in (network, encoder):
            FlatModel(module).load(vector_from(kept, layout_of(module)))
        return Sampled(network, encoder, self.samples)

    def round(self, state: State, server: Server) -> State:
        s = state.s if state.s.numel() else _first_encoder(state.x, server.layout)
        ask = Ask(
            x=state.x,
            s=s,
            l2r=self.alpha_l2r,
            cmi=self.alpha_cmi,
            squared=int(self.l2r == "squared"),
            scaled=int(self.scale),
            steps=self.local_steps,
        )
        h: dict[str, Answer] = server.ask_all(server.sources, train, ask)
        if not h:
            return State(x=state.x, s=s)
        log_loss(server, h)
        w = [r.n if self.weighting == "samples" else 1 for r in h.values()]
        return State(x=mean([r.x for r in h.values()], w), s=mean([r.s for r in h.values()], w))


def _first_encoder(x: Tensor, layout: Layout) -> Tensor:
    """The encoder that training starts from, a function of the starting model."""
    rng = stream(checksum(x), "fedsr.encoder")
    return flat_part(Encoder(shape_of(layout).d), torch.empty(0), rng, torch.device("cpu")).read()
