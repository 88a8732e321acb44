"""FedDA and FedGP with auto-weighting: the target estimates beta_i of each source in each round, from its own steps.

Paper: "Principled Federated Domain Adaptation: Gradient Projection and Auto-Weighting".
FedDA: theta + sum_i w_i ((1 - beta_i) g_T + beta_i g_i), beta_i = sigma^2 / (sigma^2 + d_i^2), with the target's
variance sigma^2 and its distance d_i to each source. Both hold for steps of the target's size, so the sources' updates
are brought to it (`align`; the authors' code adds them at full size).
FedGP: theta + sum_i w_i ((1 - beta_i) g_T + beta_i Proj+(g_T | g_i)), beta_i = sigma^2 / (sigma^2 + p_i^2), p_i = tau d
the part of the target's gradient that source i cannot express. A source's beta holds for the whole model, the
projection goes layer by layer. `projection: cosine` is the authors' code: cos+ times the aligned update.

Messages: the model down and updates up from the sources; the model and the sources' directions to the target; its
update and a few numbers back, never its steps. Buffers are the target's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fdamed.federation.client import Client, step
from fdamed.federation.messages import (
    Check,
    Count,
    Images,
    Individual,
    NominalStep,
    Scalar,
    Statistic,
    Update,
    Weights,
    message,
)
from fdamed.federation.method import Model, OneModel, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.local_training import Moved, compute_update, fit_client, nominal_step_of
from fdamed.models.flat import Layout
from fdamed.ops.aggregation import combine, cosines, inner_products, normalized
from fdamed.ops.auto_weights import Estimates, estimates, fedda_betas, fedgp_betas

SMALLEST = 1e-30
"""Norm below which an update has no direction."""
ONE_EACH = Check(shape=lambda ask, _: (len(ask.u),), dtype=torch.float64)
"""A number for each source."""


@message
class Paced:
    """A model, and the factor on the client's learning rate."""

    x: Weights
    pace: Scalar


@message
class Directions:
    """The model, one unit direction a source (N, P) with zero buffers, and |update| / nominal step of each (N,)."""

    x: Weights
    u: Individual
    norm: Statistic
    pace: Scalar


@message
class Compared:
    """The target's update, and estimates from its steps: no step itself. One step has no variance: zeros."""

    g: Update
    n: Images
    nominal_step: NominalStep
    loss: Scalar
    steps: Count
    sigma2: Scalar
    mean2: Scalar
    d2: Annotated[Statistic, ONE_EACH]
    p2: Annotated[Statistic, ONE_EACH]
    delta: Annotated[Statistic, ONE_EACH]


@step("auto_weighting.compute_update", noised=True)
def move_paced(client: Client, ask: Paced) -> Moved:
    """Train with the learning rate times `pace`, and send what changed."""
    moved: Moved = compute_update.run(_paced(client, ask.pace), Model(x=ask.x))
    return moved


@step("auto_weighting.compare_gradients")
def compare_steps(client: Client, ask: Directions) -> Compared:
    """Train, watch each step against the directions, and send what changed with the estimates."""
    client, model, layout = _paced(client, ask.pace), client.model, client.model.layout
    model.load(ask.x)
    before, step, u = model.theta.clone(), torch.empty_like(model.theta), ask.u.to(model.theta.device)
    dots: list[Tensor] = []
    squares: list[Tensor] = []
    first = True

    def watch(_: Tensor | None = None) -> None:
        nonlocal first
        if not first:
            torch.sub(model.theta, before, out=step)
            dot, _, square = inner_products(step, u, layout, per_layer=False)
            dots.append(dot[:, 0])
            squares.append(square[0])
            before.copy_(model.theta)
        first = False

    outcome = fit_client(client, correct=watch)
    watch()  # the last step; `correct` sees the model before each one
    g = model.read().sub_(ask.x)
    mean2 = float(inner_products(g, g[None], layout, per_layer=False)[2][0]) / len(dots) ** 2
    zero = torch.zeros(len(ask.u), dtype=torch.float64)
    e = Estimates(0.0, mean2, zero, zero, zero)
    if len(dots) > 1:
        t = torch.stack(dots).cpu().double().unbind()
        e = estimates(t, torch.stack(squares).cpu().tolist(), mean2, ask.norm * client.recipe.lr)
    n = len(client.data)
    return Compared(g=g, n=n, nominal_step=nominal_step_of(client), loss=outcome.loss, steps=len(dots), **vars(e))


def _paced(client: Client, pace: float) -> Client:
    return client.with_recipe(lr=client.recipe.lr * pace)


@dataclass(frozen=True)
class Comparison:
    """One round's answers: the target's, and for each source its unit direction, norm, nominal step and images."""

    target: Compared
    names: list[str]
    u: Tensor
    """(N, P), unit norm over the parameters, zero in the buffers."""
    norm: Tensor
    """|update| (N,) float64."""
    nominal_step: Tensor
    n: list[int]

    @property
    def estimates(self) -> Estimates:
        t = self.target
        return Estimates(t.sigma2, t.mean2, t.d2, t.p2, t.delta)


