"""FedGP (Definition 3.1): theta + (1 - beta) g_T + beta * mean_i Proj+(g_T | g_i).

The target's update is projected on each source's update and kept where it points the same way; per layer by default.
On the wire: the model down, updates up, from the sources and the target alike.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fdamed.federation.client import Step
from fdamed.federation.method import Model, OneModel, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import average_models
from fdamed.methods._shared.local_training import move_locally, train_locally
from fdamed.ops.aggregation import fedgp, inner_products, scaled, stacked


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
            return average_models(server, state)
        t = server.ask(server.target, move_locally, state)
        s = server.ask_all(server.sources, move_locally, state)
        server.log({"train/loss": t.loss})
        if not s:
            return Model(x=scaled(t.g, server.layout, 1.0 - self.beta).add_(state.x))
        n = [r.n for r in s.values()] if self.weighting == "samples" else None
        names, layered = list(s), self.granularity == "layer"
        g_s = stacked((s.pop(name).g for name in names), len(names))
        products = inner_products(t.g, g_s, server.layout, layered)
        g = fedgp(t.g, g_s, server.layout, self.beta, n, layered, self.keep_negative, products)
        server.log_cosines(names, *products)
        return Model(x=g.add_(state.x))
