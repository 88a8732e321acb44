"""KD3A's teachers and student at the target, where there are no labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fdamed.core.rng import Stream
from fdamed.federation.client import Client
from fdamed.models.flat import sent
from fdamed.training.input import held, prepared
from fdamed.training.local import epochs
from fdamed.training.optimizer import Optimizer
from fdamed.training.precision import autocast

MIXUP = 2.0
"""Images and labels are mixed with a share ~ Beta(2, 2), in the released code."""


@dataclass(frozen=True)
class Distilled:
    """The mean loss over the steps, and the batches that were skipped because no image in them has weight."""

    loss: float
    steps: int
    skipped: int


@torch.no_grad()
def outputs(client: Client, teachers: Iterable[Tensor], adapt: bool) -> tuple[Tensor, Tensor]:
    """Softmax outputs (K, n, C) of K models on the same images and noise, and their buffers (K, B) afterwards.

    `adapt`: BatchNorm in training mode, so that outputs come from batch statistics and the buffers are drawn to the
    images'; one single image has no batch statistics and is judged with the running ones.
    """
    model, device = client.model, client.model.theta.device
    images, noise = held(client.data, device), client.data.noise
    order = torch.from_numpy(client.rng.child("outputs").numpy.permutation(len(images)))
    rows = list(torch.split(order, client.recipe.batch))
    if len(rows) > 1 and len(rows[-1]) == 1:
        rows[-2:] = [torch.cat(rows[-2:])]
    model.module.train(adapt and len(images) > 1)
    found, buffers = [], []
    for teacher in teachers:
        model.load(teacher)
        inputs = (prepared(images, part, device, client.rng, number, noise=noise) for number, part in enumerate(rows))
        q = torch.cat([torch.softmax(_logits(client, x), dim=1) for x in inputs]).cpu()
        found.append(q[order.argsort()])
        buffers.append(model.theta[model.layout.trainable :].to("cpu", copy=True))
    return torch.stack(found), torch.stack(buffers)


def distil(client: Client, label: Tensor, weight: Tensor, mixup: bool) -> Distilled:
    """Train the client's model with labels (n, C) that add up to 1 and weights (n,).

    With mixup by cross-entropy, otherwise by KL(label || output): the same gradient, and 0 where they agree.
    """
    model, device, recipe, rng = client.model, client.model.theta.device, client.recipe, client.rng
    images, n = held(client.data, device), len(client.data)
    optimizer = Optimizer(model, recipe)
    model.module.train(n > 1)
    total, steps, skipped = torch.zeros((), device=device), 0, 0
    for epoch, drawn in epochs(n, recipe, rng):
        for number, rows in enumerate(drawn):
            if not bool(weight[rows].any()):  # weight decay and momentum would move the model all the same
                skipped += 1
                continue
            at = (epoch, number)
            x = prepared(images, rows, device, rng, *at, augment=recipe.augment, noise=client.data.noise)
            y = sent(label[rows], device)
            if mixup:
                x, y = mixed(x, y, rng.child("mixup", *at))
            model.grad.zero_()
            losses = -(y * torch.log_softmax(_logits(client, x), dim=1)).sum(1)
            if not mixup:
                losses = losses - torch.special.entr(y).sum(1)
            value = (sent(weight[rows], device) * losses).mean()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += value.detach()
            steps += 1
    return Distilled(float(total) / max(1, steps), steps, skipped)


def _logits(client: Client, x: Tensor) -> Tensor:
    """(B, C) float32, computed in the client's precision."""
    with autocast(x.device, client.precision):
        logits: Tensor = client.model.module(x)
    return logits.float()


def mixed(x: Tensor, y: Tensor, rng: Stream) -> tuple[Tensor, Tensor]:
    """share x + (1 - share) x_pi and the labels likewise, with share ~ Beta(2, 2) and a random order pi."""
    share = float(rng.numpy.beta(MIXUP, MIXUP))
    other = sent(torch.from_numpy(rng.child("partner").numpy.permutation(len(x))), x.device)
    return share * x + (1.0 - share) * x[other], share * y + (1.0 - share) * y[other]
