"""Target only: the target trains on its few labels, nobody helps.

`server_step` is the control that the FedGP paper's tables need: with beta = 0.5 a projection method takes half of the
target's step, and half a step alone already changes the result.
Messages: the model to the target, its update back.
"""

from __future__ import annotations

from fdamed.federation.method import Model, OneModel, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.local_training import compute_update
from fdamed.ops.aggregation import scaled


@method(
    "target_only",
    "Target Only",
    "FedGP, section 5",
    (compute_update,),
    target_labels=True,
    asks_sources=False,
    theory="target_only",
    baseline=True,
)
class TargetOnly(OneModel):
    server_step: float = option(1.0, "share of the target's update that is taken", low=0.0, high=1.0)

    def round(self, state: Model, server: Server) -> Model:
        t = server.ask(server.target, compute_update, state)
        server.log({"train/loss": t.loss})
        return Model(x=scaled(t.g, server.layout, self.server_step).add_(state.x))
