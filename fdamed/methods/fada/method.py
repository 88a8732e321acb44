"""FADA (Peng, Huang, Zhu, Saenko, ICLR 2020), Algorithm 1: federated adversarial domain adaptation; no target labels.

Model I: dynamic attention weights a source by how much tighter the target's features cluster after its update. II: and
adversarial alignment, DI tells source from target, both sides learn to pass for the source (L_G). III: and
disentangling, the task is learned on f_di, from which the domain's own traits are removed into f_ds.
A round: theta <- theta + Delta_T + sum_i w_i Delta_i (the paper's Eq. 9), one local epoch between two exchanges.

Sent, with M bytes a model: 2 K M, (K + 1) M to the target for the attention (kind `individual`: models of single
sources, and the one before), in II and III 2 M for the target, in III 2 (K + 1) M_D for the branches and once
more M to the target, which measures the statistics of the BatchNorms under the model that the round has made.
`discriminator` (default; FADE's idea, results are "FADA-d"): each side trains its copy of one shared DI and the server
averages, 2 (K + 1) 4 P_DI. `features` (published): features of every batch, 16 b d for each pair and step. The class
identifier, the critic of the mutual information and the reconstructor never leave their source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from fdamed.federation.absences import DroppedOut
from fdamed.federation.client import Step
from fdamed.federation.messages import Statistic, Weights, message
from fdamed.federation.method import Method, Model, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.adversarial_training import combined, progress
from fdamed.methods._shared.averaging import log_loss
from fdamed.methods._shared.local_training import compute_update
from fdamed.methods.fada.attention import Candidate, Uncalibrated, attention, feature_spread, recalibrate
from fdamed.methods.fada.client import Adapt, adapt
from fdamed.methods.fada.disentanglement import Branches, Opponents, folded_head
from fdamed.methods.fada.exchange import STEPS, Discriminators, Start, exchange, send_features, send_invariant
from fdamed.models.adversarial import Discriminator, count, half
from fdamed.models.flat import with_head
from fdamed.ops.aggregation import mean


@message
class State:
    """The target's model, the branches, the discriminators (none before the first round), weights of all sources."""

    x: Weights
    d: Statistic
    di: Statistic
    w: Statistic


