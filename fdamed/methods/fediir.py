"""FedIIR (Guo et al., ICML 2023): the head's gradient at every source is drawn to the mean of all sources' gradients.

In a round the sources send g_k, the gradient of their loss in the head's parameters phi; the server keeps
g <- ema g + (1 - ema) mean_k g_k and sends it; source k minimizes L_k + lambda |grad_phi L_k(batch) - g|^2, and the
models are averaged uniformly. Head gradients alone are sent, as in the authors' code; the FedGTST paper says that all
are. The head is one linear layer, so its gradient is written out and nothing is differentiated twice.

Sent, each way: a model and a head gradient. A client keeps the model between the two questions of a round.
"""

from __future__ import annotations

from typing import Annotated, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from fdamed.core.errors import FdamedError
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Average, Check, Images, Scalar, Statistic, Weights, message
from fdamed.federation.method import Method, Model, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.adversarial_training import batch_of, features
from fdamed.methods._shared.averaging import log_loss
from fdamed.methods._shared.local_training import Trained, train_from, train_locally
from fdamed.models.adversarial import shape_of
from fdamed.models.flat import Layout
from fdamed.ops.aggregation import mean
from fdamed.training.local import in_order
from fdamed.training.precision import HALF

KEPT = "fediir.model"
"""The model, in a client's memory from the first question of a round to the second."""


def head_size(layout: Layout) -> int:
    """Numbers of a linear head with its bias."""
    shape = shape_of(layout)
    return shape.classes * (shape.d + 1)


def head_gradient(z: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """The gradient (C, d + 1) of the cross-entropy in a linear head: e^T [z, 1] / B with e = softmax - onehot (B, C).

    From features z (B, d), logits (B, C) and labels (B,); the bias is last, and autograd passes through.
    """
    e = torch.softmax(logits, dim=1) - F.one_hot(y, logits.shape[1])
    return torch.cat([e.t() @ z, e.sum(0).unsqueeze(1)], dim=1) / len(z)


def head_shape(ask: Model, layout: Layout) -> tuple[int, ...]:
    return (head_size(layout),)


@message
class HeadGradient:
    """g_k (C (d + 1),), a mean over n images; n = 0: none.

    At the optimum of the common head the gradients add up to 0, so honest ones oppose each other.
    """

    g: Annotated[Statistic, Check(shape=head_shape, direction="none"), Average(by="images")]
    n: Images


@message
class Alignment:
    """The sources' running mean gradient (C (d + 1),), and lambda."""

    g: Statistic
    weight: Scalar


@message
class State:
    """The model, and the running mean of head gradients (empty before the first)."""

    x: Weights
    g: Statistic


@step("fediir.head_gradient")
def send_head_gradient(client: Client, ask: Model) -> HeadGradient:
    """g_k over all images, in evaluation mode; none for one image, because it would be a patient's features."""
    client.memory[KEPT] = ask.x.clone()
    client.model.load(ask.x)
    network, n = client.model.module, len(client.data)
    total = torch.zeros(head_size(client.model.layout), device=client.model.theta.device)
    if n < 2:
        return HeadGradient(g=total.cpu(), n=0)
    network.eval()
    with torch.no_grad():
        for number, rows in enumerate(in_order(n, client.recipe.batch)):
            b = batch_of(client, rows, client.rng, 0, number)
            z = features(client, b.x).float()
            logits: Tensor = network.head(z)  # type: ignore[operator]  # every network here has a head
            total += head_gradient(z, logits, cast(Tensor, b.y)).flatten() * (len(rows) / n)
    return HeadGradient(g=total.cpu(), n=n)


@step("fediir.train", draws=train_locally)
def train_aligned(client: Client, ask: Alignment) -> Trained:
    """Train from the model of the first question with the head's gradient drawn to g."""
    if KEPT not in client.memory:
        what, fix = "the model of this round never reached it", "Restore its memory from the last checkpoint."
        raise FdamedError(what, f"hospital {client.name}", fix)
    g = ask.g.to(client.model.theta.device)

    def task(x: Tensor, z: Tensor, y: Tensor) -> Tensor:
        return aligned_loss(client.model.module.head, g, ask.weight, z, y)  # type: ignore[arg-type]

    loss = train_from(client, client.memory.pop(KEPT), task=task if ask.weight else None).loss
    return Trained(x=client.model.read(), n=len(client.data), loss=loss)


def aligned_loss(head: torch.nn.Linear, g: Tensor, weight: float, z: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy + weight |its gradient in the head - g|^2 on features (B, d)."""
    with torch.autocast(z.device.type, enabled=False):
        z = z.float() if z.dtype in HALF.values() else z
        logits = head(z)
        own = head_gradient(z, logits, y).flatten()
        return F.cross_entropy(logits, y) + weight * (own - g).square().sum()


@method(
    "fediir",
    "FedIIR",
    "Guo et al. 2023, Out-of-distribution generalization via implicit invariant relationships",
    (send_head_gradient, train_aligned),
    asks_target=False,
    rule="average",
    work="gradients of the head",
    compares=("head/variance",),
)
class FedIIR(Method[State]):
    weight: float = option(1e-3, "lambda, the weight of the head gradients' distance; 0: FedAvg", low=0.0)
    ema: float = option(0.95, "share of the old in the running mean of head gradients", low=0.0, high=0.999999)
    weighting: Literal["uniform", "samples"] = option("uniform", "average the models uniformly, or by number of images")

    def start(self, theta: Tensor) -> State:
        return State(x=theta, g=torch.empty(0))

    def round(self, state: State, server: Server) -> State:
        sent: dict[str, HeadGradient] = server.ask_all(server.sources, send_head_gradient, Model(x=state.x))
        g = self._running_mean(state, server, sent)
        h: dict[str, Trained] = server.ask_all(sent, train_aligned, Alignment(g=g, weight=self.weight))
        if not h:
            return State(x=state.x, g=g)
        log_loss(server, h)
        weights = [float(r.n) for r in h.values()] if self.weighting == "samples" else None
        return State(x=mean([r.x for r in h.values()], weights), g=g)

    def _running_mean(self, state: State, server: Server, sent: dict[str, HeadGradient]) -> Tensor:
        """ema g + (1 - ema) mean_k g_k, weighted by images, over the sources that sent a gradient; without any, g."""
        g = state.g if state.g.numel() else torch.zeros(head_size(server.layout))
        some = [r for r in sent.values() if r.n and bool(r.g.any())]
        if not some:
            return g
        new = mean([r.g for r in some], [float(r.n) for r in some])
        server.log({"head/variance": sum(float((r.g - new).square().sum()) for r in some) / len(some)})
        return self.ema * g + (1.0 - self.ema) * new
