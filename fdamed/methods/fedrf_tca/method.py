"""FedRF-TCA (Feng et al., section IV, Algorithms 2 to 5): alignment by mean random features; no target labels.

Every client has its own extractor G, which never leaves it, random features of G under an Omega that all draw from
the study's seed (a checksum is compared before anything else), an aligner W (2 N x m) and a classifier C. A source in
S_t minimizes L_C + lambda |W^T(m_i + m_T)|^2, the others L_C; the target the mean over S_t of |W^T(m_i + m_T)|^2.
W is averaged over S_t and the target every round, C over S_t every T_C steps. The target predicts with its own G.

Sent, with K sources, A the senders of means, B of W, C of classifiers: clients receive 4 2N (K + |A|) bytes of means,
4 2N m (|B| + 1) of W, and 4 P_C (|C| + 1) where classifiers are averaged; they send 4 2N (1 + |A|), 4 2N m (|B| + 1)
and 4 P_C |C|. None of it depends on the number of images. In its first round a client is sent the common starting
weights, M bytes. Votes: each C_i once at the end, up and on to the target.
A run's `warmup` by FedAvg takes the place of the paper's pretrained network: only there do extractors travel.

`means: epoch`, `target_pace`, `normalize_w` and `local_steps` above 1 are not in the paper (decision 0014): without
`normalize_w` W -> 0 minimizes the distance, as the classifier sees only directions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.federation.absences import DroppedOut
from fdamed.federation.messages import Count, Statistic, Weights, message
from fdamed.federation.method import Method, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import log_loss
from fdamed.methods.fedrf_tca.client import (
    NOTHING,
    STEPS,
    Average,
    Begin,
    MeanRequest,
    Train,
    Trained,
    begin,
    receive_average,
    send_mean,
    train,
)
from fdamed.methods.fedrf_tca.model import KEPT, Parts, predictor
from fdamed.methods.fedrf_tca.participation import VOTES, Senders, Setting, classifiers_due, draw_senders
from fdamed.models.adversarial import count, shape_of
from fdamed.models.flat import AUXILIARY, Layout
from fdamed.ops.aggregation import mean


@message
class State:
    """The starting weights, the target's W and its C or the voters' (none at first), who has begun (K + 1,), target
    first, the checksum of Omega, and whether the target has confirmed a C (0 or 1)."""

    x: Weights
    w: Statistic
    c: Statistic
    begun: Statistic
    omega: Count
    confirmed: Count


@method(
    "fedrf_tca",
    "FedRF-TCA",
    "Robust and Communication-Efficient Federated Domain Adaptation via Random Features",
    STEPS,
    needs_each="the target aligns itself to each source's mean by itself",
    keeps=KEPT,
    float16=False,
)
class FedRfTca(Method[State]):
    setting: Setting = option(
        "I",
        "I all, II random S_t, III and T_C = 50 (Tables IV, V); msg-I to III some messages lost (Table II); "
        "IV, V and vote-B to D hard voting (Tables XIII to XV)",
    )
    local_steps: int = option(10, "batches between two exchanges; 0: the hospital's epochs; the paper has 1", low=0)
    T_C: int = option(0, "batches between two averages of C (rounds if local_steps is 0); 0: the setting's own", low=0)
    frequencies: int = option(500, "N: a mean has 2 N numbers", low=1)
    components: int = option(100, "m: columns of W", low=1)
    width: int = option(100, "width of the two hidden layers of C", low=1)
    sigma: float = option(1.0, "width of the Gaussian kernel on features of norm 1", low=1e-6)
    weight: float = option(1.0, "lambda, the weight of the distance at the sources; 0: no means, no alignment", low=0.0)
    target_pace: float = option(
        0.1, "share of its learning rate that the target uses, with Adam; 1: the paper", low=0.0
    )
    trained_from: str = option(
        "", "first layer of G that learns, such as trunk.layer4; those before stay as pretrained; empty: all learn"
    )
    normalize_w: bool = option(True, "sqrt(m) W / |W|_F in the distance; false: the paper, where W may shrink to 0")
    means: Literal["batch", "epoch"] = option("batch", "images that a mean is over: one batch (the paper), or all")

    def extra_parameters(self, sources: int, features: int, classes: int) -> int:
        """W and C of each client; C replaces the network's own head."""
        own = count(Parts(self.frequencies, self.components, self.width, classes)) - (features + 1) * classes
        return (sources + 1) * own

    def start(self, theta: Tensor) -> State:
        return State(x=theta, w=NOTHING, c=NOTHING, begun=NOTHING, omega=0, confirmed=0)

    def final(self, state: State) -> Tensor:
        """What the clients share, W and C (or the voters); the starting weights as long as one is missing."""
        return torch.cat([state.w, state.c.flatten()]) if state.w.numel() and state.c.numel() else state.x

    def named(self, final: Tensor, layout: Layout) -> dict[str, Tensor]:
        if len(final) == layout.size:  # still the starting weights: the last round was lost as well
            raise self._nothing_learned()
        one = count(Parts(self.frequencies, self.components, self.width, shape_of(layout).classes).classifier)
        cut = 2 * self.frequencies * self.components
        return {
            "aligner": final[:cut].view(self.components, -1).clone(),
            "classifiers": final[cut:].view(-1, one).clone(),
        }

    def predictor(self, network: nn.Module, kept: Mapping[str, Tensor]) -> nn.Module | None:
        return predictor(network, kept, self.components, self.width) if all(k in kept for k in KEPT) else None

    def round(self, state: State, server: Server) -> State:
        state = self._begun(state, server)
        begun = dict(zip((server.target, *server.sources), state.begun.tolist(), strict=True))
        present = tuple(p for p in server.sources if begun[p])
        senders = self._senders(state, server, present)
        server.log({"sources": float(len(senders.means))})
        reachable = bool(begun[server.target])
        m_t = self._means(server, (server.target,)).get(server.target) if reachable else None
        m = self._means(server, senders.means) if m_t is not None else {}
        s = self._train_sources(server, present, senders, m_t, m)
        t = self._train_target(server, m) if m else None
        if self.weight > 0.0:  # a target that was asked and did not answer keeps what it has
            reachable = m_t is not None and (t is not None or not m)
        state = self._averaged(state, server, senders, s, t, reachable)
        if server.round == server.rounds and self.final(state) is state.x:
            raise self._nothing_learned()
        return state

    def _nothing_learned(self) -> FdamedError:
        return FdamedError(
            "no aligner or no classifier has reached the target: it has nothing to predict with",
            f"fedrf_tca, setting {self.setting}",
            "See the run's log for clients that were absent in the last round; more rounds or setting I may help.",
        )

    def _begun(self, state: State, server: Server) -> State:
        """Start the clients that have not begun, and refuse an Omega that differs from the others'."""
        clients, omega = (server.target, *server.sources), state.omega
        begun = state.begun.clone() if state.begun.numel() else torch.zeros(len(clients))
        ask = Begin(x=state.x, frequencies=self.frequencies, sigma=self.sigma)
        for i, client in enumerate(clients):
            if begun[i]:
                continue
            try:
                theirs = server.ask(client, begin, ask).omega
            except DroppedOut:
                continue
            if omega and theirs != omega:
                raise FdamedError(
                    f"{client} drew another Omega from its seed than the others: their means cannot be compared",
                    f"hospital {client}",
                    "Give all hospitals the same seed and the same version of fdamed, and start the run again.",
                )
            begun[i], omega = 1.0, theirs
        return dataclasses.replace(state, begun=begun, omega=omega)

    def _senders(self, state: State, server: Server, present: tuple[str, ...]) -> Senders:
        """Who sends in this round; classifiers only when due, and all at the end where the target may have none."""
        last = server.round == server.rounds
        chosen = draw_senders(self.setting, present, server.round, stream(state.omega, "fedrf.senders", server.round))
        if self.setting in VOTES:
            due = last
        elif last and not state.confirmed:
            return dataclasses.replace(chosen, w=chosen.w if state.w.numel() else present, c=present)
        else:
            due = classifiers_due(self.setting, self.T_C, self.local_steps or 1, server.round)
        return chosen if due else dataclasses.replace(chosen, c=())

    def _means(self, server: Server, senders: tuple[str, ...]) -> dict[str, Tensor]:
        """Sigma l of the senders that answer; none is asked without alignment."""
        if self.weight == 0.0:
            return {}
        frozen, whole = self.frozen_parameters(server.layout), int(self.means == "epoch")
        ask = MeanRequest(frequencies=self.frequencies, frozen=frozen, whole=whole)
        return {i: r.x for i, r in server.ask_all(senders, send_mean, ask).items()}

    def frozen_parameters(self, layout: Layout) -> int:
        """How many parameters come before the first that learns."""
        if not self.trained_from:
            return 0
        body = [p for p in layout.parameters if p.name.partition(".")[0] not in ("head", AUXILIARY)]
        found = [p.start for p in body if f"{p.name}.".startswith(f"{self.trained_from}.")]
        if not found:
            layers = sorted({p.name.rpartition(".")[0] for p in body})
            fix = f"Name a layer of the network or a group of them, such as {layers[-1]}."
            raise FdamedError(f"the network has no layer {self.trained_from!r}", "fedrf_tca, trained_from", fix)
        return found[0]

    def _train_sources(
        self, server: Server, present: tuple[str, ...], senders: Senders, m_t: Tensor | None, m: Mapping[str, Tensor]
    ) -> dict[str, Trained]:
        """Algorithm 2 at every source."""
        others = m_t[None] if m_t is not None else torch.empty(0, 2 * self.frequencies)
        questions = {i: self._question(server, others, i in m, i in senders.w, i in senders.c) for i in present}
        return server.ask_each(questions, train)

    def _train_target(self, server: Server, m: Mapping[str, Tensor]) -> Trained | None:
        """Algorithm 3; None: the target did not answer."""
        question = self._question(server, torch.stack(list(m.values())), True, True, False)
        return server.ask_all((server.target,), train, question).get(server.target)

    def _question(self, server: Server, others: Tensor, aligned: bool, send_w: bool, send_c: bool) -> Train:
        return Train(
            others=others,
            frozen=self.frozen_parameters(server.layout),
            components=self.components,
            width=self.width,
            weight=self.weight,
            pace=self.target_pace,
            aligned=int(aligned),
            normalize=int(self.normalize_w),
            steps=self.local_steps,
            send_w=int(send_w),
            send_c=int(send_c),
        )

    def _averaged(
        self, state: State, server: Server, senders: Senders, s: dict[str, Trained], t: Trained | None, reachable: bool
    ) -> State:
        """Algorithm 4; the averages go to those who sent, and to the target if it is reachable."""
        if s:
            log_loss(server, s)
        if t:
            server.log({"mmd": t.distance, "norm/w": t.norm})
        vote = self.setting in VOTES
        w = {i: s[i].x for i in senders.w if i in s}
        c = {i: s[i].c for i in senders.c if i in s}
        new_w = mean([*w.values(), *([t.x] if t else [])]) if w else NOTHING  # alone, the target has W already
        new_c = (torch.stack(list(c.values())) if vote else mean(list(c.values()))) if c else NOTHING
        for i in sorted({*w, *(() if vote else c)}):
            own_c = NOTHING if vote or i not in c else new_c
            server.ask_all((i,), receive_average, Average(w=new_w if i in w else NOTHING, c=own_c))
        if not reachable or not (w or c):
            return state
        # What was sent counts even if no answer came: the target may have it, and evaluation checks whether it does.
        answered = server.ask_all((server.target,), receive_average, Average(w=new_w, c=new_c))
        confirmed = 1 if answered and c else state.confirmed
        return dataclasses.replace(state, w=new_w if w else state.w, c=new_c if c else state.c, confirmed=confirmed)
