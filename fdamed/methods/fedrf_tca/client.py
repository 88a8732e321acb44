"""What FedRF-TCA asks a hospital: a mean random feature, training towards the others' means, taking the averages.

A hospital's model is its own extractor G, random features with the shared Omega, the aligner W and the classifier C.
G stays in the hospital's memory, and no message has a place for it. What leaves is no secret by itself: a mean over one
image is a reversible code of its features, and a mean over unit vectors shows their mean direction. Hence the
hospital's own `smallest_batch`, below which nothing is computed or told, and `noise`; the server may ask for more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.federation.client import Client, check_minimum, step
from fdamed.federation.messages import Check, Count, Knowledge, Scalar, Statistic, Weights, message
from fdamed.methods._shared.adversarial_training import Batch, Local, batch_of, training_features
from fdamed.methods._shared.local_training import finite
from fdamed.methods.fedrf_tca.model import Alignment, Parts, still
from fdamed.models.adversarial import count, flat_part, shape_of
from fdamed.models.flat import FlatModel, Layout, checksum
from fdamed.ops.random_features import fourier_features, frequencies, unit


@message
class Begin:
    """The weights that every extractor starts from, and what Omega must be."""

    x: Weights
    frequencies: Count
    sigma: Scalar
    smallest: Count


@message
class Begun:
    """A checksum of the Omega that this hospital drew."""

    omega: Count
    n: Count


@message
class Call:
    """What a client must know to send its mean; the first `frozen` parameters of G stay as they are."""

    frequencies: Count
    smallest: Count
    frozen: Count
    noise: Scalar
    whole: Count


@message
class Told:
    """The mean random feature of one batch (2 N,): Sigma l of the paper, a source's positive, the target's negative."""

    x: Annotated[Tensor, Knowledge("statistic"), Check(shape=lambda ask, _: (2 * ask.frequencies,), zero_ok=False)]


@message
class Lesson:
    """Means of the other side (k, 2 N), none where there are none; to be aligned with if `aligned`; counts are 0 or 1
    but for the sizes, for `frozen` and for `steps` (0: the hospital's epochs)."""

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


def aligner_shape(ask: Lesson, layout: Layout) -> tuple[int, ...]:
    """(m 2 N,) where W was asked for."""
    return (ask.components * ask.others.shape[1] if ask.send_w else 0,)


def classifier_shape(ask: Lesson, layout: Layout) -> tuple[int, ...]:
    """The numbers of C, m -> width -> width -> classes, where it was asked for."""
    if not ask.send_c:
        return (0,)
    return (count(Parts(1, ask.components, ask.width, shape_of(layout).classes).classifier),)


@message
class Learned:
    """W (m 2 N,) and C, empty where they were not asked for; means over the steps; |W|_F afterwards."""

    x: Annotated[Tensor, Knowledge("statistic"), Check(shape=aligner_shape, zero_ok=False)]
    c: Annotated[Tensor, Knowledge("statistic"), Check(shape=classifier_shape, zero_ok=False)]
    n: Count
    loss: Scalar
    apart: Scalar
    norm: Scalar


@message
class Average:
    """What W and C become; empty: they stay. Several rows of C are the classifiers that vote."""

    w: Statistic
    c: Statistic


@message
class Taken:
    norm: Scalar


@step("fedrf_tca.begin")
def begin(client: Client, ask: Begin) -> Begun:
    """Draw Omega, and start G from the common weights unless it has been started before."""
    _guard(client, ask.smallest)
    omega = _drawn(client, ask.frequencies, ask.sigma)
    if "fedrf.g" not in client.memory:
        client.memory |= {"fedrf.g": ask.x.clone(), "fedrf.step": torch.zeros(1, dtype=torch.int64)}
    client.memory["fedrf.omega"] = omega
    return Begun(omega=checksum(omega), n=len(client.data))


@step("fedrf_tca.send_mean")
def tell(client: Client, ask: Call) -> Told:
    """The mean of the batch that the next step trains on, or of an epoch of batches, under the current G."""
    _guard(client, ask.smallest)
    client.model.load(client.memory["fedrf.g"])
    first, omega = int(client.memory["fedrf.step"]), _omega(client)
    batches = [_batch(client, n) for n in range(first, first + (_each(client) if ask.whole else 1))]
    with still(client.model, ask.frozen):
        x = (
            torch.stack([fourier_features(unit(training_features(client, b.x)), omega).mean(0) for b in batches])
            .mean(0)
            .cpu()
        )
    if ask.noise:
        # Replacing one image moves the mean over b images by 2/b at most.
        images = sum(len(b.x) for b in batches)
        x += ask.noise * 2.0 / images * torch.randn(len(x), generator=client.rng.child("noise").torch)
    return Told(x=x if client.role == "source" else -x)


@step("fedrf_tca.train")
def learn(client: Client, ask: Lesson) -> Learned:
    """Algorithms 2 and 3: a source learns its task and, aligned, the way to the target; the target only the way."""
    _guard(client, 0)
    client.model.load(client.memory["fedrf.g"])
    parts = _parts(client, ask.components, ask.width)
    local = Local(_paced(client, ask.pace), (parts,))
    local.resume_optimizers("fedrf.")  # a round is a few steps of one long training
    pull = Alignment(
        local, parts, _omega(client), ask.others.to(client.model.theta.device), ask.weight, bool(ask.normalize)
    )
    first = int(client.memory["fedrf.step"])
    steps = ask.steps or _each(client) * client.recipe.epochs
    if ask.send_w or ask.send_c:
        check_minimum(client, steps)
    loss = apart = 0.0
    start = client.model.theta[: ask.frozen].clone()  # weight decay would move what has no gradient
    with still(client.model, ask.frozen):
        for number in range(first, first + steps):
            pull.apart = 0.0
            loss += float(local.step(_batch(client, number), pull.aligned if ask.aligned else pull.task))
            apart += pull.apart
            client.model.theta[: ask.frozen] = start
    local.keep_heads()
    vector, cut = parts.read(), len(parts.module.aligner.weight.flatten())  # type: ignore[operator, union-attr]
    w, c = vector[:cut].clone(), vector[cut:].clone()
    client.memory |= {"fedrf.g": client.model.read(), "fedrf.w": w, "fedrf.step": torch.tensor([first + steps])}
    if client.role == "source":
        client.memory["fedrf.c"] = c
    local.keep_optimizers("fedrf.")
    nothing = torch.empty(0)
    return Learned(
        x=w.clone() if ask.send_w else nothing,
        c=c.clone() if ask.send_c else nothing,
        n=len(client.data),
        loss=finite(client, loss / steps),
        apart=apart / steps,
        norm=float(torch.linalg.vector_norm(w)),
    )


@step("fedrf_tca.receive_average")
def take(client: Client, ask: Average) -> Taken:
    """W and C as the server averaged them."""
    client.memory |= {f"fedrf.{k}": v.clone() for k, v in (("w", ask.w), ("c", ask.c)) if v.numel()}
    return Taken(norm=float(torch.linalg.vector_norm(client.memory.get("fedrf.w", torch.empty(0)))))


STEPS = (begin, tell, learn, take)


def _guard(client: Client, asked: int) -> None:
    """A mean over few images is refused: over one it is exp(i Omega x), from which x follows by least squares.

    The limit is the hospital's own; a server can raise it and never lower it.
    """
    images, limit = min(len(client.data), client.recipe.batch), max(1, client.smallest_batch, asked)
    if images < limit:
        whose = "the method's smallest_batch" if asked > client.smallest_batch else "its privacy.smallest_batch"
        raise FdamedError(
            f"a mean over {images} images would leave, fewer than {limit} ({whose}): whoever knows the seed can turn "
            "a mean over one image back into its features exactly, and one over few nearly so",
            f"hospital {client.name}",
            f"Use batches of {limit} images or more, or leave this hospital out; what is enough is for it to say in "
            "privacy.smallest_batch.",
        )


def _drawn(client: Client, count: int, sigma: float) -> Tensor:
    return frequencies(stream(client.seed, "fedrf.omega"), count, shape_of(client.model.layout).d, sigma)


def _omega(client: Client) -> Tensor:
    return client.memory["fedrf.omega"].to(client.model.theta.device)


def _parts(client: Client, components: int, width: int) -> FlatModel:
    """W and C as the hospital has them, or as they begin everywhere."""
    module = Parts(len(client.memory["fedrf.omega"]), components, width, shape_of(client.model.layout).classes)
    part = flat_part(module, torch.empty(0), stream(client.seed, "fedrf.parts"), client.model.theta.device)
    cut = module.aligner.weight.numel()
    with torch.no_grad():
        if "fedrf.w" in client.memory:
            part.theta[:cut] = client.memory["fedrf.w"].to(part.theta.device)
        if "fedrf.c" in client.memory and client.role == "source":
            part.theta[cut:] = client.memory["fedrf.c"].to(part.theta.device)
    return part


def _paced(client: Client, pace: float) -> Client:
    """The target with its share of the learning rate, for G and for W; with SGD, and at a source, as it is."""
    if client.role == "source" or client.recipe.optimizer != "adam":
        return client
    return replace(client, recipe=client.recipe.model_copy(update={"lr": client.recipe.lr * pace}))


def _each(client: Client) -> int:
    """Batches of an epoch, all of one size: the rest waits for the next order."""
    return max(1, len(client.data) // min(client.recipe.batch, max(1, len(client.data))))


def _batch(client: Client, number: int) -> Batch:
    """Batch `number` of the hospital's whole training."""
    epoch, nth = divmod(number, _each(client))
    size = min(client.recipe.batch, len(client.data))
    rng = stream(client.seed, client.name, "fedrf.batches")
    order = torch.from_numpy(rng.child("order", epoch).numpy.permutation(len(client.data)))
    return batch_of(client, order[nth * size : (nth + 1) * size], rng, epoch, nth)
