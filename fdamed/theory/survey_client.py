"""The steps of a survey: a source's mean gradient, the target's inner products with the sources', its held-out loss.

The target receives the sources' unit directions and sends inner products, their covariance and bootstrap resamples
of both. Its gradients never leave the client; it keeps a sketch of a few thousand numbers of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.core.rng import Stream, stream
from fdamed.federation.client import Client, check_one_pass, step
from fdamed.federation.messages import Check, Count, Images, Individual, Scalar, Statistic, Update, Weights, message
from fdamed.federation.method import Model
from fdamed.models.flat import Layout
from fdamed.ops.aggregation import inner_products
from fdamed.training.local import fit, predict
from fdamed.training.optimizer import Optimizer

FOLD = 1 << 15
"""Numbers of a folded gradient: inner products of folded vectors have an error of about 1 / 180 of the norms."""
SMALLEST = 1e-12
"""Least probability of the true class that a loss is computed from."""


@message
class Part:
    """A model, the number of images to use, and the batch size."""

    x: Weights
    images: Count
    batch: Count


@message
class Gradient:
    """A source's mean gradient (buffers zero), and the variance of that mean by tensor, (L,)."""

    g: Update
    n: Images
    used: Count
    noise2: Annotated[Statistic, Check(shape=lambda _, layout: (len(layout.parameters),), dtype=torch.float64)]


@message
class Question:
    """The model, the unit directions of the sources (N, P), the unit of each tensor (L,), and the sample sizes."""

    x: Weights
    u: Individual
    unit: Statistic
    images: Count
    batch: Count
    replicates: Count


def _resampled(ask: Question, axes: int = 0) -> tuple[int, ...]:
    return (1 + ask.replicates, *[len(ask.u)] * axes)


@message
class Geometry:
    """sigma^2 (1 + R,), |v^|^2 (1 + R,), <v^, u> (1 + R, N) and its covariance (1 + R, N, N): the estimate, then those
    of R resamples of the target's batches."""

    n: Images
    used: Count
    sigma2: Annotated[Statistic, Check(shape=lambda ask, _: _resampled(ask), dtype=torch.float64)]
    mean2: Annotated[Statistic, Check(shape=lambda ask, _: _resampled(ask), dtype=torch.float64)]
    t: Annotated[Statistic, Check(shape=lambda ask, _: _resampled(ask, 1), dtype=torch.float64)]
    cov: Annotated[Statistic, Check(shape=lambda ask, _: _resampled(ask, 2), dtype=torch.float64)]


@message
class HeldOut:
    """The mean loss of the images that the target holds out, and their number."""

    loss: Scalar
    n: Images


class Still(Optimizer):
    """An optimizer that takes no step: all gradients are taken at one theta."""

    def __init__(self) -> None: ...

    def step(self, overflow: Tensor | None = None) -> None: ...


@step("survey.held_out")
def measure_held_out(client: Client, ask: Model) -> HeldOut:
    """The mean loss of a model on the images that the target holds out; noise is the same for every model."""
    held_out: Any = client.data.held_out  # type: ignore[union-attr]  # the client of a trial has it
    if refused := client.minimum.refusal(client.name, len(held_out)):
        what = f"a fold of the labeled images is too small to send its mean loss: {refused.what}"
        raise FdamedError(what, refused.where, "Label more images, or lower privacy.smallest_images if it agrees.")
    client.model.load(ask.x)
    p = predict(client.model, held_out, rng=stream(client.seed, client.name, "held out"))
    loss = -np.log(p[np.arange(len(p)), held_out.y].clip(min=SMALLEST)).mean(dtype=np.float64)
    return HeldOut(loss=float(loss), n=len(held_out))


@step("survey.gradient")
def gradient(client: Client, ask: Part) -> Gradient:
    """The mean gradient over some of the images, and the variance of that mean."""
    client.model.load(ask.x)
    part = _enough(client, ask.images)
    layout = client.model.layout
    total, count = torch.zeros(layout.trainable, device=client.model.grad.device), 0
    square = torch.zeros(len(layout.parameters), dtype=torch.float64)

    def add(g: Tensor) -> None:
        nonlocal count
        total.add_(g)
        square.add_(by_tensor(g.cpu(), layout))
        count += 1

    _visit(part, ask.batch, client.rng, add)
    g = torch.zeros(layout.size)
    g[: len(total)] = total.div_(count).cpu()
    noise2 = (square / count - by_tensor(g, layout)).clamp(min=0.0) / max(count - 1, 1)
    return Gradient(g=g, n=len(client.data), used=len(part.data), noise2=noise2)


