"""FedSR (Nguyen, Torr, Lim, NeurIPS 2022): a simple representation for domains that nobody has seen; no target needed.

The feature becomes a distribution, z = mu + sigma eps, and a source minimizes CE(head(z), y) + alpha_L2 L2R +
alpha_CMI CMI: the length of z, and KL(N(c mu, (c sigma)^2) || r(z|y)) to a reference of its own. Predicted is the
softmax averaged over samples of z.

mu and rho are one linear layer behind the feature that all methods share (decision 0019). Reference and scale c never
leave their source; like the moments of its optimizers they go on in the next round.
On the wire: the model and that layer, M + 4 * 2d (d + 1) bytes down and up, and a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdamed.core.rng import stream
from fdamed.federation.client import Client, Step, check_minimum, step
from fdamed.federation.messages import Count, Scalar, Statistic, Weights, message
from fdamed.federation.method import Method, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.adversarial_training import Batch, Local, all_batches, batch_of
from fdamed.methods._shared.averaging import log_loss
from fdamed.methods._shared.local_training import finite, train_locally
from fdamed.models.adversarial import count, flat_part, shape_of
from fdamed.models.flat import FlatModel, Layout, layout_of, named_tensors, vector_from
from fdamed.models.stochastic_encoder import Encoder, Reference, Sampled
from fdamed.ops.aggregation import mean
from fdamed.ops.random_features import checksum
from fdamed.training.local import batches

REFERENCE, STEP = "fedsr.r", "fedsr.step"
"""In a source's memory: r(z|y) with c, and how many batches it has trained on."""


@message
class Ask:
    """Server and encoder; the weights of the losses, their forms (0 or 1), and the steps of a round (0: epochs)."""

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
    s: Statistic
    n: Count
    loss: Scalar


@message
class State:
    """The network and the encoder (none before the first round)."""

    x: Weights
    s: Statistic


@step("fedsr.train", draws=train_locally)
def learn(client: Client, ask: Ask) -> Answer:
    """Train network, encoder and the hospital's own reference together."""
    if ask.steps:
        check_minimum(client, ask.steps)
    client.model.load(ask.x)
    shape, device = shape_of(client.model.layout), client.model.theta.device
    encoder = flat_part(Encoder(shape.d), ask.s, client.rng, device)
    own = Reference(shape.classes, shape.d, bool(ask.scaled))
    reference = flat_part(own, client.memory.get(REFERENCE, torch.empty(0)), client.rng, device)
    local = Local(client, (encoder, reference))
    for i, optimizer in enumerate(local.optimizers):
        kept = f"fedsr.{i}."
        optimizer.remember({k.removeprefix(kept): v for k, v in client.memory.items() if k.startswith(kept)})
    total, steps = torch.zeros((), device=device), 0
    for batch in lessons(client, ask.steps):
        total, steps = total + local.step(batch, objective(local, encoder, reference, ask)), steps + 1
    local.keep_heads()
    for i, optimizer in enumerate(local.optimizers):
        client.memory |= {f"fedsr.{i}.{k}": v.clone() for k, v in optimizer.memory().items()}
    client.memory |= {REFERENCE: reference.read(), STEP: torch.tensor([_done(client) + steps])}
    loss = finite(client, float(total) / max(1, steps))
    return Answer(x=client.model.read(), s=encoder.read(), n=len(client.data), loss=loss)


def objective(local: Local, encoder: FlatModel, reference: FlatModel, ask: Ask) -> Callable[[Tensor, Batch], Tensor]:
    """CE(head(z), y) + alpha_L2 L2R + alpha_CMI CMI on features (B, d), one sample of z for each image."""

    def value(f: Tensor, batch: Batch) -> Tensor:
        if batch.y is None:
            raise TypeError("a hospital without labels was asked to train with labels")
        mu, sigma = encoder.module(f)
        z = mu + sigma * torch.randn(mu.shape, generator=batch.rng.child("z").torch).to(mu.device)
        out: Tensor = F.cross_entropy(local.client.model.module.head(z), batch.y) + local.beside(f, batch)  # type: ignore[operator]
        if ask.l2r:
            out = out + ask.l2r * (z.square().sum(1) if ask.squared else torch.linalg.vector_norm(z, dim=1)).mean()
        if ask.cmi:
            out = out + ask.cmi * reference.module(mu, sigma, batch.y).mean()
        return out

    return value


def lessons(client: Client, steps: int) -> Iterator[Batch]:
    """The batches of this round: the hospital's epochs, or `steps` more of an endless training."""
    if not steps:
        yield from all_batches(client, client.rng)
        return
    size, rng, first = client.recipe.batch, stream(client.seed, client.name, "fedsr.batches"), _done(client)
    each = sum(1 for _ in batches(len(client.data), size, rng))
    for number in range(first, first + steps if each else first):
        epoch, nth = divmod(number, each)
        rows = list(batches(len(client.data), size, rng.child("order", epoch)))[nth]
        yield batch_of(client, rows, rng, epoch, nth)


def _done(client: Client) -> int:
    return int(client.memory[STEP]) if STEP in client.memory else 0


@method("fedsr")
class FedSR(Method[State]):
    title: ClassVar[str] = "FedSR"
    paper: ClassVar[str] = "FedSR: A Simple and Effective Domain Generalization Method (NeurIPS 2022)"
    target_labels: ClassVar[bool] = False
    needs_each: ClassVar[str] = ""
    asks_target: ClassVar[bool] = False
    steps: ClassVar[tuple[Step, ...]] = (learn,)
    state: ClassVar[type] = State
    parts: ClassVar[bool] = True

    alpha_l2r: float = option(0.01, "weight of the length of z", low=0.0)
    alpha_cmi: float = option(0.001, "weight of the divergence from the source's reference r(z|y)", low=0.0)
    l2r: Literal["norm", "squared"] = option("norm", "norm: |z|, the released code; squared: |z|^2, the paper")
    scale: bool = option(True, "learn the factor c in the divergence, as the released code does; false: c = 1")
    local_steps: int = option(0, "batches of a round, as published (5); 0: the hospital's epochs", low=0)
    samples: int = option(20, "samples of z over which a prediction is averaged; 0: z = mu", low=0)
    weighting: Literal["uniform", "samples"] = option("uniform", "of the sources' models in the average")

    def extra_parameters(self, sources: int, features: int, classes: int) -> int:
        """An encoder in every hospital, and a reference in every source."""
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
        s = state.s if state.s.numel() else _beginning(state.x, server.layout)
        ask = Ask(
            x=state.x,
            s=s,
            l2r=self.alpha_l2r,
            cmi=self.alpha_cmi,
            squared=int(self.l2r == "squared"),
            scaled=int(self.scale),
            steps=self.local_steps,
        )
        h: dict[str, Answer] = server.ask_all(server.sources, learn, ask)
        if not h:
            return State(x=state.x, s=s)
        log_loss(server, h)
        w = [r.n if self.weighting == "samples" else 1 for r in h.values()]
        return State(x=mean([r.x for r in h.values()], w), s=mean([r.s for r in h.values()], w))


def _beginning(x: Tensor, layout: Layout) -> Tensor:
    """The encoder that training starts from, drawn anew for every other starting model."""
    start_of = stream(checksum(x), "fedsr.encoder")
    return flat_part(Encoder(shape_of(layout).d), torch.empty(0), start_of, torch.device("cpu")).read()
