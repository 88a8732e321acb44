"""FedGTST (Ma et al., NeurIPS 2024), Algorithm 1: the sources' Jacobian norms are tuned to one guide norm.

Source k minimizes L_k + xi (|J_k| - gamma)^2 (Eq. 10) with J_k the gradient of L_k and gamma the largest norm that any
source sent in the round before; a tenth of all sources (phi) also train without the regularizer and send the larger of
both norms, so that the guide does not shrink. The first round has no guide. Models are averaged uniformly (Eq. 2).

The regularizer's gradient is c H v with v = J / |J| and c = 2 xi (|J| - gamma). H v comes from differentiating twice
(`exact`) or from one difference of gradients on the same batch, c (g(w) - g(w - r v)) / r: two plain passes in all. It
is taken downhill because the step goes there: across the kinks of ReLU, differences uphill are far from the derivative.

Sent: FedAvg's models, the guide and four settings down (40 bytes), a norm up (8 bytes). Decision 0016 has what the
paper leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated, Literal

import torch
from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Check, Count, Images, Scalar, Weights, message
from fdamed.federation.method import Method, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import log_loss
from fdamed.methods._shared.full_gradient import mean_gradient
from fdamed.methods._shared.local_training import auxiliary_tasks, train_from, train_locally
from fdamed.models.flat import FlatModel, view_of
from fdamed.ops.aggregation import mean

NONE = -1.0
"""A norm that is missing: no guide yet, or a norm that is not finite."""
REACH = 0.1
"""r, the norm of the step to the second gradient; shorter ones are noisier."""
TINY = 1e-12
"""Added under the square root, so that the norm of a zero gradient has a derivative."""
FAR = 10.0
"""Medians above which the log warns of the guide."""


@message
class Guided:
    """h_{p-1}, gamma_{p-1}, and how to train: see the options of FedGTST; `plain`: k is in phi; counts are 0 or 1."""

    x: Weights
    gamma: Scalar
    xi: Scalar
    exact: Count
    full: Count
    plain: Count


@message
class Trained:
    """h_k and its norm gamma_k."""

    x: Weights
    n: Images
    loss: Scalar
    gamma: Annotated[Scalar, Check()]


@message
class State:
    """h_p and gamma_p."""

    x: Weights
    gamma: Scalar


@dataclass
class RegularizedGradient:
    """Adds the gradient of L + xi (|J| - gamma)^2 of each batch to the players' gradients, and sums up J."""

    players: Sequence[FlatModel]
    """The network, whose gradient is J, and the heads that train with it."""
    xi: float
    gamma: float | None
    """The guide norm; None: the plain loss."""
    exact: bool
    reach: float = REACH
    total: Tensor = field(init=False)
    """(P,): the sum of the batches' J."""
    steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.total = torch.zeros_like(self.players[0].grad)

    def __call__(self, objective: Callable[[], Tensor]) -> Tensor:
        """The loss of one batch; `objective` computes it under the current weights and may be called twice."""
        self.steps += 1
        if self.gamma is None or self.xi == 0.0:
            value = objective()
            value.backward()  # type: ignore[no-untyped-call]
            self.total.add_(self.players[0].grad)
            return value.detach()
        if self.exact:
            return self._by_second_derivative(objective, self.gamma)
        return self._by_difference(objective, self.gamma)

    @property
    def path_norm(self) -> float:
        """|mean over the batches of J|."""
        return norm_of(self.total / max(1, self.steps))

    def _by_difference(self, objective: Callable[[], Tensor], gamma: float) -> Tensor:
        model = self.players[0]
        value = objective()
        value.backward()  # type: ignore[no-untyped-call]
        self.total.add_(model.grad)
        norm = norm_of(model.grad)
        c = 2.0 * self.xi * (norm - gamma) / self.reach
        if c == 0.0:
            return value.detach()
        before = model.theta.clone()  # with the running statistics of this batch, which must not move again
        model.trainable.sub_(model.grad, alpha=self.reach / norm)
        for player in self.players:
            player.grad.mul_(1.0 + c)
        (-c * objective()).backward()  # type: ignore[no-untyped-call]
        model.theta.copy_(before)
        return value.detach()

    def _by_second_derivative(self, objective: Callable[[], Tensor], gamma: float) -> Tensor:
        model = self.players[0]
        named, parts = dict(model.module.named_parameters()), model.layout.parameters
        value = objective()
        j = torch.autograd.grad(value, [named[s.name] for s in parts], create_graph=True, allow_unused=True)
        known = [(s, g) for s, g in zip(parts, j, strict=True) if g is not None]
        norm = torch.sqrt(sum((g.square().sum() for _, g in known), torch.tensor(TINY, device=value.device)))
        for s, g in known:
            view_of(self.total, s).add_(g.detach())
        (value + self.xi * (norm - gamma).square()).backward()  # type: ignore[no-untyped-call]
        return value.detach()


