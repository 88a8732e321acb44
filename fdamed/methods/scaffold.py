"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1): control variates take the drift out of local training.

A source steps along g_k(y) + c - c_k. Then c_k+ = c_k - c + (theta - y) / (T eta_l) (option II), which under plain SGD
is the mean of the gradients it used, or the gradient of F_k at theta (option I, one more pass). The server:
theta <- theta + eta_g mean(y - theta), c <- c + 1/K sum(c_k+ - c_k) with K all sources not asked in vain so far.

Messages, with P parameters: the model and c (4 P bytes) to a source; y, c_k+ - c_k and a few numbers back. A source
adds c_k+ - c_k to c_k when the next question says that it was used: c = mean of the c_k holds when answers are lost.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Average, Check, Count, Images, Scalar, Statistic, Weights, message
from fdamed.federation.method import Method, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.averaging import log_loss
from fdamed.methods._shared.full_gradient import epoch_gradient
from fdamed.methods._shared.local_training import train_from, train_locally
from fdamed.ops.aggregation import mean

VARIATE, TAKEN, SENT, SENT_IN = "scaffold.c", "scaffold.taken", "scaffold.sent", "scaffold.sent_in"
"""In a client's state: c_k (float64), the round of the last answer in it, the answer after that and its round."""
NEVER = -1  # instead of a round: the source was asked, and has never given an answer that was used


@message
class Ask:
    """theta and c; which option; the number of this round, and of the last one whose answer was used (0: none)."""

    x: Weights
    c: Statistic
    option: Count
    round: Count
    taken: Count


@message
class Answer:
    """y and c_k+ - c_k, never clipped: the client adds all that it sent. c - c_k turns single layers of y apart."""

    x: Annotated[Weights, Check(direction="whole")]
    dc: Annotated[Statistic, Check(shape=lambda _, layout: (layout.trainable,), clip=False), Average(by="clients")]
    n: Images
    loss: Scalar


@message
class State:
    """theta, the sum of the c_k (float64), and for each source the round of its last answer in it (0: not asked)."""

    x: Weights
    c: Statistic
    taken: Statistic


@step("scaffold.train", draws=train_locally, steps=lambda c, ask: c.local_steps(epochs=1) if ask.option == 1 else None)
def train_corrected(client: Client, ask: Ask) -> Answer:
    """Train with c - c_k added to every gradient; the new variate waits until the server says that it has it."""
    shift = settle(client, ask).to(client.model.theta.device)
    if not len(client.data):
        return Answer(x=ask.x, dc=torch.zeros_like(ask.c), n=0, loss=0.0)
    g = epoch_gradient(client, ask.x) if ask.option == 1 else None
    outcome = train_from(client, ask.x, correct=lambda grad: grad.add_(shift))
    y, cut, c_k = client.model.read(), len(ask.c), client.memory.get(VARIATE, 0.0)
    dc = (ask.x[:cut] - y[:cut]).div_(outcome.steps * client.recipe.lr).sub_(ask.c) if g is None else (g - c_k).float()
    client.memory |= {SENT: dc, SENT_IN: torch.tensor([ask.round])}
    return Answer(x=y, dc=dc, n=len(client.data), loss=outcome.loss)


def settle(client: Client, ask: Ask) -> Tensor:
    """c - c_k (P,); the last answer is added to c_k if the server has used it, and dropped if not."""
    memory = client.memory
    known, sent_in = (int(memory.get(key, 0)) for key in (TAKEN, SENT_IN))
    sent, _ = memory.pop(SENT, None), memory.pop(SENT_IN, None)
    if sent is not None and ask.taken == sent_in != known:
        memory[VARIATE] = memory.get(VARIATE, 0.0) + sent.double()  # a new tensor: a step that fails leaves the old
        memory[TAKEN] = torch.tensor([ask.taken])
    elif ask.taken != known:
        what = f"the server uses its variate of round {ask.taken}, but its own is of round {known}"
        raise FdamedError(what, f"scaffold, client {client.name}", "Restore its state of the last checkpoint.")
    return ask.c - memory[VARIATE].float() if VARIATE in memory else ask.c


@method(
    "scaffold",
    "SCAFFOLD",
    "SCAFFOLD: Stochastic Controlled Averaging (ICML 2020), Algorithm 1",
    (train_corrected,),
    asks_target=False,
    rule="average",
    needs_sgd={"variate": "II"},  # under Adam, (theta - y) / (T eta_l) is no mean gradient
)
class Scaffold(Method[State]):
    variate: Literal["I", "II"] = option("II", "I: the gradient at theta, one more pass; II: from the steps, plain SGD")
    server_lr: float = option(1.0, "eta_g, the share of the mean step that the server takes", low=0.0)
    weighting: Literal["uniform", "samples"] = option("uniform", "weights of the sources' steps; variates have none")

    def start(self, theta: Tensor) -> State:
        return State(x=theta, c=torch.empty(0, dtype=torch.float64), taken=torch.empty(0, dtype=torch.int64))

    def round(self, state: State, server: Server) -> State:
        cut = server.layout.trainable
        total = state.c.clone() if state.c.numel() else torch.zeros(cut, dtype=torch.float64)
        last = dict(zip(server.sources, state.taken.tolist() or [0] * len(server.sources), strict=True))
        c = (total / max(1, sum(t != NEVER for t in last.values()))).float()
        ask = partial(Ask, x=state.x, c=c, option=1 if self.variate == "I" else 2, round=server.round)
        h: dict[str, Answer] = server.ask_each({k: ask(taken=max(0, t)) for k, t in last.items()}, train_corrected)
        if not h:
            return state
        log_loss(server, h)
        x = mean([r.x for r in h.values()], [r.n for r in h.values()] if self.weighting == "samples" else None)
        if self.server_lr != 1.0:  # not for buffers: a variance that is extrapolated may become negative
            x[:cut] = torch.lerp(state.x[:cut], x[:cut], self.server_lr)
        for reply in h.values():
            total += reply.dc
        last |= {k: server.round if k in h else last[k] or NEVER for k in server.participants}
        return State(x=x, c=total, taken=torch.tensor(list(last.values())))
