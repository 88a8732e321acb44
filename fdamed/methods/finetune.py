"""FedAvg_Finetune, online: Algorithm 1 of the healthcare paper.

Messages of a round: the sources get h_T and send their models; the target gets their average and sends h_T.
"""

from __future__ import annotations

from fdamed.federation.method import Model, OneModel, method
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import average_models
from fdamed.methods._shared.local_training import train_locally


@method(
    "finetune",
    "FedAvg_Finetune",
    "Weakly-Supervised Domain Adaptation in Federated Learning for Healthcare, Algorithm 1",
    (train_locally,),
    target_labels=True,
    rule="average",
    baseline=True,
)
class Finetune(OneModel):
    def round(self, state: Model, server: Server) -> Model:
        h_global = average_models(server, state)
        h_t = server.ask(server.target, train_locally, h_global)
        return Model(x=h_t.x)
