"""Finetune_Offline (FedGP paper, section 5): FedAvg to the end, then the target fine-tunes the result alone.

The second phase has as many epochs as the first has rounds, with one optimizer from its beginning to its end.
Messages: FedAvg's messages; then the target trains by itself (its model is shown each round to be judged).
"""

from __future__ import annotations

from typing import Literal

from fdamed.federation.method import Model, OneModel, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import average_models
from fdamed.methods._shared.local_training import continue_training, train_locally


@method(
    "finetune_offline",
    "Finetune_Offline",
    "FedGP, section 5 and Appendix B",
    (train_locally, continue_training),
    target_labels=True,
    noised=True,
    rule="average",
    length=2,
)
class FinetuneOffline(OneModel):
    optimizer: Literal["kept", "fresh"] = option("kept", "one Adam for the whole phase, or a new one each round")

    def round(self, state: Model, server: Server) -> Model:
        if server.round <= server.rounds // 2:
            return average_models(server, state)
        h_t = server.ask(server.target, continue_training if self.optimizer == "kept" else train_locally, state)
        server.log({"train/loss": h_t.loss})
        return Model(x=h_t.x)
