"""FedGP with auto-weighting: theta + sum_i w_i ((1 - beta_i) g_T + beta_i Proj+(g_T | g_i)).

beta_i = sigma^2 / (sigma^2 + p_i^2), p_i = tau d the part of the target's gradient that source i cannot express;
`estimator: threshold` adds what the filter throws away, as the authors' code does for Fashion-MNIST. The beta of a
source holds for the whole model, the projection goes layer by layer. `projection: cosine` is the authors' code: cos+
times the aligned update instead of Definition 3.1. Buffers are the target's. On the wire: the model down and updates up
from the sources; the model and the sources' directions to the target; its update and a few numbers back.
"""

from __future__ import annotations

import sys
from typing import ClassVar, Literal

import torch

from fdamed.federation.client import Step
from fdamed.federation.method import Model, OneModel, method, option
from fdamed.federation.server import Server
from fdamed.federation.validation.answers import source_average, tell_opponents
from fdamed.methods._shared.auto_weighting import compare, compare_steps, move_paced
from fdamed.methods._shared.local_training import train_locally
from fdamed.ops.aggregation import combine, cosines, inner_products, normalized
from fdamed.ops.auto_weights import fedgp_betas


@method("fedgp_auto")
class FedGPAuto(OneModel):
    title: ClassVar[str] = "FedGP, auto-weighted"
    paper: ClassVar[str] = "Principled FDA: Gradient Projection and Auto-Weighting, Equation 3"
    target_labels: ClassVar[bool] = True
    needs_each: ClassVar[str] = "a projection on each source's update, with a weight of its own, needs each update"
    noised: ClassVar[bool] = True
    steps: ClassVar[tuple[Step, ...]] = (train_locally, move_paced, compare_steps)

    estimator: Literal["paper", "threshold"] = option("paper", "delta = 1, or with the share that the filter keeps")
    granularity: Literal["layer", "model"] = option("layer", "project each layer by itself, or the whole model at once")
    projection: Literal["true", "cosine"] = option("true", "Def. 3.1, or the code's cosine times the aligned update")
    keep_negative: bool = option(False, "keep sources that point against the target (no filter)")
    weighting: Literal["uniform", "samples"] = option("uniform", "1/N as in Def. 3.1, or by number of images")
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
            beta = fedgp_betas(c.estimates, self.estimator == "threshold")
            server.notes["sigma2"] = t.sigma2
            server.notes |= {f"p2/{name}": p2 for name, p2 in zip(c.names, t.p2.tolist(), strict=True)}
        else:
            print(f"round {server.round}: one step at {server.target}, beta is {self.unestimated}", file=sys.stderr)
            beta = torch.full_like(w, self.unestimated)
        server.notes |= {f"beta/{name}": b for name, b in zip(c.names, beta.tolist(), strict=True)}

        layered = self.granularity == "layer"
        dot, ss, tt = inner_products(t.g, c.u, server.layout, layered)
        cos = cosines(dot, ss, tt)
        kept = cos if self.keep_negative else cos.clamp(min=0.0)
        if self.projection == "true":
            share = torch.where(ss > 0, kept * (tt / ss.where(ss > 0, torch.ones_like(ss))).sqrt(), 0.0)
        else:
            share = kept * (t.reach / c.reach * c.length)[:, None]
        for name, row in zip(c.names, cos, strict=True):
            if not bool((row > 0).any()):
                print(f"round {server.round}: {name} points against {server.target} in every layer", file=sys.stderr)
        server.note_cosines(c.names, cos)
        tell_opponents(server, c.names, dot, ss, tt)
        own = float((w * (1.0 - beta)).sum())
        return Model(x=combine(t.g, c.u, server.layout, own, (w * beta)[:, None] * share, layered).add_(state.x))
