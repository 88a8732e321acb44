"""KD3A (Feng et al., ICML 2021): the target learns, without labels, from what the sources' models agree on.

A round is one block: the sources train; their models h_k vote on the target's images; the target distils the vote into
h_{K+1}; the K + 1 models are averaged with weights from the consensus focus. `official` is the released code (without
its rounding of the weights, with the cosine's period set to the number of rounds), `paper` the paper's formulas; every
item in which they differ can be set by itself. Several blocks an epoch or several epochs a block are `rounds` and the
sources' `epochs`. As everywhere here optimizers start anew each round; teachers see images that are not augmented.

On the wire, with M bytes a model and K sources: K M down to the sources, K M up from them, K M of single hospitals'
models (kind `individual`) on to the target, and M back, for the target averages and remembers h: (3 K + 1) M. The
target is sent h, another M, only where it does not have it, as in the first round. With local heads the head's place
travels down as zeros.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from fdamed.core.rng import stream
from fdamed.federation.client import Client, Step, step
from fdamed.federation.messages import Count, Scalar, Statistic, Weights, message
from fdamed.federation.method import Method, Model, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.local_training import Trained, train_locally
from fdamed.methods.kd3a.client import Lesson, Mark, checksum, holds, learn, take
from fdamed.models.backbone import initialize
from fdamed.ops.aggregation import stacked
from fdamed.ops.slices import head_of, with_head

MIXUP = 2.0
LOW = 0.001
NONE = -1.0
"""Weight of a source that has not yet had one."""


@message
class Course:
    """What a source trains on from; `own_head` (0 or 1): with the head it remembers."""

    x: Weights
    pace: Scalar
    own_head: Count


@message
class Consensus:
    """h, and the weights of all sources and the target; none before the first round."""

    x: Weights
    alpha: Statistic


@step("kd3a.train_source", noised=True)
def train_source(client: Client, ask: Course) -> Trained:
    """Local training, at the round's pace and with the source's own head where heads are local."""
    slower = dataclasses.replace(client, recipe=client.recipe.model_copy(update={"lr": client.recipe.lr * ask.pace}))
    if not ask.own_head:
        return cast(Trained, train_locally.run(slower, Model(x=ask.x)))
    head = client.memory["kd3a.head"] if "kd3a.head" in client.memory else _fresh_head(client)
    x = with_head(ask.x, head, client.model.layout)
    trained = cast(Trained, train_locally.run(slower, Model(x=x)))
    client.memory["kd3a.head"] = head_of(trained.x, client.model.layout)
    return trained


def _fresh_head(client: Client) -> Tensor:
    """A source's first head: its own, as no model with another head is ever sent to it."""
    initialize(cast(nn.Module, client.model.module.head), stream(client.seed, client.name, "kd3a.head").torch)
    return head_of(client.model.read(), client.model.layout)


VARIANTS = {
    "labels": ("hard", "soft"),
    "support": ("any", "count"),
    "unsure": ("skip", "low"),
    "mixup": ("beta", "none"),
    "focus": ("shapley", "marginal"),
    "shares": ("confidence", "samples"),
    "smoothing": ("on", "off"),
    "teachers": ("adapt", "fixed"),
    "norm": ("plain", "moments"),
    "heads": ("local", "average"),
}
"""Item -> what it is in (official, paper)."""


