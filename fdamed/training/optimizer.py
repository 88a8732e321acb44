"""How a step is taken: Adam or plain SGD, on a model that is one vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from fdamed.config.study import Recipe
from fdamed.models.flat import FlatModel

ADAM: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False, "maximize": False}


class Trainable(Protocol):
    """What is trained: parameters and their gradients, both flat."""

    @property
    def trainable(self) -> Tensor: ...
    @property
    def grad(self) -> Tensor: ...


class Optimizer:
    """Adam or plain SGD on the flat vector, one pass over memory.

    `torch._fused_adam_` is what torch.optim.Adam(fused=True) calls; constructing an optimizer of torch.optim would
    import the compiler (about 5 s of CPU) in every job (decision 0004).
    """

    def __init__(self, model: Trainable, recipe: Recipe) -> None:
        self._model = model
        self._recipe = recipe
        adam = recipe.optimizer == "adam"
        self.mean = torch.zeros_like(model.grad) if adam else None
        self.square = torch.zeros_like(model.grad) if adam else None
        self.count = torch.zeros((), device=model.grad.device)
        self._heads = model.layout.heads if recipe.weight_decay and isinstance(model, FlatModel) else ()

    def step(self, overflow: Tensor | None = None) -> None:
        """Take a step; where `overflow` is 1, none (float16)."""
        theta, grad, recipe = self._model.trainable, self._model.grad, self._recipe
        with torch.no_grad():
            decay, still = recipe.weight_decay, [head for head in self._heads if not grad[head].any()]
            if still:  # an auxiliary head without a loss stays where it is: it must not decay at the target
                grad, decay = grad.add(theta, alpha=decay), 0.0
                for head in still:
                    grad[head] = 0.0
            if self.mean is None or self.square is None:
                grad = grad.add(theta, alpha=decay) if decay else grad
                theta.add_(grad if overflow is None else grad * (1.0 - overflow), alpha=-recipe.lr)
                return
            self.count += 1
            options = ADAM | {"lr": recipe.lr, "weight_decay": decay, "found_inf": overflow}
            torch._fused_adam_([theta], [grad], [self.mean], [self.square], [], [self.count], **options)
            if overflow is not None:
                self.count -= overflow

    def keep(self, memory: dict[str, Tensor], prefix: str) -> None:
        """Copy the moments into a client's memory, on the host, for its next round."""
        if self.mean is not None and self.square is not None:
            moments = {"mean": self.mean, "square": self.square, "count": self.count}
            memory |= {prefix + name: value.to("cpu", copy=True) for name, value in moments.items()}

    def restore(self, memory: Mapping[str, Tensor], prefix: str) -> None:
        """Continue with the moments that `keep` left, if there are any."""
        for name in ("mean", "square", "count"):
            if prefix + name in memory:
                getattr(self, name).copy_(memory[prefix + name])


def adam(model: Trainable, lr: float) -> Optimizer:
    """Adam for a part that the server trains, for which no client has a recipe."""
    return Optimizer(model, Recipe(lr=lr))
