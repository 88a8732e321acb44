"""FedGTST (Ma et al., NeurIPS 2024), Algorithm 1: the sources' Jacobian norms are tuned to one guide norm.

Source k minimizes L_k + xi (|J_k| - gamma)^2 with J_k the gradient of L_k and gamma the largest norm that any source
told in the round before; a tenth of all sources (phi) also train plainly and tell the larger of both norms, so that the
guide does not shrink. The first round has no guide and is plain. Then the models are averaged, all alike (Eq. 2).

On the wire: FedAvg's models, the guide and six settings down (56 bytes), a norm up (8 bytes). The three things that the
paper leaves open, and how H J / |J| is computed, are in decision 0016.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from statistics import median
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.federation.client import Client, Step, step
from fdamed.federation.messages import Check, Count, Knowledge, Scalar, Weights, message
from fdamed.federation.method import Method, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import log_loss
from fdamed.methods._shared.full_gradient import gradient_at, mean_gradient, note_norms, watch
from fdamed.methods._shared.local_training import auxiliary_tasks, finite, train_locally
from fdamed.models.gradient_norm import Steepness, last_block, length
from fdamed.ops.aggregation import mean
from fdamed.training.local import fit

log = logging.getLogger(__name__)
NONE = -1.0
"""A norm that is not there: no guide yet, or a norm that is not finite."""
GUIDES = ("path", "end", "start", "batch")
PROBES = {"exact": 0, "probe": 1, "probes": 2}
FAR = 10.0
"""Times the median: from here on the log names a guide that runs away from most of the sources."""


@message
class Guided:
    """h_{p-1}, gamma_{p-1}, and how to train: see the options of FedGTST; `plain`: k is in phi."""

    x: Weights
    gamma: Scalar
    xi: Scalar
    reach: Scalar
    probes: Count
    last: Count
    guide: Count
    plain: Count


@message
class Steep:
    """h_k, and gamma_k, the norm that it tells."""

    x: Weights
    n: Count
    loss: Scalar
    gamma: Annotated[float, Knowledge("scalar"), Check()]


@message
class State:
    """h_p and gamma_p."""

    x: Weights
    gamma: Scalar


@step("fedgtst.train", draws=train_locally)
def train_guided(client: Client, ask: Guided) -> Steep:
    """Train towards the guide, in phi also plainly; the model that is sent is always the guided one."""
    guided = ask.gamma >= 0.0 and ask.xi > 0.0
    if guided and ask.probes and client.precision == "bfloat16":
        what = "differences of gradients drown in the rounding of bfloat16"
        raise FdamedError(what, f"hospital {client.name}", "Set `hessian: exact`, or `train.precision: float32`.")
    std = NONE
    if guided and ask.plain and GUIDES[ask.guide] != "start":  # else both trainings tell the same norm
        std, _ = _train(client, ask, None, keep_heads=False)
    reg, loss = _train(client, ask, ask.gamma if guided else None)
    return Steep(x=client.model.read(), n=len(client.data), loss=loss, gamma=max(reg, std))


def _train(client: Client, ask: Guided, gamma: float | None, keep_heads: bool = True) -> tuple[float, float]:
    """Local training from h_{p-1} with the guide, None: without; the norm and the loss."""
    client.model.load(ask.x)
    auxiliary, guide = auxiliary_tasks(client), GUIDES[ask.guide]
    start = last_block(client.model.layout) if ask.last else 0
    norm = length(mean_gradient(client, auxiliary, start)[start:]) if guide == "start" else NONE
    players = (client.model, auxiliary.heads) if auxiliary else (client.model,)
    path = torch.zeros_like(client.model.grad) if guide == "path" else None
    steep = Steepness(players, ask.xi, gamma, ask.probes, ask.reach, start, path)
    descend = steep if gamma is not None or guide in ("path", "batch") else None
    outcome = fit(
        client.model,
        client.data,
        client.recipe,
        client.rng,
        auxiliary=auxiliary,
        descend=descend,
        precision=client.precision,
    )
    if guide == "end":
        norm = length(mean_gradient(client, auxiliary, start)[start:])
    elif guide != "start":
        norm = steep.path_norm if guide == "path" else steep.mean_norm
    if auxiliary and keep_heads:
        client.memory["heads"] = auxiliary.heads.read()
    return norm if math.isfinite(norm) else NONE, finite(client, outcome.loss)


@method("fedgtst")
class FedGTST(Method[State]):
    title: ClassVar[str] = "FedGTST"
    paper: ClassVar[str] = "FedGTST: Boosting Global Transferability via Statistics Tuning, Algorithm 1"
    target_labels: ClassVar[bool] = False
    needs_each: ClassVar[str] = "its guide is the largest of the sources' norms, and a maximum is not a sum"
    asks_target: ClassVar[bool] = False
    steps: ClassVar[tuple[Step, ...]] = (train_guided, gradient_at)
    state: ClassVar[type] = State

    xi: float = option(5e-4, "weight of the regularizer; 0: FedAvg, with the norms told", low=0.0)
    guide: Literal["path", "full", "batch"] = option(
        "path",
        "a source's norm: of the mean gradient of its steps, of one more pass over all images, or mean norm of steps",
    )
    norm_at: Literal["end", "start"] = option("end", "where guide = full is taken: at the trained or the common model")
    params: Literal["all", "last"] = option("all", "J over all parameters, or over the last block and the head")
    hessian: Literal["probe", "probes", "exact"] = option(
        "probe", "the regularizer's gradient by one gradient more, by two, or by differentiating twice"
    )
    reach: float = option(0.1, "length of a probe's step", low=1e-8)
    phi: float = option(0.1, "share of all sources that also train plainly; at least one", low=0.0, high=1.0)
    cap: float = option(0.0, "largest guide, in medians of the sources' norms; 0: none", low=0.0)
    weighting: Literal["uniform", "samples"] = option("uniform", "1/K as in Eq. 2, or by number of images")
    watch: int = option(0, "rounds from one look at the sources' whole Jacobians to the next; 0: never", low=0)

    def asks(self) -> tuple[Step, ...]:
        return (train_guided, gradient_at) if self.watch else (train_guided,)

    def start(self, theta: Tensor) -> State:
        return State(x=theta, gamma=NONE)

    def final(self, state: State) -> Tensor:
        return state.x

    def round(self, state: State, server: Server) -> State:
        watch(server, state.x, self.watch)
        phi = server.draw("phi", max(1, math.floor(self.phi * len(server.sources) + 0.5)))
        plain, guided = self._question(state, plain=True), self._question(state, plain=False)
        questions = {k: plain if k in phi else guided for k in server.participants}
        h: dict[str, Steep] = server.ask_each(questions, train_guided)
        if not h:
            return state
        log_loss(server, h)
        weights = [float(r.n) for r in h.values()] if self.weighting == "samples" else None
        return State(x=mean([r.x for r in h.values()], weights), gamma=self._guide(server, h, state.gamma))

    def _question(self, state: State, plain: bool) -> Guided:
        return Guided(
            x=state.x,
            gamma=state.gamma,
            xi=self.xi,
            reach=self.reach,
            probes=PROBES[self.hessian],
            last=int(self.params == "last"),
            guide=GUIDES.index(self.norm_at if self.guide == "full" else self.guide),
            plain=int(plain),
        )

    def _guide(self, server: Server, h: Mapping[str, Steep], before: float) -> float:
        """gamma_p = max_k gamma_k over the norms that are there; without any, the guide that was."""
        gammas = [r.gamma for r in h.values() if math.isfinite(r.gamma) and r.gamma >= 0.0]
        note_norms(server, gammas)
        if not gammas:
            return before
        gamma, middle = max(gammas), median(gammas)
        if gamma > FAR * middle:
            told = f"{gamma / middle:.3g} times the median" if middle else "over a median of zero"
            log.warning("round %d: the largest Jacobian norm is %s", server.round, told)
        if self.cap:
            gamma = min(gamma, self.cap * middle)
        server.log({"jacobian/guide": gamma})
        return gamma
