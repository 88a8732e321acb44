"""f-DANN: domain-adversarial training (Ganin et al. 2016) in FADA's setting; the target has no labels.

The features of both sides learn to fool a discriminator DI through a reversed gradient, lambda = weight x the ramp
2/(1 + e^{-10 p}) - 1, while the sources learn their task; theta + sum_i n_i/n Delta_i + Delta_T.

Each side trains its copy of one shared DI on its own half of the loss, and the server averages the copies, sources and
target with equal weight. Sent: 2 (K + 1) (M + 4 P_DI) bytes a round, no features. In the paper each DI_i is at the
server and sees the features of every batch.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from fdamed.federation.client import Client, step
from fdamed.federation.messages import Check, Count, Images, Scalar, Statistic, Update, Weights, message
from fdamed.federation.method import Method, Model, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.adversarial_training import Game, Local, combined, discriminator, progress
from fdamed.methods._shared.averaging import average_models, log_loss
from fdamed.methods._shared.local_training import train_locally
from fdamed.models.adversarial import Discriminator, count, shape_of
from fdamed.models.flat import Layout
from fdamed.ops.aggregation import mean

WIDTH, DEPTH = 256, 2


def _discriminator(layout: Layout) -> Discriminator:
    return Discriminator(shape_of(layout).d, WIDTH, DEPTH, slope=0.0)


@message
class Opponent:
    """A model and the discriminator to train against; `source` is 1 or 0."""

    x: Weights
    di: Statistic
    pull: Scalar
    pace: Scalar
    saturation: Scalar
    source: Count


@message
class Trained:
    g: Update
    di: Annotated[Statistic, Check(shape=lambda _, layout: (count(_discriminator(layout)),))]
    n: Images
    loss: Scalar


@message
class State:
    """The model and the shared discriminator; none before the first round."""

    x: Weights
    di: Statistic


@step("fdann.train")
def train(client: Client, ask: Opponent) -> Trained:
    """Train on the task where there are labels, and on one side of the adversarial game."""
    client.model.load(ask.x)
    di = discriminator(client, _discriminator(client.model.layout), ask.di)
    game = Game(di, label=ask.source, toward=ask.source, pull=ask.pull, saturation=ask.saturation)
    local = Local(client, (di,), ask.pace)
    loss = local.epochs(lambda f, batch: local.task(f, batch) + game.play(f))
    return Trained(g=client.model.read().sub_(ask.x), di=di.read(), n=len(client.data), loss=loss)


@method(
    "fdann",
    "f-DANN",
    "FADA (Peng et al. 2020), baseline; Ganin et al. 2016",
    (train_locally, train),
    needs_each="",
    float16=False,
)
class FDann(Method[State]):
    weight: float = option(1.0, "largest lambda of the reversed gradient; 0 is FedAvg", low=0.0)
    target_pace: float = option(
        0.1, "share of its learning rate that the target uses, with Adam; ramps up like the pull", low=0.0
    )
    saturation: float = option(10.0, "a side whose discriminator loss exceeds this is not pulled", low=0.0)

    def extra_parameters(self, sources: int, features: int, classes: int) -> int:
        """A discriminator for each source."""
        return sources * count(Discriminator(features, WIDTH, DEPTH))

    def start(self, theta: Tensor) -> State:
        return State(x=theta, di=torch.empty(0))

    def round(self, state: State, server: Server) -> State:
        ramp = progress(server.round, server.rounds)
        lam, pace = self.weight * ramp, self.target_pace * ramp
        server.log({"lambda": lam})
        if lam == 0.0:
            return State(x=average_models(server, Model(x=state.x)).x, di=state.di)

        def question(pull: float, source: int) -> Opponent:
            return Opponent(x=state.x, di=state.di, pull=pull, pace=pace, saturation=self.saturation, source=source)

        t = server.ask(server.target, train, question(-lam / 2, 0))
        # Without an image at the target there is nothing to align with: the sources only learn their task.
        s = server.ask_all(server.sources, train, question(-lam / 2 if t.n else 0.0, 1))
        if not s:
            return state
        log_loss(server, s)
        n = [float(r.n) for r in s.values()]
        x = combined(state.x, server.layout, [r.g for r in s.values()], n, t.g if t.n else None)
        di = mean([r.di for r in s.values()], n)
        return State(x=x, di=mean([di, t.di], [1.0, 1.0]) if t.n else state.di)
