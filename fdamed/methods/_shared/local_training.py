"""Local training, the step that nearly every method asks for, and the collection of its updates at the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.federation.auxiliary_loss import remember
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Images, NominalStep, Scalar, Update, Weights, message
from fdamed.federation.method import Model
from fdamed.federation.privacy_budget import WITHHELD, spend
from fdamed.federation.server import Server
from fdamed.models.backbone import initialize
from fdamed.ops.aggregation import mean, stacked
from fdamed.training.local import AuxiliaryTasks, Outcome, fit
from fdamed.training.optimizer import Optimizer


@message
class Trained:
    """A client's model after local training."""

    x: Weights
    n: Images
    loss: Scalar


@message
class Moved:
    """How local training moved the model, from how many samples, and its nominal step.

    `nominal_step` = learning rate x epochs x n / batch: the length that Eq. 8 of the healthcare paper aligns by.
    """

    g: Update
    n: Images
    nominal_step: NominalStep
    loss: Scalar


@step("train_locally", noised=True)
def train_locally(client: Client, ask: Model) -> Trained:
    """Train for the client's epochs and send the model."""
    loss = train_from(client, ask.x).loss
    return Trained(x=client.model.read(), n=len(client.data), loss=loss)


@step("compute_update", noised=True)
def compute_update(client: Client, ask: Model) -> Moved:
    """Train for the client's epochs and send what changed."""
    loss = train_from(client, ask.x).loss
    n = len(client.data)
    return Moved(g=client.model.read().sub_(ask.x), n=n, nominal_step=nominal_step_of(client), loss=loss)


def nominal_step_of(client: Client) -> float:
    """Learning rate x the number of local steps, where a last small batch counts by its share."""
    recipe = client.recipe
    seen = recipe.epochs * len(client.data)
    return recipe.lr * (seen if recipe.steps is None else min(seen, recipe.steps * recipe.batch)) / recipe.batch


@step("continue_training")
def continue_training(client: Client, ask: Model) -> Trained:
    """Train with the optimizer of the last time: one long training in many rounds."""
    optimizer = Optimizer(client.model, client.recipe)
    client.model.load(ask.x)
    optimizer.restore(client.memory, "adam.")
    outcome = fit_client(client, optimizer=optimizer)
    optimizer.keep(client.memory, "adam.")
    return Trained(x=client.model.read(), n=len(client.data), loss=finite(client, outcome.loss))


def fit_client(client: Client, **hooks: Any) -> Outcome:
    """`fit` with the client's own model, data, recipe, random numbers and precision."""
    precision, memory = client.precision, client.memory
    return fit(client.model, client.data, client.recipe, client.rng, precision=precision, memory=memory, **hooks)


def auxiliary_tasks(client: Client) -> AuxiliaryTasks | None:
    """The auxiliary heads of the network, or the client's own as it remembers them, new ones at first.

    None where it has no such tasks.
    """
    if not client.auxiliary:
        return None
    names, alpha = client.auxiliary.heads, client.auxiliary.alpha
    if not client.heads:
        return AuxiliaryTasks(cast(nn.ModuleDict, client.model.module.auxiliary), names, alpha)
    if "heads" in client.memory:
        client.heads.load(client.memory["heads"])
    else:
        initialize(client.heads.module, stream(client.seed, client.name, "heads").torch)
    return AuxiliaryTasks(cast(nn.ModuleDict, client.heads.module), names, alpha, client.heads)


def keep_auxiliary(client: Client, auxiliary: AuxiliaryTasks | None) -> None:
    """Keep the client's own heads in its memory, and the heads' loss until the server asks for it."""
    if auxiliary and auxiliary.private:
        client.memory["heads"] = auxiliary.private.read()
    if auxiliary and auxiliary.steps:
        remember(client, float(auxiliary.total) / auxiliary.steps)


def train_from(client: Client, x: torch.Tensor, **hooks: Any) -> Outcome:
    """Local training from `x` with these hooks of `fit`; private auxiliary heads stay in the client's memory.

    Under differential privacy the budget spent is recorded, and the loss, which has no noise on it, is withheld.
    """
    client.model.load(x)
    auxiliary = auxiliary_tasks(client)
    outcome = fit_client(client, auxiliary=auxiliary, private=client.noise, **hooks)
    keep_auxiliary(client, auxiliary)
    finite(client, outcome.loss)
    if client.noise is None:
        return outcome
    spend(client, client.noise, outcome.steps, client.recipe.batch)
    return Outcome(WITHHELD, outcome.steps)


def finite(client: Client, loss: float) -> float:
    """The loss, or the reason why this client cannot go on; a last step may spoil the model after the last loss."""
    broken = "loss" if loss != loss or abs(loss) == float("inf") else "model"
    if broken == "loss" or not torch.isfinite(client.model.theta.sum()):
        raise FdamedError(
            f"the {broken} is not finite at learning rate {client.recipe.lr}",
            f"hospital {client.name}",
            "Lower the learning rate of this side in `train`; the last checkpoint is kept.",
        )
    return loss


@dataclass(frozen=True)
class Updates:
    """The updates of a round: the target's, and of N sources, which may be none."""

    x: torch.Tensor
    """What they are relative to."""
    target: Moved
    names: list[str]
    g: torch.Tensor
    """(N, P)."""
    n: list[int]
    align: list[float]
    """The target's nominal step by each source's (Eq. 8 of the healthcare paper)."""

    @property
    def mean_align(self) -> list[float]:
        """The mean of `align`, weighted by n, for every source: the same sum of n_i/sum n * align_i, split by n_i."""
        total = sum(n * a for n, a in zip(self.n, self.align, strict=True))
        return [total / sum(self.n) for _ in self.n]


def collect_updates(server: Server, model: Model, average_first: bool = False) -> Updates:
    """Ask the target and the sources to train from `model`.

    `average_first`: the target trains from the average of the sources' models, to which all updates are then relative.
    """
    t: Moved | None = None if average_first else server.ask(server.target, compute_update, model)
    s: dict[str, Moved] = server.ask_all(server.sources, compute_update, model)
    names, n, steps = list(s), [r.n for r in s.values()], [r.nominal_step for r in s.values()]
    g, x = stacked((s.pop(name).g for name in names), len(names), server.layout.size), model.x
    if t is None:
        change = mean(g, n) if names else torch.zeros_like(x)
        g, x = g.sub_(change), x + change
        t = cast(Moved, server.ask(server.target, compute_update, Model(x=x)))
    server.log({"train/loss": t.loss})
    return Updates(x, t, names, g, n, [t.nominal_step / step for step in steps])
