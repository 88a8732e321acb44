"""FedAvg (McMahan et al. 2017), the source-only row of the papers: the target takes no part.

Messages: each source gets the model and sends its own, with its number of images.
"""

from __future__ import annotations

from typing import ClassVar

from fdamed.federation.client import Step
from fdamed.federation.method import Model, OneModel, method
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import average_models
from fdamed.methods._shared.local_training import train_locally


@method("fedavg")
class FedAvg(OneModel):
    title: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al. 2017"
    target_labels: ClassVar[bool] = False
    needs_each: ClassVar[str] = ""
    asks_target: ClassVar[bool] = False
    noised: ClassVar[bool] = True
    steps: ClassVar[tuple[Step, ...]] = (train_locally,)

    def round(self, state: Model, server: Server) -> Model:
        return average_models(server, state)
