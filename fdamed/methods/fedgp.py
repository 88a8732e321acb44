"""FedGP (Definition 3.1): theta + (1 - beta) g_T + beta * mean_i Proj+(g_T | g_i).

The target's update is projected on each source's update and kept where it points the same way; per layer by default.
On the wire: the model down, updates up, from the sources and the target alike.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from fdamed.federation.client import Step
from fdamed.federation.method import Model, OneModel, method, option
from fdamed.federation.server import Server
from fdamed.federation.validation.answers import source_average, source_moves, tell_opponents
from fdamed.methods._shared.local_training import move_locally, train_locally
from fdamed.ops.aggregation import combine, cosines, inner_products, normalized, scaled, stacked


@method("fedgp")
class FedGP(OneModel):
    title: ClassVar[str] = "FedGP"
    paper: ClassVar[str] = "FedGP, Definition 3.1"
    target_labels: ClassVar[bool] = True
    needs_each: ClassVar[str] = "a projection on each source's update needs each update"
    noised: ClassVar[bool] = True
    steps: ClassVar[tuple[Step, ...]] = (train_locally, move_locally)

    beta: float = option(0.5, "weight of the source side", low=0.0, high=1.0)
    granularity: Literal["layer", "model"] = option("layer", "project each layer by itself, or the whole model at once")
    keep_negative: bool = option(False, "keep sources that point against the target (no filter)")
    weighting: Literal["uniform", "samples"] = option("uniform", "1/N as in Def. 3.1, or by number of images")
    warmup: int = option(0, "rounds of FedAvg on the sources before the first round", low=0)

    def round(self, state: Model, server: Server) -> Model:
        if server.round <= self.warmup:
            return source_average(server, state)
        t = server.ask(server.target, move_locally, state)
        s = source_moves(server, state, t)
        server.notes["train/loss"] = t.loss
        if not s:
            return Model(x=scaled(t.g, server.layout, 1.0 - self.beta).add_(state.x))
        w = normalized([r.n for r in s.values()] if self.weighting == "samples" else None, len(s)).unsqueeze(1)
        names = list(s)
        g_s = stacked((s.pop(name).g for name in names), len(names))
        layered = self.granularity == "layer"

        dot, ss, tt = inner_products(t.g, g_s, server.layout, layered)
        kept = dot if self.keep_negative else dot.clamp(min=0.0)
        share = torch.where(ss > 0, kept / ss.where(ss > 0, torch.ones_like(ss)), 0.0)
        g = combine(t.g, g_s, server.layout, 1.0 - self.beta, self.beta * w * share, layered)
        server.note_cosines(names, cosines(dot, ss, tt))
        tell_opponents(server, names, dot, ss, tt)
        return Model(x=g.add_(state.x))
