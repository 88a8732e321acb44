"""FedDA (FedGP paper, Def. 3.2): theta + (1 - beta) g_T + beta * sum_i w_i g_i.

As published the source updates enter at their full size; `align` brings them to the target's (Eq. 8 of the healthcare
paper), as the theory assumes. On the wire: the model down, updates up, from the sources and the target alike.
"""

from __future__ import annotations

from typing import ClassVar

from fdamed.federation.client import Step
from fdamed.federation.method import Model, OneModel, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import average_models
from fdamed.methods._shared.local_training import move_locally, train_locally
from fdamed.ops.aggregation import fedda, scaled, stacked


@method("fedda")
class FedDA(OneModel):
    title: ClassVar[str] = "FedDA"
    paper: ClassVar[str] = "FedGP, Definition 3.2"
    target_labels: ClassVar[bool] = True
    needs_each: ClassVar[str] = ""
    noised: ClassVar[bool] = True
    steps: ClassVar[tuple[Step, ...]] = (train_locally, move_locally)

    beta: float = option(0.5, "weight of the source side", low=0.0, high=1.0)
    align: bool = option(False, "scale the source updates to the target's nominal reach")
    warmup: int = option(0, "rounds of FedAvg on the sources before the first round", low=0)

    def round(self, state: Model, server: Server) -> Model:
        if server.round <= self.warmup:
            return average_models(server, state)
        t = server.ask(server.target, move_locally, state)
        s = server.ask_all(server.sources, move_locally, state)
        server.log({"train/loss": t.loss})
        if not s:
            return Model(x=scaled(t.g, server.layout, 1.0 - self.beta).add_(state.x))
        n = [r.n for r in s.values()]
        align = {name: t.reach / r.reach if self.align else 1.0 for name, r in s.items()}
        g_s = stacked((scaled(s.pop(name).g, server.layout, c) for name, c in align.items()), len(n))
        return Model(x=fedda(t.g, g_s, self.beta, n).add_(state.x))
