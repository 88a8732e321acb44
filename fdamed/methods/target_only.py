"""Target only: the target trains on its few labels, nobody helps.

`server_step` is the control that the FedGP paper's tables need: with beta = 0.5 a projection method takes half of the
target's step, and half a step alone already changes the result.
On the wire: the target's model, to and fro.
"""

from __future__ import annotations

from typing import ClassVar

from fdamed.federation.client import Step
from fdamed.federation.method import Model, OneModel, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import average_models
from fdamed.methods._shared.local_training import move_locally, train_locally
from fdamed.ops.aggregation import scaled


@method("target_only")
class TargetOnly(OneModel):
    title: ClassVar[str] = "Target Only"
    paper: ClassVar[str] = "FedGP, section 5"
    target_labels: ClassVar[bool] = True
    needs_each: ClassVar[str] = ""
    noised: ClassVar[bool] = True
    steps: ClassVar[tuple[Step, ...]] = (train_locally, move_locally)

    server_step: float = option(1.0, "share of the target's update that is taken", low=0.0, high=1.0)
    warmup: int = option(0, "rounds of FedAvg on the sources before the first round", low=0)

    def round(self, state: Model, server: Server) -> Model:
        if server.round <= self.warmup:
            return average_models(server, state)
        t = server.ask(server.target, move_locally, state)
        server.log({"train/loss": t.loss})
        return Model(x=scaled(t.g, server.layout, self.server_step).add_(state.x))
