"""The local training loop; `loss`, `task`, `descend` and `correct` are the hooks that the papers need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fdamed.config.study import Recipe
from fdamed.core.errors import FdamedError
from fdamed.core.rng import Stream
from fdamed.data.loader import Labeled, Unlabeled
from fdamed.models.flat import FlatModel, sent
from fdamed.models.heads import auxiliary_loss
from fdamed.training.input import as_input, feed, held, noisy, varied
from fdamed.training.optimizer import Optimizer
from fdamed.training.precision import HALF, GradientScaler, in_half

if TYPE_CHECKING:
    from fdamed.training.dp_sgd import Mechanism

Floats = NDArray[np.float32]
Loss = Callable[[FlatModel, Tensor, Tensor], Tensor]
"""(model, images (B, 1, S, S), labels (B,)) -> scalar."""
Task = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(images (B, 1, S, S), features (B, d), labels (B,)) -> scalar: replaces the main head's cross-entropy."""
Descend = Callable[[Callable[[], Tensor]], Tensor]
"""Computes the batch's loss, perhaps more than once, and adds its own gradient to the models' -> the loss."""
Correct = Callable[[Tensor], None]
"""Changes the flat gradient (P,) in place before the step."""
PREDICTED = 256
"""Images that are predicted together."""


@dataclass(frozen=True)
class Outcome:
    """What local training came to; the model itself stays in the FlatModel."""

    loss: float
    """Of the task, without the auxiliary heads' losses."""
    steps: int
    """That were taken: without those that float16 skipped because a gradient overflowed, and at least one."""


@dataclass
class AuxiliaryTasks:
    """The heads that train along (healthcare paper, Eq. 3): L_main + alpha * sum_k L_aux_k."""

    heads: nn.ModuleDict
    names: tuple[str, ...]
    alpha: float
    private: FlatModel | None = None
    """The heads as a model of their own; None: they are a part of the network."""
    total: Tensor | float = 0.0
    """Sum over the batches of sum_k L_aux_k, without alpha."""
    steps: int = 0
    _batch: Tensor | None = None

    def loss(self, features: Tensor, labels: dict[str, Tensor]) -> Tensor:
        """alpha * sum_k L_aux_k of a batch."""
        value = auxiliary_loss(self.heads, features, labels)
        if self._batch is None:  # a hook may compute the loss of a batch again, at other weights
            self._batch = value.detach()
        return self.alpha * value

    def settle(self) -> Tensor | float:
        """alpha * sum_k L_aux_k of the batch that was just trained on; it counts in `total` from now on."""
        batch, self._batch = self._batch, None
        if batch is None:
            return 0.0
        self.total, self.steps = self.total + batch, self.steps + 1
        return self.alpha * batch


def fit(
    model: FlatModel,
    data: Labeled | Unlabeled,
    recipe: Recipe,
    rng: Stream,
    *,
    loss: Loss | None = None,
    task: Task | None = None,
    descend: Descend | None = None,
    correct: Correct | None = None,
    auxiliary: AuxiliaryTasks | None = None,
    optimizer: Optimizer | None = None,
    private: Mechanism | None = None,
    precision: str = "float32",
    memory: dict[str, Tensor] | None = None,
) -> Outcome:
    """Train `model` in place on `data` for `recipe.epochs` epochs, if `private` by DP-SGD -> the task's mean loss.

    `memory`: the client's, where a gradient scaler for float16 continues.
    """
    if private and (loss or task or descend or auxiliary or precision != "float32"):
        raise TypeError("under noise a client trains the main task alone, in float32")
    if not isinstance(data, Labeled):
        raise TypeError("a client without labels was asked to train with labels")
    device = model.theta.device
    images = held(data, device)
    labels = sent(torch.from_numpy(data.y), device)
    names = auxiliary.names if auxiliary else ()
    side = {k: sent(torch.from_numpy(data.auxiliary[k]), device) for k in names}
    optimizer = optimizer or Optimizer(model, recipe)
    scaler = GradientScaler(device, memory or {}) if precision == "float16" else None
    heads = auxiliary.private if auxiliary else None
    head_optimizer = Optimizer(heads, recipe) if heads else None
    model.module.train(len(data) > 1)  # a single image has no spread: it trains with running statistics
    total, skipped, steps = torch.zeros((), device=device), torch.zeros((), device=device), 0
    for epoch, plain in epochs(len(data), recipe, rng):
        drawn = private.batches(recipe.batch, rng.child("order", epoch)) if private else plain
        for number, (rows, pixels) in enumerate(feed(images, drawn, device)):
            x = varied(pixels, rows, rng, epoch, number, augment=recipe.augment, noise=data.noise)
            y = labels.index_select(0, rows)
            overflow = None
            model.grad.zero_()
            if heads:
                heads.grad.zero_()
            b = {k: v[rows] for k, v in side.items()}
            objective: Callable[[], Tensor] = partial(local_loss, model, x, y, b, auxiliary, loss, task)
            if precision in HALF:
                objective = in_half(objective, device, precision)
            if private:
                value = private.gradient(model, x, y, recipe.batch, rng.child("private", epoch, number))
            elif descend:
                value = descend(objective)
            elif scaler:
                value = objective()
                overflow = scaler.backward(value, *(m.grad for m in (model, heads) if m))
                skipped += overflow
            else:
                value = objective()
                value.backward()  # type: ignore[no-untyped-call]
            if correct:
                correct(model.grad)
            optimizer.step(overflow)
            if head_optimizer:
                head_optimizer.step(overflow)
            total += value.detach() - auxiliary.settle() if auxiliary else value.detach()
            steps += 1
    if scaler and memory is not None:
        scaler.keep(memory)
    if steps == 0:
        raise FdamedError("there is nothing to train on", "local training", "Give this hospital at least two images.")
    return Outcome(float(total) / steps, max(1, steps - int(skipped)) if scaler else steps)


