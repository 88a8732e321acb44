"""What a survey asks of a hospital: train a little, a source's mean gradient, how the target's lies to the sources'.

The target gets the sources' unit directions and answers with inner products, their covariance and bootstrap resamples
of both. Its gradients never leave it, and it keeps no more than a few thousand numbers of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fdamed.config.privacy import local_steps
from fdamed.core.rng import Stream, stream
from fdamed.data.loader import Labeled
from fdamed.federation.client import Client, enough, step
from fdamed.federation.messages import Count, Individual, Scalar, Statistic, Update, Weights, message
from fdamed.federation.method import Model
from fdamed.methods._shared.local_training import Trained, train_locally
from fdamed.models.flat import Layout
from fdamed.ops.aggregation import inner_products
from fdamed.training.local import fit
from fdamed.training.optimizer import Optimizer

FOLD = 1 << 15
"""Numbers of a folded gradient: inner products of folded vectors are off by about 1 / 180 of the lengths."""


@message
class Part:
    """A model, and how many images to use, in batches of which size."""

    x: Weights
    images: Count
    batch: Count


@message
class Gradient:
    """A source's mean gradient (buffers zero), and the variance of that mean by tensor, (L,)."""

    g: Update
    n: Count
    used: Count
    noise2: Statistic


@message
class Question:
    """The model, the unit directions of the sources (N, P), the length of each tensor's unit (L,), and how to go on."""

    x: Weights
    u: Individual
    unit: Statistic
    images: Count
    batch: Count
    replicates: Count


@message
class Lie:
    """sigma^2, |v^|^2, <v^, u> (N,) and its covariance (N, N); the same for R resamples of the target's batches."""

    n: Count
    used: Count
    batches: Count
    sigma2: Scalar
    mean2: Scalar
    t: Statistic
    cov: Statistic
    sigma2_again: Statistic
    mean2_again: Statistic
    t_again: Statistic
    cov_again: Statistic


class Still(Optimizer):
    """Takes no step: the gradients of all batches are taken at one theta."""

    def __init__(self) -> None: ...

    def step(self) -> None: ...


@step("survey.train")
def train_a_little(client: Client, ask: Part) -> Trained:
    """One pass over some of the images, as ever else."""
    few = max(
        ask.images, client.floor.steps * client.recipe.batch
    )  # a model of fewer steps does not leave the hospital
    part = _some(client, few, client.rng.child("part"))
    enough(client, local_steps(len(part.data), client.recipe.batch, epochs=1))
    part = replace(part, recipe=client.recipe.model_copy(update={"epochs": 1}))
    trained: Trained = train_locally.run(part, Model(x=ask.x))
    return trained


@step("survey.gradient")
def gradient(client: Client, ask: Part) -> Gradient:
    """The mean gradient over some of the images, and how far chance may have moved it."""
    client.model.load(ask.x)
    part = _some(client, ask.images, client.rng.child("part"))
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
def lie(client: Client, ask: Question) -> Lie:
    """How the target's gradient lies to the sources' directions, and how sure that is."""
    client.model.load(ask.x)
    rng = stream(client.seed, client.name, "advice")  # the same batches and resamples at every point
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
    whole = torch.full((1, b), 1.0 / b, dtype=torch.float64)
    again = torch.zeros(ask.replicates, b, dtype=torch.float64)
    drawn = torch.randint(0, b, (ask.replicates, b), generator=rng.child("bootstrap").torch)
    again.scatter_add_(1, drawn, torch.full(drawn.shape, 1.0 / b, dtype=torch.float64))
    mean2 = float(inner_products(total, total[None], layout, per_layer=False)[2][0]) / b**2
    sigma2, _, t_mean, cov = _moments(whole, t, a, gram, scale, torch.tensor([mean2], dtype=torch.float64))
    sigma2_again, mean2_again, t_again, cov_again = _moments(again, t, a, gram, scale)
    return Lie(
        n=len(client.data),
        used=len(part.data),
        batches=b,
        sigma2=float(sigma2[0]),
        mean2=mean2,
        t=t_mean[0],
        cov=cov[0],
        sigma2_again=sigma2_again,
        mean2_again=mean2_again,
        t_again=t_again,
        cov_again=cov_again,
    )


def by_tensor(g: Tensor, layout: Layout) -> Tensor:
    """|g|^2 of each parameter tensor, (L,) float64."""
    return torch.stack([torch.linalg.vector_norm(g[s.start : s.stop]).double().square() for s in layout.parameters])


def spread(values: Tensor, layout: Layout) -> Tensor:
    """One number a tensor (L,) -> one for each of its entries, (trainable,) float32."""
    return torch.repeat_interleave(values.float(), torch.tensor([s.stop - s.start for s in layout.parameters]))


def _some(client: Client, images: int, rng: Stream) -> Client:
    """The hospital with so many of its images, drawn at random; never fewer than its floor."""
    data, images = client.data, max(images, client.floor.images)
    if images >= len(data):
        return client
    rows = rng.numpy.permutation(len(data))[:images]
    rows.sort()
    if not isinstance(data, Labeled):
        raise TypeError("a hospital without labels was asked for gradients")
    auxiliary = {k: v[rows] for k, v in data.auxiliary.items()}
    return replace(client, data=replace(data, images=data.images[rows], y=data.y[rows], auxiliary=auxiliary))


def _visit(client: Client, batch: int, rng: Stream, see: Callable[[Tensor], None]) -> None:
    """Show `see` the flat gradient of each batch at the model as it stands."""
    recipe = client.recipe.model_copy(update={"batch": batch, "epochs": 1})
    fit(client.model, client.data, recipe, rng, correct=see, optimizer=Still(), precision=client.precision)


def _folded(g: Tensor) -> Tensor:
    """Sums over every FOLD-th entry; with random signs inner products are kept on average."""
    if len(g) <= FOLD:
        return g
    rest = -len(g) % FOLD
    return torch.cat([g, g.new_zeros(rest)]).view(-1, FOLD).sum(0)


def _moments(
    c: Tensor, t: Tensor, a: Tensor, gram: Tensor, scale: float, mean2: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """sigma^2 (R,), |mean|^2 (R,), mean t (R, N), its covariance (R, N, N) for weights c (R, B) of the batches."""
    b = len(t)
    grown = b / (b - 1) * scale
    mean2 = torch.einsum("rj,jk,rk->r", c, gram, c) if mean2 is None else mean2
    t_mean = c @ t
    apart = t[None] - t_mean[:, None]
    cov = torch.einsum("rj,rji,rjk->rik", c, apart, apart) * grown
    return ((c @ a - mean2).clamp(min=0.0) * grown, mean2, t_mean, cov)
