"""f-DAN: deep adaptation network (Long et al. 2015) in FADA's setting; the target has no labels.

Source i minimizes cross-entropy + lambda MMD^2(F_i, F_T) with five kernels, the target lambda MMD^2; lambda ramps up as
in DANN; theta + sum_i n_i/n Delta_i + Delta_T.

Sent: 2 (K + 1) M bytes a round, and 40 F for each mean over all images of random features whose inner products are the
kernels; no features. Their frequencies are drawn from the study's seed and never sent. The target aligns with the
sources' means of the round before. In the paper the server evaluates the kernels on the features of every batch.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from fdamed.core.rng import stream
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Check, Count, Images, Scalar, Statistic, Update, Weights, message
from fdamed.federation.method import Method, Model, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.adversarial_training import (
    Batch,
    Local,
    all_batches,
    combined,
    progress,
    training_features,
)
from fdamed.methods._shared.averaging import average_models, log_loss
from fdamed.methods._shared.local_training import train_locally
from fdamed.models.adversarial import shape_of
from fdamed.ops.aggregation import mean
from fdamed.ops.random_features import KERNELS, bandwidth, fourier, fourier_mmd


@message
class Align:
    """A model, and the other side's mean of random features (5, 2 F) under bandwidth h; empty: none."""

    x: Weights
    m: Statistic
    h: Scalar
    pull: Scalar
    pace: Scalar
    frequencies: Count


@message
class Aligned:
    """The client's own mean with its bandwidth."""

    g: Update
    m: Annotated[Statistic, Check(shape=lambda ask, _: (KERNELS, 2 * ask.frequencies))]
    h: Scalar
    n: Images
    loss: Scalar


@message
class State:
    """The model and the sources' mean under bandwidth h; none before the first round."""

    x: Weights
    m: Statistic
    h: Scalar


@step("fdan.align")
def align(client: Client, ask: Align) -> Aligned:
    """A source: its task and the distance to the target's mean; it sends the mean of the features it trained on."""
    client.model.load(ask.x)
    omega = shared_frequencies(client, ask.frequencies)
    device = client.model.theta.device
    own, theirs = torch.zeros(KERNELS, 2 * ask.frequencies, device=device), ask.m.to(device)
    seen = 0
    local = Local(client)

    def objective(f: Tensor, batch: Batch) -> Tensor:
        nonlocal own, seen
        task = local.task(f, batch)
        if not ask.h > 0.0:
            return task
        m = fourier(f, omega, _bandwidth(f, ask.h))
        own, seen = own + len(f) * m.detach(), seen + len(f)
        return task + ask.pull * fourier_mmd(m, theirs)

    loss = local.epochs(objective)
    return Aligned(
        g=client.model.read().sub_(ask.x), m=own.cpu() / max(1, seen), h=ask.h, n=len(client.data), loss=loss
    )


@step("fdan.embed")
def embed(client: Client, ask: Align) -> Aligned:
    """The target: the mean of its features under x, then training towards the sources' mean of the round before.

    One image has no bandwidth, and its mean would be a patient's features: then zeros are sent.
    """
    client.model.load(ask.x)
    omega = shared_frequencies(client, ask.frequencies)
    rows = [training_features(client, batch.x) for batch in all_batches(client, client.rng.child("portrait"))]
    f_t = torch.cat(rows) if rows else torch.zeros(0, shape_of(client.model.layout).d)
    h = float(bandwidth(f_t))
    m = fourier(f_t, omega, h).cpu() if h > 0.0 else torch.zeros(KERNELS, 2 * ask.frequencies)
    loss = 0.0
    if ask.m.numel() and ask.h > 0.0 and h > 0.0:
        theirs = ask.m.to(omega.device)
        local = Local(client, (), ask.pace)
        loss = local.epochs(lambda f, batch: ask.pull * fourier_mmd(fourier(f, omega, _bandwidth(f, ask.h)), theirs))
    return Aligned(g=client.model.read().sub_(ask.x), m=m, h=h, n=len(client.data), loss=loss)


def _bandwidth(f: Tensor, h: float) -> Tensor:
    """The batch's own bandwidth, a constant; h where it has none.

    Under the other side's bandwidth of a round ago, features that grow with the task would be held at their old size.
    """
    own = bandwidth(f.detach())
    return torch.where(own > 0.0, own, h)


def shared_frequencies(client: Client, count: int) -> Tensor:
    """omega (d, F), the same in every client of the study."""
    d = shape_of(client.model.layout).d
    return torch.randn(d, count, generator=stream(client.seed, "fourier").torch).to(client.model.theta.device)


@method(
    "fdan",
    "f-DAN",
    "FADA (Peng et al. 2020), baseline; Long et al. 2015",
    (train_locally, align, embed),
    float16=False,
    needs_each="each source's distance to the target is logged",
)
class FDan(Method[State]):
    weight: float = option(0.1, "largest weight of the discrepancy; 0 is FedAvg", low=0.0)
    target_pace: float = option(
        0.1, "share of its learning rate that the target uses, with Adam; ramps up like the pull", low=0.0
    )
    frequencies: int = option(64, "random features of each kernel", low=1)

    def start(self, theta: Tensor) -> State:
        return State(x=theta, m=torch.empty(0), h=0.0)

    def round(self, state: State, server: Server) -> State:
        ramp = progress(server.round, server.rounds)
        lam, pace = self.weight * ramp, self.target_pace * ramp
        server.log({"lambda": lam})
        if lam == 0.0:
            return State(x=average_models(server, Model(x=state.x)).x, m=state.m, h=state.h)

        def question(m: Tensor, h: float) -> Align:
            return Align(x=state.x, m=m, h=h, pull=lam, pace=pace, frequencies=self.frequencies)

        t = server.ask(server.target, embed, question(state.m, state.h))
        s = server.ask_all(server.sources, align, question(t.m, t.h))
        if not s:
            return state
        log_loss(server, s)
        for source, r in s.items():
            server.log({f"mmd/{source}": float(fourier_mmd(r.m, t.m)) if t.h > 0.0 else None})
        moved = state.m.numel() > 0 and state.h > 0.0 and t.h > 0.0
        n = [float(r.n) for r in s.values()]
        x = combined(state.x, server.layout, [r.g for r in s.values()], n, t.g if moved else None)
        # The mean of the pairs' losses pulls the target to the mean of the sources' means.
        m = mean([r.m.flatten() for r in s.values()], [1.0] * len(s)).view(KERNELS, -1)
        return State(x=x, m=m, h=t.h)
