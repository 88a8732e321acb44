"""FADA (Peng, Huang, Zhu, Saenko, ICLR 2020): federated adversarial domain adaptation; the target has no labels.

Model I: dynamic attention, sources weigh by how much tighter the target's features cluster after their update. II:
and adversarial alignment, DI tells source from target, both sides learn to pass for the source (L_G). III: and
disentangling, the task is learned on f_di, from which what betrays the domain is driven out into f_ds.
A round: theta <- theta + Delta_T + sum_i w_i Delta_i (the paper's 9), one local epoch between two synchronizations.

On the wire, with M bytes a model: 2 K M, (K + 1) M to the target for the attention (kind `individual`: models of single
sources, and the one before), in II and III 2 M for the target, in III 2 (K + 1) M_D for the branches and once
more M to the target, which measures the statistics of the BatchNorms under the model that the round has made.
`discriminator` (default; FADE's idea, results are "FADA-d"): each side trains its copy of one shared DI and the server
averages, 2 (K + 1) 4 P_DI. `features` (published): features of every batch, 16 b d for each pair and step. The class
identifier, the critic of the mutual information and the reconstructor never leave their source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fdamed.federation.absences import DroppedOut
from fdamed.federation.client import Step
from fdamed.federation.messages import Statistic, Weights, message
from fdamed.federation.method import Method, Model, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.adversarial_training import combined, progress
from fdamed.methods._shared.feature_exchange import STEPS, Judges, Start, exchange
from fdamed.methods._shared.local_training import move_locally
from fdamed.methods.fada.attention import Candidate, settle, settled, spread_of
from fdamed.methods.fada.attention_weights import attention
from fdamed.methods.fada.client import Adapt, adapt, quarter
from fdamed.models.adversarial import Branches, Discriminator, Opponents, count, folded, half, shape_of
from fdamed.models.flat import FlatModel
from fdamed.ops.aggregation import mean
from fdamed.ops.slices import with_head


@message
class State:
    """The target's model, the branches, the discriminators (none before the first round), weights of all sources."""

    x: Weights
    d: Statistic
    di: Statistic
    w: Statistic


