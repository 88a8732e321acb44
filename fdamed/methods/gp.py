"""FedAvg_Finetune_GP: gradient projection, Algorithm 3 of the healthcare paper, with Eq. 8's alignment of magnitudes.

h_T <- h_T + (1 - beta) G_T + beta * sum_i max(cos(G_Si, G_T), 0) * n_i/sum n * align_i * G_Si, layer by layer, with
beta on the source side (the paper's text; its Eq. 7 and 9 have it the other way round, which is the same at 0.5).
The paper lets the target project; here the server does, which already gets h_T each round: the same numbers, and the
sources' updates need not be sent on to the target. On the wire: the model down, updates up.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from fdamed.federation.client import Step
from fdamed.federation.method import Model, OneModel, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import average_models
from fdamed.methods._shared.local_training import move_locally, train_locally
from fdamed.ops.aggregation import gp, inner_products, scaled, stacked


@method("gp")
class GP(OneModel):
    title: ClassVar[str] = "FedAvg_Finetune_GP"
    paper: ClassVar[str] = "Weakly-supervised FDA for healthcare, Algorithm 3"
    target_labels: ClassVar[bool] = True
    needs_each: ClassVar[str] = "a cosine with each source's update needs each update"
    noised: ClassVar[bool] = True
    steps: ClassVar[tuple[Step, ...]] = (train_locally, move_locally)

    beta: float = option(0.5, "weight of the source side", low=0.0, high=1.0)
    granularity: Literal["layer", "model"] = option("layer", "one cosine a layer, or one for the whole model")
    keep_negative: bool = option(False, "keep negative cosines (no threshold)")
    align: bool = option(True, "Eq. 8: scale each source's update to the target's nominal reach")
    buffers: Literal["target", "average"] = option("target", "BatchNorm buffers: the target's, or averaged by images")
    warmup: int = option(0, "rounds of FedAvg on the sources before the first round", low=0)

    def round(self, state: Model, server: Server) -> Model:
        if server.round <= self.warmup:
            return average_models(server, state)
        t = server.ask(server.target, move_locally, state)
        s = server.ask_all(server.sources, move_locally, state)
        server.log({"train/loss": t.loss})
        if not s:
            return Model(x=scaled(t.g, server.layout, 1.0 - self.beta).add_(state.x))
        n, names = [r.n for r in s.values()], list(s)
        align = [t.reach / r.reach for r in s.values()] if self.align else None
        g_s = stacked((s.pop(name).g for name in names), len(names))
        layered = self.granularity == "layer"
        products = inner_products(t.g, g_s, server.layout, layered)
        g = gp(t.g, g_s, server.layout, self.beta, n, align, layered, self.keep_negative, products=products)
        if self.buffers == "average":
            b = slice(server.layout.trainable, None)
            w = torch.tensor([*n, t.n], dtype=torch.float32)
            g[b] = torch.mv(torch.vstack([g_s[:, b], t.g[b]]).t(), w / w.sum())
        server.log_cosines(names, *products)
        return Model(x=g.add_(state.x))