def norm_of(g: Tensor) -> float:
    """sqrt(sum g^2 + 1e-12)."""
    return math.sqrt(float(torch.linalg.vector_norm(g)) ** 2 + TINY)


@step("fedgtst.train", draws=train_locally)
def train_guided(client: Client, ask: Guided) -> Trained:
    """Train towards the guide, in phi also without it; the model that is sent is always the guided one."""
    guided = ask.gamma >= 0.0 and ask.xi > 0.0
    if guided and not ask.exact and client.precision != "float32":
        what = f"differences of gradients are smaller than the rounding error of {client.precision}"
        raise FdamedError(what, f"hospital {client.name}", "Set `hessian: exact`, or `train.precision: float32`.")
    plain = NONE
    if guided and ask.plain:  # on a copy of the memory: the heads of this training are not kept
        plain, _ = _train(replace(client, memory=dict(client.memory)), ask, None)
    norm, loss = _train(client, ask, ask.gamma if guided else None)
    return Trained(x=client.model.read(), n=len(client.data), loss=loss, gamma=max(norm, plain))


def _train(client: Client, ask: Guided, gamma: float | None) -> tuple[float, float]:
    """Local training from h_{p-1} with the guide, None: without -> the norm and the loss."""
    players = (client.model, client.heads) if client.auxiliary and client.heads else (client.model,)
    gradient = RegularizedGradient(players, ask.xi, gamma, bool(ask.exact))
    loss = train_from(client, ask.x, descend=gradient).loss
    norm = norm_of(mean_gradient(client, auxiliary_tasks(client))) if ask.full else gradient.path_norm
    return norm if math.isfinite(norm) else NONE, loss


@method(
    "fedgtst",
    "FedGTST",
    "FedGTST: Boosting Global Transferability of Federated Models via Statistics Tuning, Algorithm 1",
    (train_guided,),
    asks_target=False,
    needs_each="its guide is the largest of the sources' norms, and a maximum is not a sum",
    rule="average",
    work="the gradient of a gradient’s norm",
    float16=False,
    needs_float32={"hessian": "probe"},  # a difference of gradients
    synchronizations=1,  # the length of the difference is a number of the host
)
class FedGTST(Method[State]):
    xi: float = option(5e-4, "weight of the regularizer; 0: FedAvg, with the norms sent", low=0.0)
    guide: Literal["path", "full"] = option(
        "path", "a source's norm: of the mean gradient of its steps, or of one more pass over all images (line 6)"
    )
    hessian: Literal["probe", "exact"] = option(
        "probe", "the regularizer's gradient by one gradient more, or by differentiating twice"
    )
    phi: float = option(0.1, "share of all sources that also train plainly; at least one", low=0.0, high=1.0)
    cap: float = option(0.0, "largest guide, in medians of the sources' norms; 0: none", low=0.0)
    weighting: Literal["uniform", "samples"] = option("uniform", "1/K as in Eq. 2, or by number of images")

    def start(self, theta: Tensor) -> State:
        return State(x=theta, gamma=NONE)

    def round(self, state: State, server: Server) -> State:
        phi = server.draw("phi", max(1, math.floor(self.phi * len(server.sources) + 0.5)))

        def question(plain: bool) -> Guided:
            exact, full = int(self.hessian == "exact"), int(self.guide == "full")
            return Guided(x=state.x, gamma=state.gamma, xi=self.xi, exact=exact, full=full, plain=int(plain))

        both = {plain: question(plain) for plain in (False, True)}
        h: dict[str, Trained] = server.ask_each({k: both[k in phi] for k in server.participants}, train_guided)
        if not h:
            return state
        log_loss(server, h)
        weights = [float(r.n) for r in h.values()] if self.weighting == "samples" else None
        return State(x=mean([r.x for r in h.values()], weights), gamma=self._guide(server, h, state.gamma))

    def _guide(self, server: Server, h: Mapping[str, Trained], before: float) -> float:
        """gamma_p = max_k gamma_k over the norms that were sent; without any, the guide of the round before."""
        gammas = [r.gamma for r in h.values() if math.isfinite(r.gamma) and r.gamma >= 0.0]
        if not gammas:
            return before
        average = sum(gammas) / len(gammas)
        spread = sum((g - average) ** 2 for g in gammas) / len(gammas)  # sigma^2 cannot be smaller
        gamma, middle = max(gammas), median(gammas)
        if gamma > FAR * middle:
            by = f"{gamma / middle:.3g} times the median" if middle else "over a median of zero"
            server.warn(f"the largest Jacobian norm is {by}")
        if self.cap:
            gamma = min(gamma, self.cap * middle)
        server.log({"jacobian/norm": average, "jacobian/spread": spread, "jacobian/guide": gamma})
        return gamma
