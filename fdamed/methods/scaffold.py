"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1): control variates take the drift out of local training.

A source steps along g_k(y) + c - c_k. Then c_k+ = c_k - c + (theta - y) / (T eta_l) (option II), which under plain SGD
is the mean of the gradients it used, or the gradient of F_k at theta (option I, one more pass). The server:
theta <- theta + eta_g mean(y - theta), c <- c + 1/K sum(c_k+ - c_k) with K all sources, not the participants; but a
source that the guard has never let in is none of them, so it might as well not have been there.

On the wire, with M bytes a model and P parameters: M + 4 P to a source, M + 4 P from it, and a few numbers. y itself
is sent, and the server takes the paper's y - theta: a first round with weights by samples is FedAvg's, bit for bit.

Whether an answer arrived a hospital cannot know. It keeps c_k as it was and what it sent beside it, and adds this only
when the next question says that the answer of that round was taken: so c = mean of the c_k holds whoever drops out.
Both sides add up the very numbers that crossed, in float64.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.federation.client import Client, Step, step
from fdamed.federation.messages import Count, Scalar, Statistic, Weights, message
from fdamed.federation.method import Method, method, option
from fdamed.federation.server import Server
from fdamed.federation.validation.answers import length, note_loss, sound_models, sound_parts
from fdamed.methods._shared.local_training import train_from, train_locally
from fdamed.ops.aggregation import mean, spans
from fdamed.training.local import batches

VARIATE, TAKEN, SENT, SENT_IN = "scaffold.c", "scaffold.taken", "scaffold.sent", "scaffold.sent_in"
"""In a hospital's memory: c_k (float64), the round of the last answer in it, the answer after that and its round."""
LEFT_OUT = -1
"""Instead of the round of a last answer: the guard has let none in, and the source is none of the K behind c."""


@message
class Ask:
    """theta and c; which option; the number of this round, and of the last one whose answer was taken (0: none)."""

    x: Weights
    c: Statistic
    option: Count
    round: Count
    taken: Count


@message
class Answer:
    """y and c_k+ - c_k; no images: no step was taken."""

    x: Weights
    dc: Statistic
    n: Count
    loss: Scalar


@message
class State:
    """theta, c (float64), and for each source the round of its last answer that is in c (0: none, or LEFT_OUT)."""

    x: Weights
    c: Statistic
    taken: Statistic


@step("scaffold.train", draws=train_locally)
def train_corrected(client: Client, ask: Ask) -> Answer:
    """Train with c - c_k added to every gradient; the new variate waits until the server says that it has it."""
    refuse_adam(client, ask.option)
    shift = settled(client, ask)
    if not len(client.data):
        return Answer(x=ask.x, dc=torch.zeros_like(ask.c), n=0, loss=0.0)
    g = gradient_at(client, ask.x) if ask.option == 1 else None
    outcome = train_from(client, ask.x, shift=shift.to(client.model.theta.device))
    y = client.model.read()
    if g is None:
        dc = torch.empty_like(shift)
        for at in spans(len(dc)):
            torch.sub(ask.x[at], y[at], out=dc[at]).div_(outcome.steps * client.recipe.lr).sub_(ask.c[at])
    else:
        dc = g.sub_(client.memory[VARIATE]) if VARIATE in client.memory else g
    client.memory |= {SENT: dc, SENT_IN: torch.tensor([ask.round])}
    return Answer(x=y, dc=dc, n=len(client.data), loss=outcome.loss)


def refuse_adam(client: Client, option: int) -> None:
    if option == 2 and client.recipe.optimizer != "sgd":
        raise FdamedError(
            "option II takes (theta - y) / (steps x learning rate) for the mean gradient, which under "
            f"{client.recipe.optimizer} it is not",
            f"scaffold, hospital {client.name}",
            "Train the sources of this run with plain SGD (train: {source: {optimizer: sgd, lr: 0.01}}), "
            "or set `variate: I`, which costs a pass more.",
        )


