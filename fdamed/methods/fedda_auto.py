"""FedDA with auto-weighting: theta + sum_i w_i ((1 - beta_i) g_T + beta_i g_i), beta_i = sigma^2 / (sigma^2 + d_i^2).

The target estimates, in each round and from its own steps, its variance sigma^2 and its distance d_i to each source;
both hold for steps of the target's length, so the sources' updates are brought to it (`align`; the authors' code adds
them at full size). Buffers are the target's. On the wire: the model down and updates up from the sources; the model and
the sources' directions to the target; its update and a few numbers back.
"""

from __future__ import annotations

import sys
from typing import ClassVar, Literal

import torch

from fdamed.federation.client import Step
from fdamed.federation.method import Model, OneModel, method, option
from fdamed.federation.server import Server
from fdamed.federation.validation.answers import source_average
from fdamed.methods._shared.auto_weighting import compare, compare_steps, move_paced
from fdamed.methods._shared.local_training import train_locally
from fdamed.ops.aggregation import combine, normalized
from fdamed.ops.auto_weights import fedda_betas


@method("fedda_auto")
class FedDAAuto(OneModel):
    title: ClassVar[str] = "FedDA, auto-weighted"
    paper: ClassVar[str] = "Principled FDA: Gradient Projection and Auto-Weighting, Equation 3"
    target_labels: ClassVar[bool] = True
    needs_each: ClassVar[str] = "the weight of each source comes from its own update's distance to the target's steps"
    noised: ClassVar[bool] = True
    steps: ClassVar[tuple[Step, ...]] = (train_locally, move_paced, compare_steps)

    align: bool = option(True, "scale the source updates to the target's nominal reach")
    weighting: Literal["uniform", "samples"] = option("samples", "1/N, or by number of images")
    warmup: int = option(0, "rounds of FedAvg on the sources before the first round", low=0)
    pace: float = option(1.0, "factor on all learning rates after the warm-up", low=1e-6, high=1.0)
    unestimated: float = option(0.5, "beta where a single step a round leaves the variance unknown", low=0.0, high=1.0)

    def round(self, state: Model, server: Server) -> Model:
        if server.round <= self.warmup:
            return source_average(server, state)
        c = compare(server, state, self.pace)
        t = c.target
        server.notes["train/loss"] = t.loss
        if not c.names:
            return Model(x=t.g + state.x)
        w = normalized(c.n if self.weighting == "samples" else None, len(c.names))
        if t.estimated:
            beta = fedda_betas(c.estimates)
            server.notes["sigma2"] = t.sigma2
            server.notes |= {f"d2/{name}": d2 for name, d2 in zip(c.names, t.d2.tolist(), strict=True)}
        else:
            print(f"round {server.round}: one step at {server.target}, beta is {self.unestimated}", file=sys.stderr)
            beta = torch.full_like(w, self.unestimated)
        server.notes |= {f"beta/{name}": b for name, b in zip(c.names, beta.tolist(), strict=True)}

        align = t.reach / c.reach if self.align else torch.ones_like(w)
        share = w * beta * align * c.length
        own = float((w * (1.0 - beta)).sum())
        return Model(x=combine(t.g, c.u, server.layout, own, share[:, None], per_layer=False).add_(state.x))
