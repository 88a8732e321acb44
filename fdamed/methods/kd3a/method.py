"""KD3A (Feng et al., ICML 2021): the target learns, without labels, from what the sources' models agree on.

A round is one block: the sources train; their models h_k vote on the target's images; the target distills the vote into
h_{K+1}; the K + 1 models are averaged with weights from the consensus focus. Several blocks per epoch or several epochs
per block are `rounds` and the sources' `epochs`. Optimizers start anew each round; teachers see plain images.

| | `official` (released code) | `paper` (its formulas) |
|---|---|---|
| label of an image | its class, with mixup | the mean output of the supporters |
| weight of an image | 1; without a vote 0 | number of supporters; without a vote 0.001 |
| focus of a source | Shapley value of the consensus quality | what the quality loses without it |
| weights | target by images that pass the gate; 0.9 of the last round's | by N_k times focus |
| BatchNorm | teachers adapt to the target; plain average | teachers as sent; closed form of the BatchNorm-MMD |
| last layer | each client its own, or averaged | averaged |

Sent, with M bytes a model and K sources: K M down to the sources, K M up from them, K M of single clients' models
(kind `individual`) on to the target, and M back, for the target averages and remembers h: (3 K + 1) M. The target is
sent h, another M, only where it does not have it, as in the first round. Local heads travel down as zeros. Votes never
leave the target.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from fdamed.federation.messages import Statistic, Weights, message
from fdamed.federation.method import Method, Model, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import log_loss
from fdamed.methods.kd3a.client import (
    Checksum,
    SourceTask,
    Teachers,
    distill,
    receive_model,
    report_state,
    train_source,
)
from fdamed.models.flat import checksum, head_of, with_head
from fdamed.ops.aggregation import stacked

NONE = -1.0
"""Weight of a source that has not had one yet."""


@message
class State:
    """h, and the weights of all sources and the target; none before the first round."""

    x: Weights
    alpha: Statistic


@method(
    "kd3a",
    "KD3A",
    "Feng et al. 2021",
    (train_source, report_state, receive_model, distill),
    noised=True,
    needs_each="the sources' models vote at the target one by one",
    float16=False,
)
class KD3A(Method[State]):
    variant: Literal["official", "paper"] = option("official", "the released code, or the paper's formulas")
    gate_begin: float = option(0.9, "confidence above which a teacher votes, first round", low=0.0, high=1.0)
    gate_end: float = option(0.95, "the same, towards the last round", low=0.0, high=1.0)
    lr_end: float = option(0.02, "share of the learning rates left at the end of their cosine; 1: none", low=0, high=1)
    heads: Literal["local", "average"] = option(
        "local", "the last layer: each its own (starts slowly: decision 0013), or averaged, as always in the paper"
    )

    def start(self, theta: Tensor) -> State:
        return State(x=theta, alpha=torch.empty(0, dtype=torch.float64))

    def round(self, state: State, server: Server) -> State:
        progress = (server.round - 1) / server.rounds
        pace = self.lr_end + (1.0 - self.lr_end) * 0.5 * (1.0 + math.cos(math.pi * progress))
        gate = self.gate_begin + (self.gate_end - self.gate_begin) * progress
        own_head = self.heads == "local" and self.variant == "official"
        # The target averaged h and remembers it, unless this is its first round or its answer was lost.
        if not server.ask(server.target, report_state, Checksum(checksum=checksum(state.x))).yes:
            server.ask(server.target, receive_model, Model(x=state.x))
        no_head = torch.zeros_like(head_of(state.x, server.layout))
        x = with_head(state.x, no_head, server.layout) if own_head else state.x
        s = server.ask_all(server.sources, train_source, SourceTask(x=x, pace=pace, own_head=int(own_head)))
        server.log({"sources": float(len(s))})
        if not s:
            return state
        log_loss(server, s)
        names, n = list(s), [r.n for r in s.values()]
        present = torch.tensor([*(p in s for p in server.sources), True])
        alpha = state.alpha if len(state.alpha) else torch.full((len(server.sources) + 1,), NONE, dtype=torch.float64)
        question = Teachers(
            teachers=stacked((s.pop(name).x for name in names), len(names), server.layout.size),
            n=torch.tensor(n),
            old=alpha[present],
            gate=gate,
            pace=pace,
            paper=int(self.variant == "paper"),
            own_head=int(own_head),
        )
        t = server.ask(server.target, distill, question)

        # A source that dropped out keeps its weight until it is back; the others share the rest.
        absent = alpha[~present].clamp(min=0.0).sum()
        alpha = alpha.masked_scatter(present, t.alpha * (1.0 - absent))
        server.log({f"weight/{p}": None for p in server.sources})
        server.log({f"weight/{p}": a for p, a in zip([*names, server.target], t.alpha.tolist(), strict=True)})
        server.log({"gate": gate, "gate/passed": t.passed})
        server.log({"distil/loss": t.loss if t.steps else None, "distil/skipped": float(t.skipped)})
        return State(x=t.x, alpha=alpha)
