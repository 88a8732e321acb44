"""f-DANN: domain-adversarial training (Ganin et al. 2016) in FADA's setting; the target has no labels.

The features of both sides learn to fool a discriminator DI through a reversed gradient, lambda = weight x the ramp
2/(1 + e^{-10 p}) - 1, while the sources learn their task; theta + sum_i n_i/n Delta_i + Delta_T.

On the wire, `discriminator` (default): each side trains its copy of one shared DI on its own half of the loss and the
server averages the copies, sources and target alike heavy: 2 (K + 1) (M + 4 P_DI) bytes a round and no features.
`features` (published): DI_i stands at the server, 16 b d bytes of features and gradients for each pair and step.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from fdamed.federation.client import Client, Step, step
from fdamed.federation.messages import Count, Scalar, Statistic, Update, Weights, message
from fdamed.federation.method import Method, Model, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.adversarial_training import Game, Local, combined, discriminator, progress
from fdamed.methods._shared.averaging import average_models
from fdamed.methods._shared.feature_exchange import STEPS, Judges, Start, exchange
from fdamed.methods._shared.local_training import train_locally
from fdamed.models.adversarial import Discriminator, count
from fdamed.ops.aggregation import mean

WIDTH, DEPTH = 256, 2


@message
class Against:
    """A model and the discriminator to play against; `source` is 1 or 0."""

    x: Weights
    di: Statistic
    pull: Scalar
    pace: Scalar
    saturation: Scalar
    source: Count


@message
class Played:
    g: Update
    di: Statistic
    n: Count
    loss: Scalar


@message
class State:
    """The model and the discriminators; none before the first round."""

    x: Weights
    di: Statistic


@step("fdann.train")
def play(client: Client, ask: Against) -> Played:
    """Train on the task where there are labels, and play one side of the game."""
    client.model.load(ask.x)
    di = discriminator(client, ask.di, WIDTH, DEPTH)
    game = Game(di, label=ask.source, toward=ask.source, pull=ask.pull, saturation=ask.saturation)
    local = Local(client, (di,), ask.pace)
    loss = local.epochs(lambda f, batch: local.task(f, batch) + game.play(f))
    return Played(g=client.model.read().sub_(ask.x), di=di.read(), n=len(client.data), loss=loss)


@method("fdann")
class FDann(Method[State]):
    title: ClassVar[str] = "f-DANN"
    paper: ClassVar[str] = "FADA (Peng et al. 2020), baseline; Ganin et al. 2016"
    target_labels: ClassVar[bool] = False
    needs_each: ClassVar[str] = "with `wire: features` the server sees every batch; only `wire: discriminator` sums"
    steps: ClassVar[tuple[Step, ...]] = (train_locally, play, *STEPS)
    state: ClassVar[type] = State

    weight: float = option(1.0, "largest lambda of the reversed gradient; 0 is FedAvg", low=0.0)
    wire: Literal["discriminator", "features"] = option(
        "discriminator", "what crosses: copies of the discriminator, or (published) features of every batch"
    )
    target_pace: float = option(
        0.1, "share of its learning rate with which the target follows, with Adam; ramps up like the pull", low=0.0
    )
    saturation: float = option(10.0, "a side whose discriminator loss exceeds this is not pulled", low=0.0)
    discriminator_lr: float = option(1e-3, "learning rate of the server's discriminators (wire = features)", low=0.0)
    limit: int = option(0, "steps of a round (wire = features); 0: the sources' epochs", low=0)

    def asks(self) -> tuple[Step, ...]:
        return (train_locally, play) if self.wire == "discriminator" else (train_locally, *STEPS)

    def extra_parameters(self, sources: int, features: int, classes: int) -> int:
        """A discriminator for each source."""
        return sources * count(Discriminator(features, WIDTH, DEPTH))

    def start(self, theta: Tensor) -> State:
        return State(x=theta, di=torch.empty(0))

    def final(self, state: State) -> Tensor:
        return state.x

    def round(self, state: State, server: Server) -> State:
        lam = self.weight * progress(server.round, server.rounds)
        server.log({"lambda": lam})
        if lam == 0.0:
            return State(x=average_models(server, Model(x=state.x)).x, di=state.di)
        return self._features(state, server, lam) if self.wire == "features" else self._copies(state, server, lam)

    def _copies(self, state: State, server: Server, lam: float) -> State:
        pace = self.target_pace * progress(server.round, server.rounds)

        def against(pull: float, source: int) -> Against:
            return Against(x=state.x, di=state.di, pull=pull, pace=pace, saturation=self.saturation, source=source)

        t = server.ask(server.target, play, against(-lam / 2, 0))
        # Without an image at the target there is nobody to resemble: the sources only learn their task.
        s = server.ask_all(server.sources, play, against(-lam / 2 if t.n else 0.0, 1))
        if not s:
            return state
        n = [float(r.n) for r in s.values()]
        server.log({"train/loss": sum(r.n * r.loss for r in s.values()) / sum(n)})
        x = combined(state.x, server.layout, [r.g for r in s.values()], n, t.g if t.n else None)
        di = mean([r.di for r in s.values()], n)
        return State(x=x, di=mean([di, t.di], [1.0, 1.0]) if t.n else state.di)

    def _features(self, state: State, server: Server, lam: float) -> State:
        judges = Judges(server, state.di, WIDTH, DEPTH, False, self.discriminator_lr)
        pace = self.target_pace * progress(server.round, server.rounds)
        ask = Start(x=state.x, d=torch.empty(0), rates=torch.zeros(3), pace=pace, apart=0, on_f=1)
        s, t = exchange(server, ask, lambda i, f_s, f_t: judges.versus(i, f_s, f_t, lam, True), self.limit)
        if not s:
            return state
        n = [float(r.n) for r in s.values()]
        server.log({"train/loss": next(iter(s.values())).loss})
        x = combined(state.x, server.layout, [r.g for r in s.values()], n, t.g if t.n else None)
        return State(x=x, di=judges.read())
