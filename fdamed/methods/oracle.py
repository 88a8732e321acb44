"""Oracle: the target trains on all of its labels, which no real target has. The upper bound of the papers' tables.

On the wire: the target's model, to and fro.
"""

from __future__ import annotations

from typing import ClassVar

from fdamed.federation.client import Step
from fdamed.federation.method import Model, OneModel, method
from fdamed.federation.server import Server
from fdamed.methods._shared.local_training import train_locally


@method("oracle")
class Oracle(OneModel):
    title: ClassVar[str] = "Oracle"
    paper: ClassVar[str] = "Weakly-supervised FDA for healthcare, Table 2"
    target_labels: ClassVar[bool] = True
    every_target_label: ClassVar[bool] = True
    needs_each: ClassVar[str] = ""
    noised: ClassVar[bool] = True
    asks_sources: ClassVar[bool] = False
    steps: ClassVar[tuple[Step, ...]] = (train_locally,)

    def round(self, state: Model, server: Server) -> Model:
        h_t = server.ask(server.target, train_locally, state)
        server.log({"train/loss": h_t.loss})
        return Model(x=h_t.x)
