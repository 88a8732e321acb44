"""FedGP (Definition 3.1): theta + (1 - beta) g_T + beta * mean_i Proj+(g_T | g_i).

The target's update is projected on each source's update and kept where it points the same way; per layer by default.
Messages: the model down, updates up, from the sources and the target alike.
"""

from __future__ import annotations

from typing import Literal

from fdamed.federation.method import Model, OneModel, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.local_training import collect_updates, compute_update
from fdamed.ops.aggregation import fedgp, inner_products


@method(
    "fedgp",
    "FedGP",
    "FedGP, Definition 3.1",
    (compute_update,),
    target_labels=True,
    needs_each="a projection on each source's update needs each update",
    rule="projection",
    theory="fedgp",
)
class FedGP(OneModel):
    beta: float = option(0.5, "weight of the source side", low=0.0, high=1.0)
    granularity: Literal["layer", "model"] = option("layer", "project each layer by itself, or the whole model at once")
    keep_negative: bool = option(False, "keep sources that point against the target (no filter)")
    weighting: Literal["uniform", "samples"] = option("uniform", "1/N as in Def. 3.1, or by number of images")

    def round(self, state: Model, server: Server) -> Model:
        u, layered = collect_updates(server, state), self.granularity == "layer"
        n = u.n if self.weighting == "samples" else None
        products = inner_products(u.target.g, u.g, server.layout, layered)
        server.log_cosines(u.names, *products)
        g = fedgp(u.target.g, u.g, server.layout, self.beta, n, layered, self.keep_negative, products)
        return Model(x=g.add_(state.x))
