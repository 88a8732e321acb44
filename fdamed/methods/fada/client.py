"""FADA's step inside a client: task, adversarial alignment and, in model III, disentangling."""

from __future__ import annotations

from typing import Annotated

import torch

from fdamed.federation.client import Client, step
from fdamed.federation.messages import Check, Count, Images, Scalar, Statistic, Update, Weights, message
from fdamed.methods._shared.adversarial_training import Game, discriminator
from fdamed.methods.fada.disentanglement import branches_layout, discriminator_for, side_of
from fdamed.models.adversarial import count
from fdamed.models.flat import Layout


@message
class Adapt:
    """The target's model, the branches and DI (empty: as they begin), and the weights of the losses.

    `rates` are those of class confusion, mutual information and reconstruction; `source` and `apart` are 0 or 1.
    """

    x: Weights
    d: Statistic
    di: Statistic
    rates: Statistic
    pull: Scalar
    pace: Scalar
    source: Count
    apart: Count


def branches_shape(ask: Adapt, layout: Layout) -> tuple[int, ...]:
    """The branches of a source in model III; the target's are not sent."""
    return (branches_layout(layout).size if ask.apart and ask.source else 0,)


def discriminator_shape(ask: Adapt, layout: Layout) -> tuple[int, ...]:
    return (count(discriminator_for(layout, bool(ask.apart))),)


@message
class Adapted:
    """`skipped`: steps without mutual information, because it was not finite."""

    g: Update
    d: Annotated[Statistic, Check(shape=branches_shape, module=branches_layout)]
    di: Annotated[Statistic, Check(shape=discriminator_shape)]
    n: Images
    loss: Scalar
    skipped: Count


@step("fada.adapt")
def adapt(client: Client, ask: Adapt) -> Adapted:
    """Train for the client's epochs; DI learns to distinguish the two domains, and both learn to pass for a source."""
    client.model.load(ask.x)
    di = discriminator(client, discriminator_for(client.model.layout, bool(ask.apart)), ask.di)
    game = Game(di, label=ask.source, toward=1.0, pull=ask.pull)
    side = side_of(client, game.play, ask.pace, ask.d if ask.apart else None, ask.rates, (di,))
    loss = side.local.epochs(side)
    if side.own:
        client.memory["opponents"] = side.own.read()
    return Adapted(
        g=client.model.read().sub_(ask.x),
        d=side.d.read() if side.d and side.own else torch.empty(0),
        di=di.read(),
        n=len(client.data),
        loss=loss,
        skipped=side.skipped,
    )
