"""FedAvg (McMahan et al. 2017), the source-only row of the papers: the target takes no part.

Messages: each source gets the model and sends its own, with its number of images.
"""

from __future__ import annotations

from fdamed.federation.method import Model, OneModel, method
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import average_models
from fdamed.methods._shared.local_training import train_locally


@method(
    "fedavg",
    "FedAvg",
    "McMahan et al. 2017",
    (train_locally,),
    asks_target=False,
    rule="average",
    theory="fedavg",
    baseline=True,
)
class FedAvg(OneModel):
    def round(self, state: Model, server: Server) -> Model:
        return average_models(server, state)
