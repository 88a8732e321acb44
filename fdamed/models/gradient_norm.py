"""Gradient-norm regularization: train on L + xi (|J| - gamma)^2 (FedGTST, Eq. 10).

Its gradient is g + c H v with v = J / |J| and c = 2 xi (|J| - gamma). H v comes from differentiating twice (`probes`
0), from one finite difference downhill (1), or from central differences (2), on the same batch and with its own
BatchNorm statistics. One probe: g + c (g(w) - g(w - r v)) / r, two plain passes in all. The difference is downhill
because the step goes there: across the kinks of ReLU, differences uphill are far from the derivative (decision 0016).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fdamed.models.flat import FlatModel, Layout, view_of

Objective = Callable[[], Tensor]
"""The loss of one batch under the current weights; may be called again."""
TINY = 1e-12
"""Added under the square root, so that the norm of a zero gradient has a derivative."""


@dataclass
class Steepness:
    """Computes the regularized gradient of each batch and accumulates the gradient norms."""

    players: Sequence[FlatModel]
    """The network, which has the gradient J, and the heads that train with it."""
    xi: float
    gamma: float | None
    """The guide norm; None: the plain loss."""
    probes: int
    reach: float
    """Norm of a probe's step."""
    start: int = 0
    """J covers the parameters of the network's vector from this index on."""
    path: Tensor | None = None
    """(P,) or None: accumulates the sum of the batches' J."""
    norms: float = field(default=0.0, init=False)
    steps: int = field(default=0, init=False)
    at: Tensor | None = field(default=None, init=False)
    """The weights to restore after a probe: one vector for all steps."""

    def __call__(self, objective: Objective) -> Tensor:
        """The loss; its gradient, with the regularizer's, is added to the players' own."""
        if self.gamma is None or self.xi == 0.0:
            value = objective()
            value.backward()  # type: ignore[no-untyped-call]
            self._keep(self._own)
            return value.detach()
        return self._by_differences(objective, self.gamma) if self.probes else self._twice(objective, self.gamma)

    @property
    def mean_norm(self) -> float:
        """Mean over the batches of |J|."""
        return self.norms / max(1, self.steps)

    @property
    def path_norm(self) -> float:
        """|mean over the batches of J|."""
        return 0.0 if self.path is None else length(self.path / max(1, self.steps))

    @property
    def _own(self) -> Tensor:
        return self.players[0].grad[self.start :]

    def _keep(self, j: Tensor) -> float:
        norm = length(j)
        self.norms, self.steps = self.norms + norm, self.steps + 1
        if self.path is not None:
            self.path[self.start :].add_(j)
        return norm

    def _by_differences(self, objective: Objective, gamma: float) -> Tensor:
        model = self.players[0]
        value = objective()
        value.backward()  # type: ignore[no-untyped-call]
        norm = self._keep(self._own)
        c = 2.0 * self.xi * (norm - gamma) / self.reach
        if c == 0.0:
            return value.detach()
        self.at = torch.empty_like(model.theta) if self.at is None else self.at
        at = self.at.copy_(model.theta)  # with the running statistics of this batch, which a probe must not move again
        w = model.theta[self.start : model.layout.trainable]
        if self.probes == 1:
            w.sub_(self._own, alpha=self.reach / norm)
            for player in self.players:
                player.grad.mul_(1.0 + c)
            (-c * objective()).backward()  # type: ignore[no-untyped-call]
        else:
            v = self._own / norm
            for side in (1.0, -1.0):
                model.theta.copy_(at)
                w.add_(v, alpha=side * self.reach)
                (side * c / 2.0 * objective()).backward()  # type: ignore[no-untyped-call]
        model.theta.copy_(at)
        return value.detach()

    def _twice(self, objective: Objective, gamma: float) -> Tensor:
        model = self.players[0]
        parts = [s for s in model.layout.parameters if s.start >= self.start]
        named = dict(model.module.named_parameters())
        value = objective()
        j = torch.autograd.grad(value, [named[s.name] for s in parts], create_graph=True, allow_unused=True)
        known = [(s, g) for s, g in zip(parts, j, strict=True) if g is not None]
        norm = torch.sqrt(sum((g.square().sum() for _, g in known), torch.tensor(TINY, device=value.device)))
        if self.path is not None:
            for s, g in known:
                view_of(self.path, s).add_(g.detach())
        self.norms, self.steps = self.norms + float(norm.detach()), self.steps + 1
        (value + self.xi * (norm - gamma).square()).backward()  # type: ignore[no-untyped-call]
        return value.detach()


def length(g: Tensor) -> float:
    """sqrt(sum g^2 + 1e-12)."""
    return math.sqrt(float(torch.linalg.vector_norm(g)) ** 2 + TINY)


def last_block(layout: Layout) -> int:
    """Where the last residual stage begins in the vector, or, without stages, the layer before the head."""
    stages = [s.name.split(".")[1] for s in layout.parameters if s.name.startswith("trunk.layer")]
    layers = list(dict.fromkeys(s.name.rpartition(".")[0] for s in layout.parameters))
    first = f"trunk.{stages[-1]}." if stages else f"{layers[-2:][0]}."
    return next(s.start for s in layout.parameters if s.name.startswith(first))
