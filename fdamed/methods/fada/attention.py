"""What the target sees of a model with images alone: how its features cluster (FADA's attention), and what the
BatchNorms measure there."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fdamed.core.rng import stream
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Count, Individual, Scalar, Statistic, Weights, message
from fdamed.federation.server import Server
from fdamed.methods._shared.adversarial_training import features
from fdamed.methods.fada.attention_weights import k_means, looseness, spread
from fdamed.methods.fada.disentangle import branches
from fdamed.models.adversarial import measured_anew, shape_of
from fdamed.models.flat import FlatModel
from fdamed.training.local import as_input, held, noisy, taken

CHUNK = 256


@message
class Candidate:
    """One model (1, P), of a single source where `first` is 0; the clusters of the first are where the others begin."""

    models: Individual
    probe: Count
    squared: Count
    first: Count


@message
class Spread:
    i: Scalar


@message
class Unsettled:
    """A model with its branches, whose running statistics are of other ones."""

    x: Weights
    d: Statistic
    probe: Count


@message
class Settled:
    """The running statistics of the model and of the branches at the target; none where it has not two images."""

    x: Statistic
    d: Statistic


@step("fada.feature_spread")
def spread_of(client: Client, ask: Candidate) -> Spread:
    """The statistic I of the paper's gap attention on a fixed part of the images; 0 where there are none."""
    client.model.load(ask.models[0])
    client.model.module.eval()
    with torch.inference_mode():
        parts = [features(client, x).float().cpu() for x in _probe(client, ask.probe)]
        if not parts:
            return Spread(i=0.0)
        f = torch.cat(parts)
        centers = client.memory.get("fada.centers")
        begin = stream(client.seed, client.name, "probe", "centres")
        centers, own = k_means(f, shape_of(client.model.layout).classes, begin, centers)
        i = looseness(f, own) if ask.squared else spread(f, own, squared=False)
    if ask.first:
        client.memory["fada.centers"] = centers.clone()
    return Spread(i=i)


@step("fada.recalibrate")
def settle(client: Client, ask: Unsettled) -> Settled:
    """Measure the running statistics under this very model, on a fixed part of the images."""
    client.model.load(ask.x)
    if len(client.data) < 2:
        return Settled(x=torch.empty(0), d=torch.empty(0))
    parts = branches(client, ask.d)
    with torch.no_grad(), measured_anew([client.model.module, parts.module]):
        for x in _probe(client, max(2, ask.probe)):  # BatchNorm cannot train on one image
            parts.module(features(client, x).float())
    return Settled(x=_buffers(client.model), d=_buffers(parts))


def settled(server: Server, x: Tensor, d: Tensor, probe: int) -> tuple[Tensor, Tensor]:
    """x and d with the running statistics that the target measures under them; as they are where it cannot.

    Those of the target's training belong to the model before the sources' changes were added. Features grow from round
    to round, and this round's classifier read them in units of the last one's (decision 0013).
    """
    reply = server.ask(server.target, settle, Unsettled(x=x, d=d, probe=probe))
    return _ending_with(x, reply.x), _ending_with(d, reply.d)


def _ending_with(vector: Tensor, buffers: Tensor) -> Tensor:
    return torch.cat([vector[: len(vector) - len(buffers)], buffers])


def _buffers(model: FlatModel) -> Tensor:
    return model.read()[model.layout.trainable :]


def _probe(client: Client, count: int) -> Iterator[Tensor]:
    """The hospital's images, at most `count` and the same ones each time, in batches of nearly one size."""
    device = client.model.theta.device
    fixed = stream(client.seed, client.name, "probe")
    rows = torch.from_numpy(fixed.numpy.permutation(len(client.data))[:count].copy()).sort().values
    for number, part in enumerate(torch.tensor_split(rows, -(-len(rows) // CHUNK) or 1)):
        if len(part) == 0:
            continue
        x = as_input(taken(held(client.data, device), part, device))
        yield noisy(x, client.data.noise, fixed.child("noise", number)) if client.data.noise else x
