"""FedNova (Wang et al., NeurIPS 2020): sources that take more local steps no longer count for more.

Source k takes tau_k steps of plain SGD from x to y_k, d_k = (y_k - x) / tau_k. The server: x <- x + tau sum_k p_k d_k
with p_k = n_k / n and tau = sum_k p_k tau_k. With equal tau_k this is FedAvg. Running statistics are averaged by p_k.

Messages: FedAvg's, and tau_k from each source.
"""

from __future__ import annotations

from typing import Annotated

from fdamed.federation.client import Client, step
from fdamed.federation.messages import Average, Check, Count, Images, Scalar, Weights, message
from fdamed.federation.method import Model, OneModel, method
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import log_loss
from fdamed.methods._shared.local_training import train_from, train_locally
from fdamed.ops.aggregation import mean


@message
class Answer:
    """y_k and tau_k."""

    x: Annotated[Weights, Average(per="tau")]
    tau: Annotated[Count, Check(positive=True)]
    n: Images
    loss: Scalar


@step("fednova.train", draws=train_locally, noised=True)
def train_counted(client: Client, ask: Model) -> Answer:
    """Local training, and the number of its steps."""
    outcome = train_from(client, ask.x)
    return Answer(x=client.model.read(), tau=outcome.steps, n=len(client.data), loss=outcome.loss)


@method("fednova", "FedNova", "Wang et al. 2020", (train_counted,), asks_target=False, rule="average", needs_sgd={})
class FedNova(OneModel):
    def round(self, state: Model, server: Server) -> Model:
        h: dict[str, Answer] = server.ask_all(server.sources, train_counted, state)
        if not h:
            return state
        log_loss(server, h)
        n, cut = [r.n for r in h.values()], server.layout.trainable
        x = mean([r.x for r in h.values()], n)
        tau = sum(r.n * r.tau for r in h.values()) / sum(n)
        d = mean([r.x[:cut].sub(state.x[:cut]).div_(r.tau) for r in h.values()], n)
        x[:cut] = state.x[:cut].add(d, alpha=tau)
        return Model(x=x)
