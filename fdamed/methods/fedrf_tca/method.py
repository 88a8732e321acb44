"""FedRF-TCA (paper 002, section IV, Algorithms 2 to 5): alignment by mean random features; the target has no labels.

Every hospital has its own extractor G, which never leaves it, random features of G under an Omega that all draw from
the study's seed (a checksum is compared before anything else), an aligner W (2 N x m) and a classifier C. A source in
S_t minimizes L_C + lambda |W^T(m_i + m_T)|^2, the others L_C; the target the mean over S_t of |W^T(m_i + m_T)|^2.
W is averaged over S_t and the target every round, C over S_t every T_C steps. The target predicts with its own G.

On the wire, with K sources, A the senders of means, B of W, C of classifiers: what hospitals receive is 4 2N (K + |A|)
bytes of means and 4 2N m (|B| + 1) of W, 4 P_C (|C| + 1) where classifiers are averaged; what they send is
4 2N (1 + |A|), 4 2N m (|B| + 1) and 4 P_C |C|. None of it depends on the number of images. Once, in its first round, a
hospital is sent the common starting weights, M bytes. Votes: each C_i once at the end, up and on to the target.
A run's `warmup` by FedAvg takes the place of the paper's pretrained network: only there do extractors travel.

`means: epoch`, `target_pace`, `normalize_w`, `local_steps` above 1, `smallest_batch`, `noise` are not in the
paper (decision 0014): without `normalize_w` W -> 0 minimizes the distance, as the classifier sees only directions. A W
that is averaged needs each m_i at the target: their mean gives the same gradient to G_T, but not to W_T (`pooled`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.federation.messages import Count, Statistic, Weights, message
from fdamed.federation.method import Method, method, option
from fdamed.federation.server import Server
from fdamed.methods.fedrf_tca.client import (
    STEPS,
    Average,
    Begin,
    Call,
    Learned,
    Lesson,
    learn,
    take,
    tell,
)
from fdamed.methods.fedrf_tca.handshake import has_begun, met
from fdamed.methods.fedrf_tca.model import KEPT, Parts, predictor
from fdamed.methods.fedrf_tca.participation import VOTES, Senders, Setting, averaging, due, voting
from fdamed.models.adversarial import count, shape_of
from fdamed.models.flat import Layout
from fdamed.ops.aggregation import mean

NOTHING = torch.empty(0)


@message
class State:
    """The starting weights, the target's W and its C or the voters' (none at first), who has begun (K + 1,), the
    checksum of Omega, and whether the target has said that it got a C (0 or 1)."""

    x: Weights
    w: Statistic
    c: Statistic
    begun: Statistic
    omega: Count
    sure: Count


@method(
    "fedrf_tca",
    title="FedRF-TCA",
    paper="Robust and Communication-Efficient Federated Domain Adaptation via Random Features",
    steps=STEPS,
    needs_each="the target aligns itself to each source's mean by itself",
    keeps=KEPT,
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
    width: int = option(100, "of the two hidden layers of C", low=1)
    sigma: float = option(1.0, "width of the Gaussian kernel on features of length 1", low=1e-6)
    weight: float = option(1.0, "lambda, the weight of the distance at the sources; 0: no means, no alignment", low=0.0)
    target_pace: float = option(
        0.1, "share of its learning rate with which the target follows, with Adam; 1: the paper", low=0.0
    )
    trained_from: str = option(
        "", "first layer of G that learns, such as trunk.layer4; those before stay as pretrained; empty: all learn"
    )
    normalize_w: bool = option(True, "sqrt(m) W / |W|_F in the distance; false: the paper, where W may shrink to 0")
    means: Literal["batch", "epoch"] = option("batch", "images that a mean is over: one batch (the paper), or all")
    pooled: bool = option(False, "the target is sent the mean of the sources' means only")
    smallest_batch: int = option(
        0, "no mean over fewer images is asked for; a hospital's privacy.smallest_batch holds besides", low=0
    )
    noise: float = option(
        0.0, "Gaussian noise on a mean, in units of 2/batch, the most that one image moves it", low=0.0
    )

    def extra_parameters(self, sources: int, features: int, classes: int) -> int:
        """W and C of each hospital; C stands in for the network's own head."""
        own = count(Parts(self.frequencies, self.components, self.width, classes)) - (features + 1) * classes
        return (sources + 1) * own

    def start(self, theta: Tensor) -> State:
        return State(x=theta, w=NOTHING, c=NOTHING, begun=NOTHING, omega=0, sure=0)

    def final(self, state: State) -> Tensor:
        """What the hospitals share, W and C (or the voters); the starting weights as long as there is neither."""
        return torch.cat([state.w, state.c.flatten()]) if state.w.numel() and state.c.numel() else state.x

    def named(self, final: Tensor, layout: Layout) -> dict[str, Tensor]:
        if len(final) == layout.size:  # still the starting weights: the last round was lost as well
            raise self._unlearned()
        one = count(Parts(self.frequencies, self.components, self.width, shape_of(layout).classes).classifier)
        cut = 2 * self.frequencies * self.components
        return {
            "aligner": final[:cut].view(self.components, -1).clone(),
            "classifiers": final[cut:].view(-1, one).clone(),
        }

    def predictor(self, network: nn.Module, kept: Mapping[str, Tensor]) -> nn.Module | None:
        return predictor(network, kept, self.components, self.width) if all(k in kept for k in KEPT) else None

    def round(self, state: State, server: Server) -> State:
        state = self._met(state, server)
        here = tuple(p for p in server.sources if has_begun(server, state.begun, p))
        senders = self._senders(state, server, here)
        server.log({"sources": float(len(senders.means))})
        there = has_begun(server, state.begun, server.target)
        m_t = self._mean_of_target(server) if there else None
        m = self._means(server, senders.means) if m_t is not None else {}
        s = self._sources(server, here, senders, m_t, m)
        t = self._target(server, m) if m else None
        if self.weight > 0.0:  # a target that was asked and did not answer keeps what it has
            there = m_t is not None and (t is not None or not m)
        state = self._averaged(state, server, senders, s, t, there)
        if server.round == server.rounds and self.final(state) is state.x:
            raise self._unlearned()
        return state

    def _unlearned(self) -> FdamedError:
        return FdamedError(
            "no aligner or no classifier has reached the target: it has nothing to predict with",
            f"fedrf_tca, setting {self.setting}",
            "Look into the run's log for who was away in the last round; more rounds or setting I may help.",
        )

    def _met(self, state: State, server: Server) -> State:
        """Start those who have not begun, and refuse an Omega that is not everybody's."""
        ask = Begin(x=state.x, frequencies=self.frequencies, sigma=self.sigma, smallest=self.smallest_batch)
        begun, omega = met(server, state.begun, state.omega, ask)
        return dataclasses.replace(state, begun=begun, omega=omega)

    def _senders(self, state: State, server: Server, here: tuple[str, ...]) -> Senders:
        """Who sends in this round; classifiers only when due, and all at the end where the target may have none."""
        rng, last = stream(state.omega, "fedrf.senders", server.round), server.round == server.rounds
        if self.setting in VOTES:
            chosen = voting(self.setting, here, server.round, rng)
            return chosen if last else dataclasses.replace(chosen, c=())
        chosen = averaging(self.setting, here, rng)
        if last and not state.sure:
            return dataclasses.replace(chosen, w=here if not state.w.numel() else chosen.w, c=here)
        return (
            chosen
            if due(self.setting, self.T_C, self.local_steps or 1, server.round)
            else dataclasses.replace(chosen, c=())
        )

    def _mean_of_target(self, server: Server) -> Tensor | None:
        told = self._means(server, (server.target,))
        return told.get(server.target)

    def _means(self, server: Server, senders: tuple[str, ...]) -> dict[str, Tensor]:
        """Sigma l of those who told it; nobody is asked where nothing is aligned."""
        if self.weight == 0.0:
            return {}
        whole = int(self.means == "epoch")
        call = Call(
            frequencies=self.frequencies,
            smallest=self.smallest_batch,
            frozen=self._frozen(server.layout),
            noise=self.noise,
            whole=whole,
        )
        return {i: r.x for i, r in server.ask_all(senders, tell, call).items()}

    def _frozen(self, layout: Layout) -> int:
        """How many parameters lie before the first that learns."""
        body = [p for p in layout.parameters if p.name.partition(".")[0] != "head"]
        found = (
            [p.start for p in body if f"{p.name}.".startswith(f"{self.trained_from}.")] if self.trained_from else [0]
        )
        if not found:
            layers = sorted({p.name.rpartition(".")[0] for p in body})
            fix = f"Name a layer of the network or a group of them, such as {layers[-1]}."
            raise FdamedError(f"the network has no layer {self.trained_from!r}", "fedrf_tca, trained_from", fix)
        return found[0]

    def _sources(
        self, server: Server, here: tuple[str, ...], senders: Senders, m_t: Tensor | None, m: Mapping[str, Tensor]
    ) -> dict[str, Learned]:
        """Algorithm 2 at every source."""
        others = m_t[None] if m_t is not None else torch.empty(0, 2 * self.frequencies)
        questions = {}
        for i in here:
            flags = {"aligned": int(i in m), "send_w": int(i in senders.w), "send_c": int(i in senders.c)}
            questions[i] = self._lesson(server, others, **flags)
        return server.ask_each(questions, learn)

    def _target(self, server: Server, m: Mapping[str, Tensor]) -> Learned | None:
        """Algorithm 3; None: the target was gone."""
        others = torch.stack(list(m.values()))
        others = others.mean(0, keepdim=True) if self.pooled else others
        reply = server.ask_all((server.target,), learn, self._lesson(server, others, aligned=1, send_w=1, send_c=0))
        return reply.get(server.target)

    def _lesson(self, server: Server, others: Tensor, **flags: int) -> Lesson:
        return Lesson(
            others=others,
            frozen=self._frozen(server.layout),
            components=self.components,
            width=self.width,
            weight=self.weight,
            pace=self.target_pace,
            normalize=int(self.normalize_w),
            steps=self.local_steps,
            **flags,
        )

    def _averaged(
        self, state: State, server: Server, senders: Senders, s: dict[str, Learned], t: Learned | None, there: bool
    ) -> State:
        """Algorithm 4, and its results to those who sent, and to the target where it is there."""
        if s:
            server.log({"train/loss": sum(r.n * r.loss for r in s.values()) / sum(r.n for r in s.values())})
        if t:
            server.log({"mmd": t.apart, "norm/w": t.norm})
        vote = self.setting in VOTES
        w = {i: s[i].x for i in senders.w if i in s}
        c = {i: s[i].c for i in senders.c if i in s}
        new_w = _uniform([*w.values(), *([t.x] if t else [])]) if w else NOTHING  # alone, the target has W already
        new_c = (torch.stack(list(c.values())) if vote else _uniform(list(c.values()))) if c else NOTHING
        for i in sorted({*w, *(() if vote else c)}):
            server.ask_all(
                (i,), take, Average(w=new_w if i in w else NOTHING, c=NOTHING if vote or i not in c else new_c)
            )
        if not there or not (w or c):
            return state
        # What was sent counts, also where no answer came: the target may have it, and says so where it is judged.
        told = server.ask_all((server.target,), take, Average(w=new_w, c=new_c))
        sure = 1 if told and c else state.sure
        return dataclasses.replace(state, w=new_w if w else state.w, c=new_c if c else state.c, sure=sure)


def _uniform(vectors: list[Tensor]) -> Tensor:
    return mean(vectors, [1.0] * len(vectors))
