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
class Distilled:
    """The mean loss over the steps, and the batches that were skipped because no image in them has weight."""

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
    found, buffers = [], []
    for vector in vectors:
        model.load(vector)
        q = []
        for number, part in enumerate(rows):
            x = prepared(images, part, device, rng, number, noise=noise)
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                logits = model.module(x)
            q.append(torch.softmax(logits.float(), dim=1).cpu())
        found.append(torch.cat(q)[order.argsort()])
        buffers.append(model.theta[model.layout.trainable :].to("cpu", copy=True))
    return torch.stack(found), torch.stack(buffers)


def distil(
    model: FlatModel,
    images: Tensor,
    label: Tensor,
    weight: Tensor,
    recipe: Recipe,
    rng: Stream,
    *,
    mixup: float = 0.0,
    soft: bool = False,
    noise: float = 0.0,
    precision: str = "float32",
) -> Distilled:
    """Train `model` in place on images (n, ...) with labels (n, C) that add up to 1 and weights (n,).

    `mixup`: images and labels are mixed with a share ~ Beta(mixup, mixup). `soft`: KL(label || output) rather than
    cross-entropy, which has the same gradient and is 0 where they agree. `noise`: its deviation, drawn at each step.
    """
    device, n = model.theta.device, len(images)
    optimizer = Optimizer(model, recipe)
    model.module.train(n > 1)
    total, steps, skipped = torch.zeros((), device=device), 0, 0
    for epoch in range(recipe.epochs):
        for number, rows in enumerate(batches(n, recipe.batch, rng.child("order", epoch))):
            if not bool(weight[rows].any()):  # weight decay and momentum would move the model all the same
                skipped += 1
                continue
            at = (epoch, number)
            x = prepared(images, rows, device, rng, *at, augment=recipe.augment, noise=noise)
            y = label[rows].to(device)
            if mixup:
                x, y = mixed(x, y, mixup, rng.child("mixup", *at))
            model.grad.zero_()
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                logits = model.module(x)
            losses = -(y * torch.log_softmax(logits.float(), dim=1)).sum(1)
            if soft:
                losses = losses - torch.special.entr(y).sum(1)
            value = (weight[rows].to(device) * losses).mean()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += value.detach()
            steps += 1
    return Distilled(float(total) / max(1, steps), steps, skipped)


def mixed(x: Tensor, y: Tensor, beta: float, rng: Stream) -> tuple[Tensor, Tensor]:
    """share x + (1 - share) x_pi and the labels likewise, with share ~ Beta(beta, beta) and a random order pi."""
    share = float(rng.numpy.beta(beta, beta))
    other = torch.from_numpy(rng.child("partner").numpy.permutation(len(x))).to(x.device)
    return share * x + (1.0 - share) * x[other], share * y + (1.0 - share) * y[other]