def compare(server: Server, state: Model, pace: float) -> Comparison:
    """Ask the sources to train, then the target to train and compare its steps with theirs."""
    s: dict[str, Moved] = server.ask_all(server.sources, move_paced, Paced(x=state.x, pace=pace))
    cut, names, n = server.layout.trainable, list(s), [r.n for r in s.values()]
    nominal_step = torch.tensor([r.nominal_step for r in s.values()], dtype=torch.float64)
    norm = torch.zeros(len(names), dtype=torch.float64)
    u = torch.zeros(len(names), server.layout.size)
    for i, name in enumerate(names):
        g = s.pop(name).g[:cut]
        norm[i] = torch.linalg.vector_norm(g, dtype=torch.float64)
        if norm[i] > SMALLEST:
            torch.mul(g, 1.0 / float(norm[i]), out=u[i, :cut])
    ask = Directions(x=state.x, u=u, norm=norm / nominal_step, pace=pace)
    t: Compared = server.ask(server.target, compare_steps, ask)
    server.log({"train/loss": t.loss})
    return Comparison(t, names, u, norm, nominal_step, n)


def weights(server: Server, c: Comparison, bias: str, found: Tensor, unestimated: float) -> Tensor:
    """beta (N,): `found` from the estimates, or where a single step leaves the variance unknown `unestimated`."""
    if c.target.steps > 1:
        beta, of_bias = found, getattr(c.target, bias).tolist()
        server.log({"sigma2": c.target.sigma2} | {f"{bias}/{k}": v for k, v in zip(c.names, of_bias, strict=True)})
    else:
        server.warn(f"one step at {server.target}, so beta is {unestimated}")
        beta = torch.full((len(c.names),), unestimated, dtype=torch.float64)
    server.log({f"beta/{name}": b for name, b in zip(c.names, beta.tolist(), strict=True)})
    return beta


def moved(c: Comparison, x: Tensor, layout: Layout, own: Tensor, shares: Tensor, per_layer: bool) -> Model:
    """theta + sum_i (own_i g_T + shares_i u_i), shares (N, L); without sources the target's whole step."""
    of_target = float(own.sum()) if c.names else 1.0
    return Model(x=combine(c.target.g, c.u, layout, of_target, shares, per_layer).add_(x))


@method(
    "fedda_auto",
    "FedDA, auto-weighted",
    "Principled FDA: Gradient Projection and Auto-Weighting, Equation 3",
    (move_paced, compare_steps),
    target_labels=True,
    noised=True,
    needs_each="the weight of each source comes from its own update's distance to the target's steps",
    rule="sum",
    theory="fedda_auto",
)
class FedDAAuto(OneModel):
    align: bool = option(True, "scale the source updates to the target's nominal step")
    weighting: Literal["uniform", "samples"] = option("samples", "1/N, or by number of images")
    pace: float = option(1.0, "factor on all learning rates", low=1e-6, high=1.0)
    unestimated: float = option(0.5, "beta where a single step a round leaves the variance unknown", low=0.0, high=1.0)

    def round(self, state: Model, server: Server) -> Model:
        c = compare(server, state, self.pace)
        w = normalized(c.n if self.weighting == "samples" else None, len(c.names))
        beta = weights(server, c, "d2", fedda_betas(c.estimates), self.unestimated)
        align = c.target.nominal_step / c.nominal_step if self.align else torch.ones_like(w)
        shares = w * beta * align * c.norm
        return moved(c, state.x, server.layout, w * (1.0 - beta), shares[:, None], per_layer=False)


@method(
    "fedgp_auto",
    "FedGP, auto-weighted",
    "Principled FDA: Gradient Projection and Auto-Weighting, Equation 3",
    (move_paced, compare_steps),
    target_labels=True,
    noised=True,
    needs_each="a projection on each source's update, with a weight of its own, needs each update",
    rule="projection",
    theory="fedgp_auto",
)
class FedGPAuto(OneModel):
    estimator: Literal["paper", "threshold"] = option("paper", "delta = 1, or with the share that the filter keeps")
    granularity: Literal["layer", "model"] = option("layer", "project each layer by itself, or the whole model at once")
    projection: Literal["true", "cosine"] = option("true", "Def. 3.1, or the code's cosine times the aligned update")
    keep_negative: bool = option(False, "keep sources that point against the target (no filter)")
    weighting: Literal["uniform", "samples"] = option("uniform", "1/N as in Def. 3.1, or by number of images")
    pace: float = option(1.0, "factor on all learning rates", low=1e-6, high=1.0)
    unestimated: float = option(0.5, "beta where a single step a round leaves the variance unknown", low=0.0, high=1.0)

    def round(self, state: Model, server: Server) -> Model:
        c, layered = compare(server, state, self.pace), self.granularity == "layer"
        w = normalized(c.n if self.weighting == "samples" else None, len(c.names))
        beta = weights(server, c, "p2", fedgp_betas(c.estimates, self.estimator == "threshold"), self.unestimated)
        dot, ss, tt = inner_products(c.target.g, c.u, server.layout, layered)
        server.log_cosines(c.names, dot, ss, tt)
        cos = cosines(dot, ss, tt)
        kept = cos if self.keep_negative else cos.clamp(min=0.0)
        if self.projection == "true":
            share = torch.where(ss > 0, kept * (tt / ss.where(ss > 0, torch.ones_like(ss))).sqrt(), 0.0)
        else:
            share = kept * (c.target.nominal_step / c.nominal_step * c.norm)[:, None]
        return moved(c, state.x, server.layout, w * (1.0 - beta), (w * beta)[:, None] * share, layered)
