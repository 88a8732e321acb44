"""Learning from other models' outputs where there are no labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fdamed.config.study import Recipe
from fdamed.core.rng import Stream
from fdamed.models.flat import FlatModel
from fdamed.training.local import batches, prepared
from fdamed.training.optimizer import Optimizer


@dataclass(frozen=True)
class Distillation:
    """What to learn: `images` (n, ...), `label` (n, C) that adds up to 1 and `weight` (n,) of each."""

    images: Tensor
    label: Tensor
    weight: Tensor
    mixup: float = 0.0
    """Images and labels are mixed with a share ~ Beta(mixup, mixup); 0: not at all."""
    soft: bool = False
    """KL(label || output) rather than cross-entropy: the same gradient, and 0 where they agree."""
    noise: float = 0.0
    """Standard deviation of the noise on the images, drawn anew at each step."""


@dataclass(frozen=True)
class Distilled:
    """What it came to: the mean loss over the steps, and the batches passed over because nothing in them has weight."""

    loss: float
    steps: int
    skipped: int


@torch.no_grad()
def outputs(
    model: FlatModel,
    vectors: Iterable[Tensor],
    images: Tensor,
    batch: int,
    rng: Stream,
    *,
    adapt: bool = False,
    noise: float = 0.0,
    precision: str = "float32",
) -> tuple[Tensor, Tensor]:
    """Softmax outputs (K, n, C) of K models on the same images and noise, and their buffers (K, B) afterwards.

    `adapt`: BatchNorm in training mode, so that outputs come from batch statistics and the buffers are drawn to the
    images'; one single image has no batch statistics and is judged with the running ones.
    """
    device = model.theta.device
    order = torch.from_numpy(rng.child("outputs").numpy.permutation(len(images)))
    rows = list(torch.split(order, batch))
    if len(rows) > 1 and len(rows[-1]) == 1:
        rows[-2:] = [torch.cat(rows[-2:])]
    model.module.train(adapt and len(images) > 1)
    told, buffers = [], []
    for vector in vectors:
        model.load(vector)
        q = []
        for number, part in enumerate(rows):
            x = prepared(images, part, device, rng, number, noise=noise)
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                logits = model.module(x)
            q.append(torch.softmax(logits.float(), dim=1).cpu())
        told.append(torch.cat(q)[order.argsort()])
        buffers.append(model.theta[model.layout.trainable :].to("cpu", copy=True))
    return torch.stack(told), torch.stack(buffers)


def distil(
    model: FlatModel, lesson: Distillation, recipe: Recipe, rng: Stream, *, precision: str = "float32"
) -> Distilled:
    """Train `model` in place on the lesson for `recipe.epochs` epochs; the loss is averaged over whole batches."""
    device, n = model.theta.device, len(lesson.images)
    optimizer = Optimizer(model, recipe)
    model.module.train(n > 1)
    total, steps, skipped = torch.zeros((), device=device), 0, 0
    for epoch in range(recipe.epochs):
        for number, rows in enumerate(batches(n, recipe.batch, rng.child("order", epoch))):
            if not bool(lesson.weight[rows].any()):  # weight decay and momentum would move the model all the same
                skipped += 1
                continue
            at = (epoch, number)
            x = prepared(lesson.images, rows, device, rng, *at, augment=recipe.augment, noise=lesson.noise)
            y = lesson.label[rows].to(device)
            if lesson.mixup:
                x, y = mixed(x, y, lesson.mixup, rng.child("mixup", *at))
            model.grad.zero_()
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                logits = model.module(x)
            losses = -(y * torch.log_softmax(logits.float(), dim=1)).sum(1)
            if lesson.soft:
                losses = losses - torch.special.entr(y).sum(1)
            value = (lesson.weight[rows].to(device) * losses).mean()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += value.detach()
            steps += 1
    return Distilled(float(total) / max(1, steps), steps, skipped)


def mixed(x: Tensor, y: Tensor, beta: float, rng: Stream) -> tuple[Tensor, Tensor]:
    """share x + (1 - share) x_pi and the labels likewise; one share ~ Beta(beta, beta) and one order pi a batch."""
    share = float(rng.numpy.beta(beta, beta))
    other = torch.from_numpy(rng.child("partner").numpy.permutation(len(x))).to(x.device)
    return share * x + (1.0 - share) * x[other], share * y + (1.0 - share) * y[other]