@method("kd3a")
class KD3A(Method[Consensus]):
    title: ClassVar[str] = "KD3A"
    paper: ClassVar[str] = "Feng et al. 2021"
    target_labels: ClassVar[bool] = False
    needs_each: ClassVar[str] = "the sources' models vote at the target one by one"
    noised: ClassVar[bool] = True
    steps: ClassVar[tuple[Step, ...]] = (train_source, holds, take, learn)
    state: ClassVar[type] = Consensus

    variant: Literal["official", "paper"] = option("official", "the released code, or the paper's formulas")
    gate_begin: float = option(0.9, "confidence above which a teacher speaks, first round", low=0.0, high=1.0)
    gate_end: float = option(0.95, "the same, towards the last round", low=0.0, high=1.0)
    lr_end: float = option(0.02, "share of the learning rates left at the end of their cosine; 1: none", low=0, high=1)
    images: int = option(0, "images of the target in a round, drawn anew; 0: all", low=0)
    vote: Literal["confidence", "probability"] = option("confidence", "what elects the class: top-1 or all outputs")
    labels: Literal["variant", "hard", "soft"] = option("variant", "distil the class, or the mean of the outputs")
    support: Literal["variant", "any", "count"] = option("variant", "weight of an image: 1, or its supporters' number")
    unsure: Literal["variant", "skip", "low"] = option("variant", "weight where nobody speaks: 0, or 0.001")
    mixup: Literal["variant", "beta", "none"] = option("variant", "mix images and labels by Beta(2, 2)")
    focus: Literal["variant", "shapley", "marginal"] = option("variant", "what a source adds to the consensus")
    shares: Literal["variant", "confidence", "samples"] = option(
        "variant", "the target's share by images that pass the gate, or all shares by number of images"
    )
    smoothing: Literal["variant", "on", "off"] = option("variant", "0.9 of the last weights, 0.1 of the new ones")
    teachers: Literal["variant", "adapt", "fixed"] = option(
        "variant", "BatchNorm of voting models: the target's batch statistics, or the statistics they came with"
    )
    norm: Literal["variant", "plain", "moments"] = option(
        "variant", "averaged BatchNorm variance: plain mean, or the closed form of the BatchNorm-MMD"
    )
    heads: Literal["variant", "local", "average"] = option(
        "variant", "the last layer: each its own (starts slowly: decision 0013), or averaged"
    )

    def start(self, theta: Tensor) -> Consensus:
        return Consensus(x=theta, alpha=torch.empty(0, dtype=torch.float64))

    def round(self, state: Consensus, server: Server) -> Consensus:
        e = (server.round - 1) / server.rounds
        pace = self.lr_end + (1.0 - self.lr_end) * 0.5 * (1.0 + math.cos(math.pi * e))
        own_head = self._is("heads", "local")
        self._meet(state, server)
        x = (
            with_head(state.x, torch.zeros_like(head_of(state.x, server.layout)), server.layout)
            if own_head
            else state.x
        )
        s = server.ask_all(server.sources, train_source, Course(x=x, pace=pace, own_head=own_head))
        server.log({"sources": float(len(s))})
        if not s:
            return state
        names, n = list(s), [r.n for r in s.values()]
        server.log({"train/loss": sum(r.n * r.loss for r in s.values()) / sum(n)})
        present = torch.tensor([*(p in s for p in server.sources), True])
        alpha = state.alpha if len(state.alpha) else torch.full((len(server.sources) + 1,), NONE, dtype=torch.float64)
        lesson = Lesson(
            teachers=stacked((s.pop(name).x for name in names), len(names)),
            n=torch.tensor(n),
            old=alpha[present],
            gate=self.gate_begin + (self.gate_end - self.gate_begin) * e,
            low=LOW if self._is("unsure", "low") else 0.0,
            mixup=MIXUP if self._is("mixup", "beta") else 0.0,
            keep=0.9 if self._is("smoothing", "on") else 0.0,
            pace=pace,
            images=self.images,
            by_probability=int(self.vote == "probability"),
            soft=self._is("labels", "soft"),
            counted=self._is("support", "count"),
            shapley=self._is("focus", "shapley"),
            by_samples=self._is("shares", "samples"),
            adapt=self._is("teachers", "adapt"),
            moments=self._is("norm", "moments"),
            own_head=own_head,
        )
        t = server.ask(server.target, learn, lesson)

        # Who dropped out keeps its weight for the day it is back; the others share the rest.
        absent = alpha[~present].clamp(min=0.0).sum()
        alpha = alpha.masked_scatter(present, t.alpha * (1.0 - absent))
        server.log({f"weight/{p}": None for p in server.sources})
        server.log({f"weight/{p}": a for p, a in zip([*names, server.target], t.alpha.tolist(), strict=True)})
        server.log({"gate": lesson.gate, "gate/passed": t.passed})
        server.log({"distil/loss": t.loss if t.steps else None})
        server.log({"distil/skipped": float(t.skipped)})
        return Consensus(x=t.x, alpha=alpha)

    def final(self, state: Consensus) -> Tensor:
        return state.x

    def _is(self, item: str, value: str) -> int:
        chosen = getattr(self, item)
        if chosen == "variant":
            chosen = VARIANTS[item][self.variant == "paper"]
        return int(chosen == value)

    def _meet(self, state: Consensus, server: Server) -> None:
        """Make sure that the target remembers h: it averaged it, unless this is its first round or it was away."""
        if not server.ask(server.target, holds, Mark(crc32=checksum(state.x))).yes:
            server.ask(server.target, take, Model(x=state.x))