@method(
    "fada",
    "FADA",
    "Federated Adversarial Domain Adaptation (ICLR 2020), Algorithm 1",
    (compute_update, adapt, feature_spread, recalibrate, *STEPS),
    needs_each="attention weighs each source's update by what it alone does to the target's features",
    float16=False,
    synchronizations=1,  # is the mutual information finite?
)
class Fada(Method[State]):
    model: Literal["I", "II", "III"] = option("III", "I attention, II and alignment, III and disentangling")
    wire: Literal["discriminator", "features"] = option(
        "discriminator", "what is sent: copies of the discriminator, or (published) features of every batch"
    )
    adversarial: float = option(0.1, "weight of L_G at the end of its ramp", low=0.0)
    adversarial_start: float = option(0.01, "weight of L_G at the beginning of its ramp", low=0.0)
    target_pace: float = option(
        0.1, "share of its learning rate that the target uses, with Adam; ramps up like the pull", low=0.0
    )
    entropy: float = option(0.1, "weight of the class confusion", low=0.0)
    information: float = option(1e-4, "weight of the mutual information", low=0.0)
    reconstruction: float = option(0.01, "weight of the reconstruction", low=0.0)
    temperature: float = option(0.05, "temperature of the softmax over relative gains", low=1e-6)
    probe: int = option(1000, "images of the target on which clusters and statistics are measured", low=1)
    discriminator_lr: float = option(1e-3, "learning rate of the server's discriminators (wire = features)", low=0.0)

    def asks(self) -> tuple[Step, ...]:
        if self.model == "I":
            return (compute_update, feature_spread)
        unused = send_features if self.model == "III" else send_invariant
        exchanged = (adapt,) if self.wire == "discriminator" else tuple(s for s in STEPS if s is not unused)
        return (*exchanged, feature_spread, *((recalibrate,) if self.model == "III" else ()))

    def extra_parameters(self, sources: int, features: int, classes: int) -> int:
        """DI for each source, and in model III its D, CI, M and R; C replaces the network's own head."""
        if self.model == "I":
            return 0
        width, d = max(2, features // 4), Branches(features, classes)
        if self.model == "II":
            return sources * count(Discriminator(features, width))
        own = count(d) - count(d.classifier) + count(Opponents(features, classes))
        return sources * (own + count(Discriminator(half(features), width)))

    def start(self, theta: Tensor) -> State:
        return State(x=theta, d=torch.empty(0), di=torch.empty(0), w=torch.empty(0))

    def round(self, state: State, server: Server) -> State:
        if self.model == "I":
            s, t, di = server.ask_all(server.sources, compute_update, Model(x=state.x)), None, state.di
        elif self.wire == "discriminator":
            (s, t), di = self._with_copies(state, server), None
        else:
            s, t, di = self._with_features(state, server)
        if not s:
            return state
        log_loss(server, s)
        kept = self._weights(state, server, s)
        w = [float(kept[server.sources.index(i)]) for i in s]
        x, d = combined(state.x, server.layout, [r.g for r in s.values()], w, t.g if t else None), state.d
        if self.model == "III":
            d = mean([r.d for r in s.values()], w)
            if t:
                x, d = self._recalibrated(server, x, d)
            x = with_head(x, folded_head(d, server.layout), server.layout)
        if di is None:  # the copies of the sources together weigh as much as the target's
            di = mean([mean([r.di for r in s.values()], w), t.di], [1.0, 1.0]) if t else state.di
        return State(x=x, d=d, di=di, w=kept)

    def _settings(self, server: Server) -> tuple[float, float, Tensor]:
        """The weight of L_G, the target's pace, and the weights of the other losses."""
        ramp = progress(server.round, server.rounds)
        pull = self.adversarial_start + (self.adversarial - self.adversarial_start) * ramp
        server.log({"adversarial": pull})
        rates = torch.tensor([self.entropy, self.information, self.reconstruction], dtype=torch.float64)
        return pull, self.target_pace * ramp, rates

    def _with_copies(self, state: State, server: Server) -> tuple[dict[str, Any], Any]:
        """Steps 1 to 7, each client with its copy of the shared DI; no target where it has no images."""
        pull, pace, rates = self._settings(server)
        apart = int(self.model == "III")
        ask: dict[str, Any] = {"x": state.x, "d": state.d, "di": state.di, "rates": rates, "apart": apart}
        t = server.ask(server.target, adapt, Adapt(**ask, pull=pull, pace=pace, source=0))
        s = server.ask_all(server.sources, adapt, Adapt(**ask, pull=pull if t.n else 0.0, pace=1.0, source=1))
        server.log({f"skipped/{i}": float(r.skipped) for i, r in s.items() if r.skipped})
        return s, t if t.n else None

    def _with_features(self, state: State, server: Server) -> tuple[dict[str, Any], Any, Tensor]:
        """Steps 1 to 7 with DI_i at the server."""
        pull, pace, rates = self._settings(server)
        apart = self.model == "III"
        di = Discriminators(server, state.di, apart, self.discriminator_lr, pull)
        s, t = exchange(server, Start(x=state.x, pace=pace, d=state.d, rates=rates, apart=int(apart)), di)
        return s, t if t.n else None, di.read()

    def _weights(self, state: State, server: Server, s: Mapping[str, Any]) -> Tensor:
        """Dynamic attention (section 6.3): new weights for the sources that answered, the others keep theirs."""
        k = len(server.sources)
        kept = state.w.clone() if state.w.numel() else torch.full((k,), 1.0 / k, dtype=torch.float64)
        new = [1.0] if len(s) == 1 else self._attention(state, server, s)
        for i, v in zip(s, new, strict=True):
            kept[server.sources.index(i)] = v
            server.log({f"weight/{i}": v})
        return kept

    def _attention(self, state: State, server: Server, s: Mapping[str, Any]) -> list[float]:
        def spread(x: Tensor, first: int) -> float:
            ask = Candidate(models=x[None], probe=self.probe, first=first)
            return float(server.ask(server.target, feature_spread, ask).i)

        before = spread(state.x, 1)
        after = []
        for r in s.values():
            try:
                after.append(spread(state.x + r.g, 0))
            except DroppedOut:
                after.append(float("nan"))  # a gain that was not measured has weight 0
        server.log({"spread": before})
        return attention(before, after, self.temperature)

    def _recalibrated(self, server: Server, x: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """x and d with the running statistics that the target measures under them, if it can (decision 0013).

        Those of its training belong to the model before the sources' changes were added, and features grow.
        """
        new = server.ask(server.target, recalibrate, Uncalibrated(x=x, d=d, probe=self.probe))
        return tuple(torch.cat([old[: len(old) - len(b)], b]) for old, b in ((x, new.x), (d, new.d)))  # type: ignore[return-value]
