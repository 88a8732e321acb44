"""FedDA (FedGP paper, Def. 3.2): theta + (1 - beta) g_T + beta * sum_i w_i g_i.

As published the source updates enter at their full size; `align` brings them to the target's (Eq. 8 of the healthcare
paper), as the theory assumes. Messages: the model down, updates up, from the sources and the target alike.
"""

from __future__ import annotations

from fdamed.federation.method import Model, OneModel, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.local_training import collect_updates, compute_update
from fdamed.ops.aggregation import fedda


@method(
    "fedda",
    "FedDA",
    "FedGP, Definition 3.2",
    (compute_update,),
    target_labels=True,
    rule="sum",
    needs_each_with={"align": "each source's update is scaled by its own nominal step"},
    theory="fedda",
)
class FedDA(OneModel):
    beta: float = option(0.5, "weight of the source side", low=0.0, high=1.0)
    align: bool = option(False, "scale the source updates to the target's nominal step")

    def round(self, state: Model, server: Server) -> Model:
        u = collect_updates(server, state)
        if self.align:
            for g_i, factor in zip(u.g, u.align, strict=True):
                g_i[: server.layout.trainable].mul_(factor)
        return Model(x=fedda(u.target.g, u.g, server.layout, self.beta, u.n).add_(state.x))