@step("survey.geometry")
def measure_geometry(client: Client, ask: Question) -> Geometry:
    """Inner products of the target's gradient with the sources' directions, with bootstrap resamples."""
    client.model.load(ask.x)
    rng = stream(client.seed, client.name, "advice")
    part = _some(client, ask.images, rng.child("part"))
    layout = client.model.layout
    g, total = torch.zeros(layout.size), torch.zeros(layout.size)
    signs = torch.randint(0, 2, (layout.trainable,), dtype=torch.int8, generator=rng.child("signs").torch)
    signs.mul_(2).sub_(1)
    dots, squares, folded = [], [], []
    inverse = 1.0 / spread(ask.unit, layout)

    def compare(grad: Tensor) -> None:
        torch.mul(grad.cpu(), inverse, out=g[: layout.trainable])
        total.add_(g)
        dot, _, square = inner_products(g, ask.u, layout, per_layer=False)
        dots.append(dot[:, 0])
        squares.append(square[0])
        folded.append(_folded(g[: layout.trainable] * signs))

    _visit(part, ask.batch, rng.child("order"), compare)
    b = len(dots)
    scale = len(part.data) / len(client.data) / b  # variance of one batch -> of all labeled images
    t, a, f = torch.stack(dots), torch.stack(squares), torch.stack(folded).double()
    gram = f @ f.t()
    gram.diagonal().copy_(a)
    # Weights of the batches, (1 + R, B): all alike, then as often as the bootstrap draws them.
    drawn = torch.randint(0, b, (ask.replicates, b), generator=rng.child("bootstrap").torch)
    weights = torch.zeros(1 + ask.replicates, b, dtype=torch.float64)
    weights[0] = 1.0 / b
    weights[1:].scatter_add_(1, drawn, torch.full(drawn.shape, 1.0 / b, dtype=torch.float64))
    mean2 = torch.einsum("rj,jk,rk->r", weights, gram, weights)
    mean2[0] = float(inner_products(total, total[None], layout, per_layer=False)[2][0]) / b**2  # exact, not folded
    t_mean = weights @ t
    apart = t[None] - t_mean[:, None]
    unbiased = b / (b - 1) * scale
    return Geometry(
        n=len(client.data),
        used=len(part.data),
        sigma2=(weights @ a - mean2).clamp(min=0.0) * unbiased,
        mean2=mean2,
        t=t_mean,
        cov=torch.einsum("rj,rji,rjk->rik", weights, apart, apart) * unbiased,
    )


def by_tensor(g: Tensor, layout: Layout) -> Tensor:
    """|g|^2 of each parameter tensor, (L,) float64."""
    return torch.stack([torch.linalg.vector_norm(g[s.start : s.stop]).double().square() for s in layout.parameters])


def spread(values: Tensor, layout: Layout) -> Tensor:
    """One number per tensor (L,) -> one for each of its entries, (trainable,) float32."""
    return torch.repeat_interleave(values.float(), torch.tensor([s.stop - s.start for s in layout.parameters]))


def _enough(client: Client, images: int) -> Client:
    """The client with so many images, or more, that one pass over them has the privacy policy's minimum of steps."""
    part = _some(client, max(images, client.minimum.steps * client.recipe.batch), client.rng.child("part"))
    check_one_pass(part)
    return part


def _some(client: Client, images: int, rng: Stream) -> Client:
    """The client with a random subset of its images; never fewer than the privacy policy's minimum."""
    data: Any = client.data  # the survey's clients all have labels
    images = max(images, client.minimum.images)
    if images >= len(data):
        return client
    rows = rng.numpy.permutation(len(data))[:images]
    rows.sort()
    auxiliary = {k: v[rows] for k, v in data.auxiliary.items()}
    return replace(client, data=replace(data, images=data.images[rows], y=data.y[rows], auxiliary=auxiliary))


def _visit(client: Client, batch: int, rng: Stream, see: Callable[[Tensor], None]) -> None:
    """Call `see` with the flat gradient of each batch; the model does not change."""
    recipe = client.recipe.model_copy(update={"batch": batch, "epochs": 1})
    fit(client.model, client.data, recipe, rng, correct=see, optimizer=Still(), precision=client.precision)


def _folded(g: Tensor) -> Tensor:
    """Sums over every FOLD-th entry; with random signs this keeps inner products in expectation."""
    return torch.nn.functional.pad(g, (0, -len(g) % FOLD)).view(-1, FOLD).sum(0)
