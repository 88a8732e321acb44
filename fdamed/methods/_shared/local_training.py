"""The step that nearly every method asks for: train on what you have, from this model on."""

from __future__ import annotations

import torch

from fdamed.config.study import Recipe
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.federation.client import Site, step
from fdamed.federation.messages import Count, Scalar, Update, Weights, message
from fdamed.federation.method import Model
from fdamed.federation.privacy_budget import WITHHELD, spend
from fdamed.models.backbone import initialise
from fdamed.training.local import AuxiliaryTasks, Correct, Outcome, fit
from fdamed.training.optimizer import Optimiser


@message
class Trained:
    """A hospital's model after local training."""

    x: Weights
    n: Count
    loss: Scalar


@message
class Moved:
    """How local training moved the model, from how many samples, and its nominal reach.

    `reach` = learning rate x epochs x n / batch: the length that Eq. 8 of the healthcare paper aligns by.
    """

    g: Update
    n: Count
    reach: Scalar
    loss: Scalar


@step("train_locally", noised=True)
def train_locally(site: Site, ask: Model) -> Trained:
    """Train for the hospital's epochs and send the model."""
    loss = train_from(site, ask.x).loss
    return Trained(x=site.model.read(), n=len(site.data), loss=loss)


@step("compute_update", noised=True)
def move_locally(site: Site, ask: Model) -> Moved:
    """Train for the hospital's epochs and send what changed."""
    loss = train_from(site, ask.x).loss
    recipe = site.recipe
    reach = recipe.lr * recipe.epochs * len(site.data) / recipe.batch
    return Moved(g=site.model.read().sub_(ask.x), n=len(site.data), reach=reach, loss=loss)


@step("continue_training")
def train_on(site: Site, ask: Model) -> Trained:
    """Train with the optimiser of the last time: one long training in many rounds."""
    optimiser = Optimiser(site.model, site.recipe)
    site.model.load(ask.x)
    optimiser.remember({k.removeprefix("adam."): v for k, v in site.memory.items() if k.startswith("adam.")})
    outcome = fit(site.model, site.data, site.recipe, site.rng, optimiser=optimiser, precision=site.precision)
    site.memory |= {f"adam.{k}": v.clone() for k, v in optimiser.memory().items()}
    return Trained(x=site.model.read(), n=len(site.data), loss=finite(site, outcome.loss))


def auxiliary_tasks(site: Site) -> AuxiliaryTasks | None:
    """The hospital's auxiliary heads as it remembers them, new ones at first; None where it has no such tasks."""
    if not (site.auxiliary and site.heads):
        return None
    if "heads" in site.memory:
        site.heads.load(site.memory["heads"])
    else:
        initialise(site.heads.module, stream(site.seed, site.name, "heads").torch)
    return AuxiliaryTasks(site.heads, site.auxiliary.heads, site.auxiliary.alpha)


def train_from(
    site: Site,
    x: torch.Tensor,
    recipe: Recipe | None = None,
    correct: Correct | None = None,
    shift: torch.Tensor | None = None,
) -> Outcome:
    """Local training from `x`; the auxiliary heads stay in the hospital's memory.

    Where the hospital insists on noise its cost is entered, and the loss, which has no noise on it, is withheld.
    """
    site.model.load(x)
    auxiliary, recipe = auxiliary_tasks(site), recipe or site.recipe
    outcome = fit(
        site.model,
        site.data,
        recipe,
        site.rng,
        correct=correct,
        shift=shift,
        auxiliary=auxiliary,
        private=site.noise,
        precision=site.precision,
    )
    if auxiliary:
        site.memory["heads"] = auxiliary.heads.read()
    finite(site, outcome.loss)
    spend(site, outcome.steps, recipe.batch)
    return outcome if site.noise is None else Outcome(WITHHELD, outcome.steps)


def finite(site: Site, loss: float) -> float:
    """The loss, or the reason why this hospital cannot go on; a last step may spoil the model after the last loss."""
    spoilt = "loss" if loss != loss or abs(loss) == float("inf") else "model"
    if spoilt == "loss" or not torch.isfinite(site.model.theta.sum()):
        raise FdamedError(
            f"the {spoilt} is not finite at learning rate {site.recipe.lr}",
            f"hospital {site.name}",
            "Lower the learning rate of this side in `train`; the last checkpoint is kept.",
        )
    return loss
