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
from fdamed.federation.client import Site, Step, step
from fdamed.federation.messages import Count, Scalar, Statistic, Weights, message
from fdamed.federation.method import Method, method, option
from fdamed.federation.server import Network
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
def train_corrected(site: Site, ask: Ask) -> Answer:
    """Train with c - c_k added to every gradient; the new variate waits until the server says that it has it."""
    refuse_adam(site, ask.option)
    shift = settled(site, ask)
    if not len(site.data):
        return Answer(x=ask.x, dc=torch.zeros_like(ask.c), n=0, loss=0.0)
    g = gradient_at(site, ask.x) if ask.option == 1 else None
    outcome = train_from(site, ask.x, shift=shift.to(site.model.theta.device))
    y = site.model.read()
    if g is None:
        dc = torch.empty_like(shift)
        for at in spans(len(dc)):
            torch.sub(ask.x[at], y[at], out=dc[at]).div_(outcome.steps * site.recipe.lr).sub_(ask.c[at])
    else:
        dc = g.sub_(site.memory[VARIATE]) if VARIATE in site.memory else g
    site.memory |= {SENT: dc, SENT_IN: torch.tensor([ask.round])}
    return Answer(x=y, dc=dc, n=len(site.data), loss=outcome.loss)


def refuse_adam(site: Site, option: int) -> None:
    if option == 2 and site.recipe.optimiser != "sgd":
        raise FdamedError(
            "option II takes (theta - y) / (steps x learning rate) for the mean gradient, which under "
            f"{site.recipe.optimiser} it is not",
            f"scaffold, hospital {site.name}",
            "Train the sources of this run with plain SGD (train: {source: {optimiser: sgd, lr: 0.01}}), "
            "or set `variate: I`, which costs a pass more.",
        )


def settled(site: Site, ask: Ask) -> Tensor:
    """c - c_k (P,); the last answer is in c_k if the server has taken it, and is forgotten if not."""
    memory = site.memory
    known, sent_in = (int(memory[k]) if k in memory else 0 for k in (TAKEN, SENT_IN))
    taken = None
    if ask.taken == sent_in != known:
        taken = memory[SENT]
        memory.setdefault(VARIATE, torch.zeros_like(taken, dtype=torch.float64))
        memory[TAKEN] = torch.tensor([ask.taken])
    elif ask.taken != known:
        raise FdamedError(
            f"the server counts on its variate of round {ask.taken}, and it remembers that of round {known}",
            f"scaffold, hospital {site.name}",
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


def gradient_at(site: Site, x: Tensor) -> Tensor:
    """The gradient of F_k at x over one epoch's batches, weight decay included, (P,) on the CPU."""
    recipe = site.recipe.model_copy(update={"lr": 0.0, "epochs": 1, "optimiser": "sgd", "weight_decay": 0.0})
    sizes = [len(rows) for rows in batches(len(site.data), recipe.batch, site.rng)]
    shares = iter([size / sum(sizes) for size in sizes])
    total = torch.zeros_like(site.model.grad)

    def add(grad: Tensor) -> None:
        total.add_(grad, alpha=next(shares))

    train_from(site, x, recipe, add)  # at a learning rate of 0 nothing moves, auxiliary heads neither
    total.add_(site.model.trainable, alpha=site.recipe.weight_decay)
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

    def round(self, state: State, net: Network) -> State:
        cut, sources = net.layout.trainable, net.sources
        c = state.c.clone() if state.c.numel() else torch.zeros(cut, dtype=torch.float64)
        taken = state.taken.clone() if state.taken.numel() else torch.zeros(len(sources), dtype=torch.int64)
        ask = partial(Ask, x=state.x, c=c.float(), option=1 if self.variate == "I" else 2, round=net.round)
        h: dict[str, Answer] = {}
        for k, last in zip(sources, taken.tolist(), strict=True):
            h |= net.ask_all((k,), train_corrected, ask(taken=max(0, last)))
        # Never shortened: c is the mean of the c_k, and every hospital moves its own by the whole of what it sent.
        size = length(state.x[:cut])
        h = sound_parts(net, train_corrected, h, "dc", like=torch.empty(cut), size=size, shorten=False)
        h = sound_models(net, train_corrected, state.x, h)
        if not h:
            return state
        note_loss(net, h)
        x = mean([r.x for r in h.values()], [r.n for r in h.values()] if self.weighting == "samples" else None)
        if self.server_lr != 1.0:  # not for buffers: a variance that is extrapolated may become negative
            x[:cut] = torch.lerp(state.x[:cut], x[:cut], self.server_lr)
        counted = int((taken != LEFT_OUT).sum())
        for i, k in enumerate(sources):
            if k in h:
                taken[i] = net.round
            elif taken[i] == 0 and k in net.left_out:
                taken[i] = LEFT_OUT
        members = int((taken != LEFT_OUT).sum())
        if members != counted:
            c *= counted / members
        for at in spans(cut):
            for r in h.values():
                c[at].add_(r.dc[at], alpha=1.0 / members)
        return State(x=x, c=c, taken=taken)
