"""Finetune_Offline (FedGP paper, section 5): FedAvg to the end, then the target fine-tunes the result alone.

The second phase has as many epochs as the first has rounds, with one optimizer from its beginning to its end.
On the wire: FedAvg's messages; then the target trains by itself (its model is shown each round to be judged).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fdamed.federation.client import Step
from fdamed.federation.method import Model, OneModel, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import average_models
from fdamed.methods._shared.local_training import train_locally, train_on


@method("finetune_offline")
class FinetuneOffline(OneModel):
    title: ClassVar[str] = "Finetune_Offline"
    paper: ClassVar[str] = "FedGP, section 5 and Appendix B"
    target_labels: ClassVar[bool] = True
    needs_each: ClassVar[str] = ""
    noised: ClassVar[bool] = True
    steps: ClassVar[tuple[Step, ...]] = (train_locally, train_on)

    optimizer: Literal["kept", "fresh"] = option("kept", "one Adam for the whole phase, or a new one each round")

    def length(self, rounds: int) -> int:
        return 2 * rounds

    def round(self, state: Model, server: Server) -> Model:
        if server.round <= server.rounds // 2:
            return average_models(server, state)
        h_t = server.ask(server.target, train_on if self.optimizer == "kept" else train_locally, state)
        server.log({"train/loss": h_t.loss})
        return Model(x=h_t.x)