def local_loss(
    model: FlatModel,
    x: Tensor,
    y: Tensor,
    side: dict[str, Tensor],
    auxiliary: AuxiliaryTasks | None = None,
    loss: Loss | None = None,
    task: Task | None = None,
) -> Tensor:
    """What a client minimizes, on one batch; `side` has the batch's auxiliary labels."""
    if not (auxiliary or task):
        return loss(model, x, y) if loss else F.cross_entropy(model.module(x), y)
    f = model.module.features(x)  # type: ignore[operator]  # every network here has features
    value = task(x, f, y) if task else F.cross_entropy(model.module.head(f), y)  # type: ignore[operator]
    if auxiliary:
        value = value + auxiliary.loss(f, side)
    return value


def epochs(n: int, recipe: Recipe, rng: Stream) -> Iterator[tuple[int, Iterator[Tensor]]]:
    """Each epoch of a round with the rows of its batches; no batch after `recipe.steps` of them."""
    left = recipe.steps
    for epoch in range(recipe.epochs):
        rows = list(batches(n, recipe.batch, rng.child("order", epoch)))[:left]
        yield epoch, iter(rows)
        left = None if left is None else left - len(rows)


def batches(n: int, size: int, rng: Stream) -> Iterator[Tensor]:
    """Rows of each batch of one shuffled epoch; a last batch of one sample is left out (BatchNorm cannot use it)."""
    order = torch.from_numpy(rng.numpy.permutation(n))
    for start in range(0, n, size):
        rows = order[start : start + size]
        if len(rows) > 1 or n == 1:
            yield rows


def in_order(n: int, size: int) -> Iterator[Tensor]:
    """Rows of batches that hold every sample once, in order."""
    for start in range(0, n, size):
        yield torch.arange(start, min(start + size, n))


def predict(model: FlatModel, data: Labeled | Unlabeled, batch: int = PREDICTED, rng: Stream | None = None) -> Floats:
    """Probabilities (n, C) in evaluation mode; noisy data takes its noise from `rng`."""
    parts = _forward(model, data, lambda x: torch.softmax(model.module(x).float(), dim=1), batch, rng)
    return torch.cat(parts).cpu().numpy() if parts else np.empty((0, 2), np.float32)


def embed(model: FlatModel, data: Labeled | Unlabeled, batch: int = PREDICTED, rng: Stream | None = None) -> Tensor:
    """Features (n, d) float32 in evaluation mode; noisy data takes its noise from `rng`."""
    features: Callable[[Tensor], Tensor] = model.module.features  # type: ignore[assignment]
    parts = _forward(model, data, lambda x: features(x).float(), batch, rng)
    return torch.cat(parts).cpu() if parts else torch.empty(0, 0)


@torch.inference_mode()
def _forward(
    model: FlatModel, data: Labeled | Unlabeled, function: Callable[[Tensor], Tensor], batch: int, rng: Stream | None
) -> list[Tensor]:
    if data.noise and rng is None:
        raise TypeError("noisy data needs a stream for its noise")
    model.module.eval()
    device = model.theta.device
    images, parts = held(data, device), []
    for rows, pixels in feed(images, in_order(len(data), batch), device):
        x = as_input(pixels)
        parts.append(function(noisy(x, rows, data.noise, rng) if rng and data.noise else x))
    return parts