def settled(client: Client, ask: Ask) -> Tensor:
    """c - c_k (P,); the last answer is in c_k if the server has taken it, and is forgotten if not."""
    memory = client.memory
    known, sent_in = (int(memory[k]) if k in memory else 0 for k in (TAKEN, SENT_IN))
    taken = None
    if ask.taken == sent_in != known:
        taken = memory[SENT]
        memory.setdefault(VARIATE, torch.zeros_like(taken, dtype=torch.float64))
        memory[TAKEN] = torch.tensor([ask.taken])
    elif ask.taken != known:
        raise FdamedError(
            f"the server counts on its variate of round {ask.taken}, and it remembers that of round {known}",
            f"scaffold, hospital {client.name}",
            "Give the hospital its memory of the last checkpoint back, or start the run again.",
        )
    memory.pop(SENT, None)
    memory.pop(SENT_IN, None)
    if VARIATE not in memory:
        return ask.c
    c_k, shift = memory[VARIATE], torch.empty_like(ask.c)
    for at in spans(len(c_k)):
        if taken is not None:
            c_k[at] += taken[at]
        torch.sub(ask.c[at], c_k[at].float(), out=shift[at])
    return shift


def gradient_at(client: Client, x: Tensor) -> Tensor:
    """The gradient of F_k at x over one epoch's batches, weight decay included, (P,) on the CPU."""
    recipe = client.recipe.model_copy(update={"lr": 0.0, "epochs": 1, "optimizer": "sgd", "weight_decay": 0.0})
    sizes = [len(rows) for rows in batches(len(client.data), recipe.batch, client.rng)]
    shares = iter([size / sum(sizes) for size in sizes])
    total = torch.zeros_like(client.model.grad)

    def add(grad: Tensor) -> None:
        total.add_(grad, alpha=next(shares))

    train_from(client, x, recipe, add)  # at a learning rate of 0 nothing moves, auxiliary heads neither
    total.add_(client.model.trainable, alpha=client.recipe.weight_decay)
    return total.cpu()


@method("scaffold")
class Scaffold(Method[State]):
    title: ClassVar[str] = "SCAFFOLD"
    paper: ClassVar[str] = "SCAFFOLD: Stochastic Controlled Averaging (ICML 2020), Algorithm 1"
    target_labels: ClassVar[bool] = False
    needs_each: ClassVar[str] = ""
    asks_target: ClassVar[bool] = False
    steps: ClassVar[tuple[Step, ...]] = (train_corrected,)
    state: ClassVar[type] = State

    variate: Literal["I", "II"] = option(
        "II", "the paper's options: I, the gradient at theta (a pass more); II, from the steps taken, plain SGD only"
    )
    server_lr: float = option(1.0, "eta_g, the share of the mean step that the server takes", low=0.0)
    weighting: Literal["uniform", "samples"] = option("uniform", "of the sources' steps; variates are never weighed")

    def start(self, theta: Tensor) -> State:
        return State(x=theta, c=torch.empty(0, dtype=torch.float64), taken=torch.empty(0, dtype=torch.int64))

    def final(self, state: State) -> Tensor:
        return state.x

    def round(self, state: State, server: Server) -> State:
        cut, sources = server.layout.trainable, server.sources
        c = state.c.clone() if state.c.numel() else torch.zeros(cut, dtype=torch.float64)
        taken = state.taken.clone() if state.taken.numel() else torch.zeros(len(sources), dtype=torch.int64)
        ask = partial(Ask, x=state.x, c=c.float(), option=1 if self.variate == "I" else 2, round=server.round)
        h: dict[str, Answer] = {}
        for k, last in zip(sources, taken.tolist(), strict=True):
            h |= server.ask_all((k,), train_corrected, ask(taken=max(0, last)))
        # Never shortened: c is the mean of the c_k, and every hospital moves its own by the whole of what it sent.
        size = length(state.x[:cut])
        h = sound_parts(server, train_corrected, h, "dc", like=torch.empty(cut), size=size, shorten=False)
        h = sound_models(server, train_corrected, state.x, h)
        if not h:
            return state
        note_loss(server, h)
        x = mean([r.x for r in h.values()], [r.n for r in h.values()] if self.weighting == "samples" else None)
        if self.server_lr != 1.0:  # not for buffers: a variance that is extrapolated may become negative
            x[:cut] = torch.lerp(state.x[:cut], x[:cut], self.server_lr)
        counted = int((taken != LEFT_OUT).sum())
        for i, k in enumerate(sources):
            if k in h:
                taken[i] = server.round
            elif taken[i] == 0 and k in server.left_out:
                taken[i] = LEFT_OUT
        members = int((taken != LEFT_OUT).sum())
        if members != counted:
            c *= counted / members
        for at in spans(cut):
            for r in h.values():
                c[at].add_(r.dc[at], alpha=1.0 / members)
        return State(x=x, c=c, taken=taken)
