"""Oracle: the target trains on all of its labels, which no real target has. The upper bound of the papers' tables.

Messages: the target's model, there and back.
"""

from __future__ import annotations

from fdamed.federation.method import Model, OneModel, method
from fdamed.federation.server import Server
from fdamed.methods._shared.local_training import train_locally


@method(
    "oracle",
    "Oracle",
    "Weakly-Supervised Domain Adaptation in Federated Learning for Healthcare, Table 2",
    (train_locally,),
    target_labels=True,
    every_target_label=True,
    asks_sources=False,
    baseline=True,
)
class Oracle(OneModel):
    def round(self, state: Model, server: Server) -> Model:
        h_t = server.ask(server.target, train_locally, state)
        server.log({"train/loss": h_t.loss})
        return Model(x=h_t.x)
