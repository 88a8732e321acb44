"""FedAvg_Finetune_GP: gradient projection, Algorithm 3 of the healthcare paper, with Eq. 8's alignment of magnitudes.

h_T <- h_T + (1 - beta) G_T + beta * sum_i max(cos(G_Si, G_T), 0) * n_i/sum n * align_i * G_Si, layer by layer, with
beta on the source side (the paper's text; its Eq. 7 and 9 have it the other way round, which is the same at 0.5).
n_i/sum n * align_i does not depend on n_i, so small sources weigh as much as large ones; `align: mean` keeps n_i.
`average_first` is how the authors' code starts: h_T and all G are then taken from the average of the sources' models.
The paper lets the target project; here the server does, which already gets h_T each round: the same numbers, and the
sources' updates need not be sent on to the target. Messages: the model down, updates up.
"""

from __future__ import annotations

from typing import Literal

from fdamed.federation.method import Model, OneModel, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.local_training import collect_updates, compute_update
from fdamed.ops.aggregation import gp, inner_products, with_mean_buffers


@method(
    "gp",
    "FedAvg_Finetune_GP",
    "Weakly-Supervised Domain Adaptation in Federated Learning for Healthcare, Algorithm 3",
    (compute_update,),
    target_labels=True,
    needs_each="a cosine with each source's update needs each update",
    rule="projection",
)
class GP(OneModel):
    beta: float = option(0.5, "weight of the source side", low=0.0, high=1.0)
    granularity: Literal["layer", "model"] = option("layer", "one cosine for each layer, or one for the whole model")
    keep_negative: bool = option(False, "keep negative cosines (no threshold)")
    align: Literal["each", "mean", "none"] = option(
        "each", "Eq. 8: each source's, the mean of all (keeps n_i), or none"
    )
    average_first: bool = option(False, "the target trains from the sources' average, as in the authors' first rounds")
    buffers: Literal["target", "average"] = option("target", "BatchNorm buffers: the target's, or averaged by images")

    def round(self, state: Model, server: Server) -> Model:
        u, layered = collect_updates(server, state, self.average_first), self.granularity == "layer"
        align, g_t = {"each": u.align, "mean": u.mean_align, "none": None}[self.align], u.target.g
        products = inner_products(g_t, u.g, server.layout, layered)
        server.log_cosines(u.names, *products)
        g = gp(g_t, u.g, server.layout, self.beta, u.n, align, layered, self.keep_negative, products=products)
        if self.buffers == "average":
            g = with_mean_buffers(g, g_t, u.g, server.layout, [*u.n, u.target.n])
        return Model(x=g.add_(u.x))
