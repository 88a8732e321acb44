"""FedRF-TCA's steps inside a client: send a mean random feature, train towards the others' means, receive averages.

A client's model is its own extractor G, random features with the shared Omega, the aligner W and the classifier C.
G stays in the client's memory, and no message has a field for it. A mean over one image is a reversible code of its
features, and over unit vectors it shows their mean direction.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from fdamed.core.rng import stream
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Check, Count, Images, Scalar, Statistic, Weights, message
from fdamed.methods._shared.adversarial_training import Batch, Local, batch_of, training_features, zero_sum
from fdamed.methods._shared.local_training import finite
from fdamed.methods.fedrf_tca.model import OMEGA, C, G, Losses, Parts, W, frozen_layers
from fdamed.models.adversarial import count, flat_part, shape_of
from fdamed.models.flat import FlatModel, Layout, checksum
from fdamed.ops.random_features import fourier_features, frequencies, unit

STEP = "fedrf.step"
"""In a client's memory: how many batches it has trained on."""
NOTHING = torch.empty(0)


@message
class Begin:
    """The weights that every extractor starts from, and what Omega must be."""

    x: Weights
    frequencies: Count
    sigma: Scalar


@message
class Begun:
    """A checksum of the Omega that this client drew."""

    omega: Count


@message
class MeanRequest:
    """The first `frozen` parameters of G do not train; `whole` (0 or 1): a mean over an epoch, not over one batch."""

    frequencies: Count
    frozen: Count
    whole: Count


@message
class Mean:
    """The mean random feature (2 N,): Sigma l of the paper, a source's positive, the target's negative."""

    x: Annotated[Statistic, Check(shape=lambda ask, _: (2 * ask.frequencies,), zero_ok=False)]


@message
class Train:
    """Means of the other side (k, 2 N), none where there are none, and how to train: see the options of FedRF-TCA.

    `aligned`, `normalize`, `send_w`, `send_c` are 0 or 1; `steps` 0: the client's epochs.
    """

    others: Statistic
    frozen: Count
    components: Count
    width: Count
    weight: Scalar
    pace: Scalar
    aligned: Count
    normalize: Count
    steps: Count
    send_w: Count
    send_c: Count


def aligner_shape(ask: Train, layout: Layout) -> tuple[int, ...]:
    """(m 2 N,) where W was asked for."""
    return (ask.components * ask.others.shape[1] if ask.send_w else 0,)


def classifier_shape(ask: Train, layout: Layout) -> tuple[int, ...]:
    """The numbers of C, m -> width -> width -> classes, where it was asked for."""
    if not ask.send_c:
        return (0,)
    return (count(Parts(1, ask.components, ask.width, shape_of(layout).classes).classifier),)


@message
class Trained:
    """W (m 2 N,) and C, empty where they were not asked for; means over the steps; |W|_F afterwards."""

    x: Annotated[Statistic, Check(shape=aligner_shape, zero_ok=False)]
    c: Annotated[Statistic, Check(shape=classifier_shape, zero_ok=False)]
    n: Images
    loss: Scalar
    distance: Scalar
    norm: Scalar


@message
class Average:
    """What W and C become; empty: they stay. Several rows of C are the classifiers that vote."""

    w: Statistic
    c: Statistic


@message
class Received:
    """Nothing but that it arrived."""


@step("fedrf_tca.begin", batch_means=True)
def begin(client: Client, ask: Begin) -> Begun:
    """Draw Omega, and start G from the common weights unless it has been started before."""
    rng = stream(client.seed, "fedrf.omega")
    omega = frequencies(rng, ask.frequencies, shape_of(client.model.layout).d, ask.sigma)
    if G not in client.memory:
        client.memory |= {G: ask.x.clone(), STEP: torch.zeros(1, dtype=torch.int64)}
    client.memory[OMEGA] = omega
    return Begun(omega=checksum(omega))