@method("fada")
class Fada(Method[State]):
    title: ClassVar[str] = "FADA"
    paper: ClassVar[str] = "Federated Adversarial Domain Adaptation (ICLR 2020), Algorithm 1"
    target_labels: ClassVar[bool] = False
    needs_each: ClassVar[str] = "attention weighs each source's update by what it alone does to the target's features"
    steps: ClassVar[tuple[Step, ...]] = (move_locally, adapt, spread_of, settle, *STEPS)
    state: ClassVar[type] = State

    model: Literal["I", "II", "III"] = option("III", "I attention, II and alignment, III and disentangling")
    wire: Literal["discriminator", "features"] = option(
        "discriminator", "what crosses: copies of the discriminator, or (published) features of every batch"
    )
    adversarial: float = option(0.1, "weight of L_G at the end of its ramp", low=0.0)
    adversarial_start: float = option(0.01, "weight of L_G at the beginning of its ramp", low=0.0)
    target_pace: float = option(
        0.1, "share of its learning rate with which the target follows, with Adam; ramps up like the pull", low=0.0
    )
    entropy: float = option(0.1, "weight of the class confusion", low=0.0)
    information: float = option(1e-4, "weight of the mutual information", low=0.0)
    reconstruction: float = option(0.01, "weight of the reconstruction", low=0.0)
    adversary_on: Literal["f_di", "f"] = option("f_di", "what the discriminator sees in model III")
    weighting: Literal["attention", "samples", "uniform"] = option("attention", "how sources are weighed")
    raw: bool = option(False, "softmax of the raw gains and unsquared distances, as printed")
    temperature: float = option(0.05, "of the softmax over relative gains", low=1e-6)
    attention_every: int = option(1, "rounds between two looks at the target's clusters", low=1)
    probe: int = option(1000, "images of the target on which clusters and statistics are measured", low=1)
    discriminator_lr: float = option(1e-3, "learning rate of the server's discriminators (wire = features)", low=0.0)
    limit: int = option(0, "steps of a round (wire = features); 0: the sources' epochs", low=0)

    def asks(self) -> tuple[Step, ...]:
        looks = (spread_of,) if self.weighting == "attention" else ()
        if self.model == "I":
            return (move_locally, *looks)
        return (
            *((adapt,) if self.wire == "discriminator" else STEPS),
            *looks,
            *((settle,) if self.model == "III" else ()),
        )

    def extra_parameters(self, sources: int, features: int, classes: int) -> int:
        """DI for each source, and in model III its D, CI, M and R; C stands in for the network's own head."""
        if self.model == "I":
            return 0
        if self.model == "II":
            return sources * count(Discriminator(features, max(2, features // 4)))
        seen = features if self.adversary_on == "f" else half(features)
        d = Branches(features, classes)
        own = count(d) - count(d.classifier) + count(Opponents(features, classes))
        return sources * (own + count(Discriminator(seen, max(2, features // 4))))

    def start(self, theta: Tensor) -> State:
        return State(x=theta, d=torch.empty(0), di=torch.empty(0), w=torch.empty(0))

    def final(self, state: State) -> Tensor:
        return state.x

    def round(self, state: State, server: Server) -> State:
        if self.model == "I":
            s, t, di = server.ask_all(server.sources, move_locally, Model(x=state.x)), None, state.di
        elif self.wire == "discriminator":
            (s, t), di = self._copies(state, server), None
        else:
            s, t, di = self._features(state, server)
        if not s:
            return state
        n = sum(r.n for r in s.values())
        server.log({"train/loss": sum(r.n * r.loss for r in s.values()) / n})
        kept = self._weights(state, server, s)
        w = [float(kept[server.sources.index(i)]) for i in s]
        x = combined(state.x, server.layout, [r.g for r in s.values()], w, t.g if t else None)
        d = state.d
        if self.model == "III":
            shape = shape_of(server.layout)
            d = mean([r.d for r in s.values()], w)
            x, d = settled(server, x, d, self.probe) if t else (x, d)
            x = with_head(x, fold(Branches(shape.d, shape.classes), d), server.layout)
        if di is None:  # the copies of the sources together are as heavy as the target's
            di = mean([mean([r.di for r in s.values()], w), t.di], [1.0, 1.0]) if t else state.di
        return State(x=x, d=d, di=di, w=kept)

    def _pull(self, server: Server) -> tuple[float, float]:
        """The weight of L_G and the target's pace."""
        ramp = progress(server.round, server.rounds)
        pull = self.adversarial_start + (self.adversarial - self.adversarial_start) * ramp
        server.log({"adversarial": pull})
        return pull, self.target_pace * ramp

    def _copies(self, state: State, server: Server) -> tuple[dict[str, Any], Any]:
        """Steps 1 to 7, each hospital with its copy of the shared DI; no target where it has no images."""
        rates = torch.tensor([self.entropy, self.information, self.reconstruction], dtype=torch.float64)
        three = self.model == "III"
        ask: dict[str, Any] = {"x": state.x, "d": state.d, "di": state.di, "rates": rates, "apart": int(three)}
        ask["on_f"] = int(not three or self.adversary_on == "f")
        pull, pace = self._pull(server)
        t = server.ask(server.target, adapt, Adapt(**ask, pull=pull, pace=pace, source=0))
        s = server.ask_all(server.sources, adapt, Adapt(**ask, pull=pull if t.n else 0.0, pace=1.0, source=1))
        for i, r in s.items():
            if r.skipped:
                server.log({f"skipped/{i}": float(r.skipped)})
        return s, t if t.n else None

    def _features(self, state: State, server: Server) -> tuple[dict[str, Any], Any, Tensor]:
        """Steps 1 to 7 with DI_i at the server."""
        three = self.model == "III"
        on_f = not three or self.adversary_on == "f"
        judges = Judges(server, state.di, quarter(server.layout), 1, not on_f, self.discriminator_lr)
        rates = torch.tensor([self.entropy, self.information, self.reconstruction], dtype=torch.float64)
        pull, pace = self._pull(server)
        ask = Start(x=state.x, d=state.d, rates=rates, pace=pace, apart=int(three), on_f=int(on_f))
        s, t = exchange(server, ask, lambda i, a, b: judges.versus(i, a, b, pull, False), self.limit)
        return s, t if t.n else None, judges.read()

    def _weights(self, state: State, server: Server, s: Mapping[str, Any]) -> Tensor:
        """6.3: the weights of all sources, those that answered weighed anew, the others as before."""
        k = len(server.sources)
        kept = state.w.clone() if state.w.numel() else torch.full((k,), 1.0 / k, dtype=torch.float64)
        if self.weighting == "samples":
            new = [r.n / sum(q.n for q in s.values()) for r in s.values()]
        elif self.weighting == "uniform":
            new = [1.0 / len(s)] * len(s)
        elif len(s) == 1:
            new = [1.0]
        elif (server.round - 1) % self.attention_every and state.w.numel():
            old = [float(kept[server.sources.index(i)]) for i in s]
            new = [v / sum(old) if sum(old) > 0.0 else 1.0 / len(s) for v in old]
        else:
            new = self._look(state, server, s)
        for i, v in zip(s, new, strict=True):
            kept[server.sources.index(i)] = v
            server.log({f"weight/{i}": v})
        return kept

    def _look(self, state: State, server: Server, s: Mapping[str, Any]) -> list[float]:
        def spread(x: Tensor, first: int) -> float:
            ask = Candidate(models=x[None], probe=self.probe, squared=int(not self.raw), first=first)
            return float(server.ask(server.target, spread_of, ask).i)

        before = spread(state.x, 1)
        after = []
        for r in s.values():
            try:
                after.append(spread(state.x + r.g, 0))
            except DroppedOut:
                after.append(float("nan"))  # a gain that nobody could measure has weight 0
        server.log({"spread": before})
        return attention(before, after, self.temperature, self.raw)


def fold(branches: Branches, d: Tensor) -> Tensor:
    """The numbers of the one linear head that does what branch and classifier do."""
    part = FlatModel(branches)
    part.load(d)
    weight, bias = folded(branches)
    return torch.cat([weight.flatten(), bias])
