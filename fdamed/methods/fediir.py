"""FedIIR (Guo et al., ICML 2023): the head's gradient at every source is drawn to the one of all sources.

In a round the sources tell g_k, the gradient of their loss in the head's parameters phi; the server keeps
g <- ema g + (1 - ema) mean_k g_k and sends it; source k minimizes L_k + lambda |grad_phi L_k(batch) - g|^2, and the
models are averaged, all alike. Head gradients alone cross, as in the authors' code; the FedGTST paper says that all do.

The head is one linear layer, so its gradient is written out (algebra/head.py) and nothing is differentiated twice. On
the wire, each way: a model and a head gradient. A hospital keeps the model between the two questions of a round.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from fdamed.core.errors import FdamedError
from fdamed.federation.client import Client, Step, step
from fdamed.federation.messages import Check, Count, Knowledge, Scalar, Statistic, Weights, message
from fdamed.federation.method import Method, Model, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.adversarial_training import batch_of, features
from fdamed.methods._shared.averaging import log_loss
from fdamed.methods._shared.full_gradient import gradient_at, watch
from fdamed.methods._shared.local_training import Trained, auxiliary_tasks, finite, train_locally
from fdamed.models.adversarial import shape_of
from fdamed.models.flat import Layout
from fdamed.ops.aggregation import mean
from fdamed.ops.head_gradient import head_gradient
from fdamed.training.local import fit, in_order

KEPT = "fediir.model"
"""In a hospital's memory from the first question of a round to the second."""


def head_size(layout: Layout) -> int:
    """Numbers of a linear head with its bias."""
    shape = shape_of(layout)
    return shape.classes * (shape.d + 1)


def head_shape(ask: Model, layout: Layout) -> tuple[int, ...]:
    return (head_size(layout),)


@message
class HeadGradient:
    """g_k (C (d + 1),), over so many images; none: nothing is sent.

    Where the common head is at its optimum the gradients add up to 0: then honest ones oppose each other.
    """

    g: Annotated[Tensor, Knowledge("statistic"), Check(shape=head_shape, direction="none")]
    n: Count


@message
class Towards:
    """The gradient of all (C (d + 1),), and lambda."""

    g: Statistic
    weight: Scalar


@message
class State:
    """The model, the running mean of head gradients (empty before the first), and how many are in it."""

    x: Weights
    g: Statistic
    t: Count


@step("fediir.head_gradient")
def slope(client: Client, ask: Model) -> HeadGradient:
    """g_k at this model over all images, in evaluation mode; that of a single image would be a patient's features."""
    client.memory[KEPT] = ask.x.clone()
    client.model.load(ask.x)
    server, n = client.model.module, len(client.data)
    total = torch.zeros(head_size(client.model.layout), device=client.model.theta.device)
    if n < 2:
        return HeadGradient(g=total.cpu(), n=0)
    server.eval()
    with torch.no_grad():
        for number, rows in enumerate(in_order(n, client.recipe.batch)):
            b = batch_of(client, rows, client.rng, 0, number)
            z = features(client, b.x).float()
            logits: Tensor = server.head(z)  # type: ignore[operator]  # every network here has a head
            total += head_gradient(z, logits, cast(Tensor, b.y)).flatten() * (len(rows) / n)
    return HeadGradient(g=total.cpu(), n=n)


@step("fediir.train", draws=train_locally)
def train_towards(client: Client, ask: Towards) -> Trained:
    """Train from the model of the first question with the head's gradient drawn to g."""
    if KEPT not in client.memory:
        what = "it was asked to go on with a model that it never got"
        raise FdamedError(what, f"hospital {client.name}", "Give it its memory of the last checkpoint, or start again.")
    client.model.load(client.memory.pop(KEPT))
    auxiliary = auxiliary_tasks(client)
    task = partial(drawn_to, client.model.module.head, ask.g.to(client.model.theta.device), ask.weight)  # type: ignore[arg-type]
    outcome = fit(
        client.model,
        client.data,
        client.recipe,
        client.rng,
        task=task if ask.weight else None,
        auxiliary=auxiliary,
        precision=client.precision,
    )
    if auxiliary:
        client.memory["heads"] = auxiliary.heads.read()
    return Trained(x=client.model.read(), n=len(client.data), loss=finite(client, outcome.loss))


def drawn_to(head: torch.nn.Linear, g: Tensor, weight: float, z: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy + weight |its gradient in the head - g|^2 on features (B, d)."""
    with torch.autocast(z.device.type, enabled=False):
        z = z.float() if z.dtype == torch.bfloat16 else z
        logits = head(z)
        own = head_gradient(z, logits, y).flatten()
        return F.cross_entropy(logits, y) + weight * (own - g).square().sum()


@method("fediir")
class FedIIR(Method[State]):
    title: ClassVar[str] = "FedIIR"
    paper: ClassVar[str] = "Guo et al. 2023, Out-of-distribution generalization via implicit invariant relationships"
    target_labels: ClassVar[bool] = False
    needs_each: ClassVar[str] = ""
    asks_target: ClassVar[bool] = False
    steps: ClassVar[tuple[Step, ...]] = (slope, train_towards, gradient_at)
    state: ClassVar[type] = State

    weight: float = option(1e-3, "lambda, the weight of the head gradients' distance; 0: FedAvg", low=0.0)
    ema: float = option(0.95, "share of the old in the running mean of head gradients", low=0.0, high=0.999999)
    corrected: bool = option(False, "divide the running mean by 1 - ema^t; the authors let it begin at zero")
    weighting: Literal["uniform", "samples"] = option("uniform", "average the models all alike, or by number of images")
    watch: int = option(0, "rounds from one look at the sources' whole Jacobians to the next; 0: never", low=0)

    def asks(self) -> tuple[Step, ...]:
        return (slope, train_towards, gradient_at) if self.watch else (slope, train_towards)

    def start(self, theta: Tensor) -> State:
        return State(x=theta, g=torch.empty(0), t=0)

    def final(self, state: State) -> Tensor:
        return state.x

    def round(self, state: State, server: Server) -> State:
        watch(server, state.x, self.watch)
        told: dict[str, HeadGradient] = server.ask_all(server.sources, slope, Model(x=state.x))
        g, t = self._mean(state, server, told)
        shown = g / (1.0 - self.ema**t) if self.corrected and t else g
        question = Towards(g=shown, weight=self.weight)
        h: dict[str, Trained] = server.ask_all(told, train_towards, question)
        if not h:
            return State(x=state.x, g=g, t=t)
        log_loss(server, h)
        weights = [float(r.n) for r in h.values()] if self.weighting == "samples" else None
        return State(x=mean([r.x for r in h.values()], weights), g=g, t=t)

    def _mean(self, state: State, server: Server, told: dict[str, HeadGradient]) -> tuple[Tensor, int]:
        """ema g + (1 - ema) mean_k g_k over the images of the sources that sent one; without any, g."""
        g = state.g if state.t else torch.zeros(head_size(server.layout))
        some = {k: r for k, r in told.items() if r.n and bool(r.g.any())}
        if not some:
            return g, state.t
        new = mean([r.g for r in some.values()], [float(r.n) for r in some.values()])
        apart = [float((r.g - new).square().sum()) for r in some.values()]
        server.log({"head/variance": sum(apart) / len(apart)})
        return self.ema * g + (1.0 - self.ema) * new, state.t + 1