@step("fedrf_tca.send_mean", batch_means=True)
def send_mean(client: Client, ask: MeanRequest) -> Mean:
    """The mean of the batch that the next step trains on, or of an epoch of batches, under the current G."""
    client.model.load(client.memory[G])
    first, omega = int(client.memory[STEP]), _omega(client)
    batches = [_batch(client, n) for n in range(first, first + (_batches_per_epoch(client) if ask.whole else 1))]
    with frozen_layers(client.model, ask.frozen):
        means = [fourier_features(unit(training_features(client, b.x)), omega).mean(0) for b in batches]
    x = torch.stack(means).mean(0).cpu()
    return Mean(x=x if client.role == "source" else -x)


def released_steps(client: Client, ask: Train) -> int | None:
    """The steps behind W and C; None where neither is sent."""
    return _steps(client, ask) if ask.send_w or ask.send_c else None


@step("fedrf_tca.train", steps=released_steps, batch_means=True)
def train(client: Client, ask: Train) -> Trained:
    """Algorithms 2 and 3: a source trains on its task and, aligned, towards the target; the target only aligns."""
    client.model.load(client.memory[G])
    first, steps = int(client.memory[STEP]), _steps(client, ask)
    if client.role == "target" and client.recipe.optimizer == "adam":  # the target's pace, for G and for W
        client = client.with_recipe(lr=client.recipe.lr * ask.pace)
    parts = parts_of(client, ask.components, ask.width)
    local = Local(client, (parts,))
    local.resume("fedrf.")  # a round is a few steps of one long training
    others = ask.others.to(client.model.theta.device)
    losses = Losses(local, parts, _omega(client), others, ask.weight, bool(ask.normalize), bool(ask.aligned))
    loss = zero_sum(client)
    start = client.model.theta[: ask.frozen].clone()  # weight decay would move what has no gradient
    with frozen_layers(client.model, ask.frozen):
        for number in range(first, first + steps):
            loss += local.step(_batch(client, number), losses)
            client.model.theta[: ask.frozen] = start
    local.keep("fedrf.")
    vector, cut = parts.read(), ask.components * ask.others.shape[1]
    w, c = vector[:cut].clone(), vector[cut:].clone()
    client.memory |= {G: client.model.read(), W: w, STEP: torch.tensor([first + steps])}
    if client.role == "source":
        client.memory[C] = c
    return Trained(
        x=w.clone() if ask.send_w else NOTHING,
        c=c.clone() if ask.send_c else NOTHING,
        n=len(client.data),
        loss=finite(client, float(loss) / steps),
        distance=float(losses.distance) / steps,
        norm=float(torch.linalg.vector_norm(w)),
    )


@step("fedrf_tca.receive_average")
def receive_average(client: Client, ask: Average) -> Received:
    """W and C as the server averaged them."""
    client.memory |= {k: v.clone() for k, v in ((W, ask.w), (C, ask.c)) if v.numel()}
    return Received()


STEPS = (begin, send_mean, train, receive_average)


def _steps(client: Client, ask: Train) -> int:
    return ask.steps or _batches_per_epoch(client) * client.recipe.epochs


def _omega(client: Client) -> Tensor:
    return client.memory[OMEGA].to(client.model.theta.device)


def parts_of(client: Client, components: int, width: int) -> FlatModel:
    """W and C as the client has them, or as they begin everywhere; the target trains no C."""
    module = Parts(len(client.memory[OMEGA]), components, width, shape_of(client.model.layout).classes)
    part = flat_part(module, torch.empty(0), stream(client.seed, "fedrf.parts"), client.model.theta.device)
    cut = module.aligner.weight.numel()
    if W in client.memory:
        part.theta[:cut] = client.memory[W].to(part.theta.device)
    if C in client.memory and client.role == "source":
        part.theta[cut:] = client.memory[C].to(part.theta.device)
    return part


def _batches_per_epoch(client: Client) -> int:
    """All batches have one size: the rest of the images waits for the next epoch's order."""
    return max(1, len(client.data) // min(client.recipe.batch, max(1, len(client.data))))


def _batch(client: Client, number: int) -> Batch:
    """Batch `number` of the client's whole training."""
    epoch, nth = divmod(number, _batches_per_epoch(client))
    size = min(client.recipe.batch, len(client.data))
    rng = stream(client.seed, client.name, "fedrf.batches")
    order = torch.from_numpy(rng.child("order", epoch).numpy.permutation(len(client.data)))
    return batch_of(client, order[nth * size : (nth + 1) * size], rng, epoch, nth)
