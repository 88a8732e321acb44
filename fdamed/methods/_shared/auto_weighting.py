"""Auto-weighting's questions: the sources train, the target trains and says how its steps lie to theirs.

Paper: "Principled Federated Domain Adaptation: Gradient Projection and Auto-Weighting". The steps of the target never
leave it: the server sends the directions of the sources, and gets the target's update and five estimates back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdamed.federation.client import Client, step
from fdamed.federation.messages import Count, Individual, Scalar, Statistic, Update, Weights, message
from fdamed.federation.method import Model
from fdamed.federation.server import Server
from fdamed.federation.validation.answers import length as length_of
from fdamed.federation.validation.answers import sound
from fdamed.federation.validation.checks import SHORTEST, Travel
from fdamed.methods._shared.local_training import Moved, move_locally
from fdamed.ops.aggregation import inner_products
from fdamed.ops.auto_weights import Estimates, estimates, no_steps, with_step
from fdamed.training.local import fit


@message
class Paced:
    """A model, and the factor on the hospital's learning rate."""

    x: Weights
    pace: Scalar


@message
class Directions:
    """The model, one unit direction a source (N, P) with zero buffers, and |update| / reach of each (N,)."""

    x: Weights
    u: Individual
    length: Statistic
    pace: Scalar


@message
class Compared:
    """The target's update, and how its steps lie to the sources': no step itself. One step has no variance: zeros."""

    g: Update
    n: Count
    reach: Scalar
    loss: Scalar
    steps: Count
    sigma2: Scalar
    mean2: Scalar
    d2: Statistic
    p2: Statistic
    delta: Statistic

    @property
    def estimated(self) -> bool:
        return self.steps > 1


@step("auto_weighting.compute_update", noised=True)
def move_paced(client: Client, ask: Paced) -> Moved:
    """Train with the learning rate times `pace`, and send what changed."""
    moved: Moved = move_locally.run(_paced(client, ask.pace), Model(x=ask.x))
    return moved


@step("auto_weighting.compare_gradients")
def compare_steps(client: Client, ask: Directions) -> Compared:
    """Train, watch each step against the directions, and send what changed with the estimates."""
    client, model, layout = _paced(client, ask.pace), client.model, client.model.layout
    model.load(ask.x)
    before, step = ask.x.clone(), torch.empty_like(ask.x)
    sums, first = no_steps(len(ask.u)), True

    def watch(_: Tensor | None = None) -> None:
        nonlocal sums, first
        if not first:
            now = model.theta.detach().cpu()
            torch.sub(now, before, out=step)
            dot, _, square = inner_products(step, ask.u, layout, per_layer=False)
            sums = with_step(sums, dot[:, 0], float(square[0]))
            before.copy_(now)
        first = False

    outcome = fit(model, client.data, client.recipe, client.rng, correct=watch, precision=client.precision)
    watch()  # the last step; `correct` sees the model before each one
    g = model.read().sub_(ask.x)
    mean2 = float(inner_products(g, g[None], layout, per_layer=False)[2][0]) / sums.count**2
    zero = torch.zeros(len(ask.u), dtype=torch.float64)
    e = Estimates(0.0, mean2, zero, zero, zero)
    if sums.count > 1:
        e = estimates(sums, mean2, ask.length * client.recipe.lr)
    recipe, n = client.recipe, len(client.data)
    reach = recipe.lr * recipe.epochs * n / recipe.batch
    return Compared(
        g=g,
        n=n,
        reach=reach,
        loss=outcome.loss,
        steps=sums.count,
        sigma2=e.sigma2,
        mean2=e.mean2,
        d2=e.d2,
        p2=e.p2,
        delta=e.delta,
    )


@dataclass(frozen=True)
class Comparison:
    """One round's replies: the target's, and for each sound source its unit direction, length, reach and images."""

    target: Compared
    names: list[str]
    u: Tensor
    """(N, P), unit length over the parameters, zero in the buffers."""
    length: Tensor
    """|update| (N,) float64."""
    reach: Tensor
    n: list[int]

    @property
    def estimates(self) -> Estimates:
        t = self.target
        return Estimates(t.sigma2, t.mean2, t.d2, t.p2, t.delta)


def compare(server: Server, state: Model, pace: float) -> Comparison:
    """Ask the sources to train, then the target to train beside them; unsound updates are left out by name."""
    s: dict[str, Moved] = server.ask_all(server.sources, move_paced, Paced(x=state.x, pace=pace))
    cut = server.layout.trainable
    length = {name: float(torch.linalg.vector_norm(r.g[:cut], dtype=torch.float64)) for name, r in s.items()}
    for name, value in length.items():
        if why := Travel(value, s[name].n, s[name].reach).fault:
            server.reject(name, move_paced, why)
            del s[name]
    server.hold_quorum()
    names = list(s)
    lengths = torch.tensor([length[name] for name in names], dtype=torch.float64)
    reach = torch.tensor([r.reach for r in s.values()], dtype=torch.float64)
    n = [r.n for r in s.values()]
    u = torch.zeros(len(names), server.layout.size)
    for i, name in enumerate(names):
        if length[name] > SHORTEST:  # who has not moved has no direction, and adds nothing
            torch.mul(s[name].g[:cut], 1.0 / length[name], out=u[i, :cut])
        del s[name]
    t: Compared = server.ask(
        server.target, compare_steps, Directions(x=state.x, u=u, length=lengths / reach, pace=pace)
    )
    return _without_giants(server, Comparison(t, names, u, lengths, reach, n), length_of(state.x[:cut]))


def _without_giants(server: Server, c: Comparison, size: float) -> Comparison:
    """Without the sources whose update dwarfs the others' and the target's; directions have no length to do harm."""
    t = c.target
    travels = map(Travel, c.length.tolist(), c.n, c.reach.tolist())
    own = Travel(t.mean2**0.5 * t.steps, t.n, t.reach)
    verdict = sound(server, move_paced, dict(zip(c.names, travels, strict=True)), size, own)
    for name, factor in verdict.factors.items():
        server.shorten(name, move_paced, factor)
    if not (verdict.faults or verdict.factors):
        return c
    keep = [i for i, name in enumerate(c.names) if name not in verdict.faults]
    shares = torch.tensor([verdict.factors.get(c.names[i], 1.0) for i in keep], dtype=torch.float64)
    return Comparison(
        replace(t, d2=t.d2[keep], p2=t.p2[keep], delta=t.delta[keep]),
        [c.names[i] for i in keep],
        c.u[keep],
        c.length[keep] * shares,
        c.reach[keep],
        [c.n[i] for i in keep],
    )


def _paced(client: Client, pace: float) -> Client:
    if pace == 1.0:
        return client
    return replace(client, recipe=client.recipe.model_copy(update={"lr": client.recipe.lr * pace}))
