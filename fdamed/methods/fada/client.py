"""One side of FADA's game inside a hospital, a source's or the target's: alignment, and disentangling where asked."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from fdamed.federation.client import Client, step
from fdamed.federation.messages import Check, Count, Knowledge, Scalar, Statistic, Update, Weights, message
from fdamed.methods._shared.adversarial_training import Game, Local, Objective, discriminator
from fdamed.methods.fada.disentangle import Rates, branches, branches_layout, disentangle, opponents, passing
from fdamed.models.adversarial import shape_of
from fdamed.models.flat import FlatModel, Layout


@message
class Adapt:
    """The target's model, the branches and DI (empty: as they begin), and the weights of the losses; counts are 0 or 1.

    `rates` are those of class confusion, mutual information and reconstruction.
    """

    x: Weights
    d: Statistic
    di: Statistic
    rates: Statistic
    pull: Scalar
    pace: Scalar
    source: Count
    apart: Count
    on_f: Count


def branches_shape(ask: Adapt, layout: Layout) -> tuple[int, ...]:
    """The branches of a source in model III; the target's are not sent."""
    return (branches_layout(layout).size if ask.apart and ask.source else 0,)


@message
class Adapted:
    """`d`: the branches of a source, for the target's stay as they are; `skipped`: steps without mutual information,
    which was not finite."""

    g: Update
    d: Annotated[Tensor, Knowledge("statistic"), Check(shape=branches_shape, module=branches_layout)]
    di: Statistic
    n: Count
    loss: Scalar
    skipped: Count


@step("fada.adapt")
def adapt(client: Client, ask: Adapt) -> Adapted:
    """Train for the hospital's epochs, each side passing for the source."""
    client.model.load(ask.x)
    di = discriminator(client, ask.di, quarter(client.model.layout), 1, halved=not ask.on_f)
    game = Game(di, label=ask.source, toward=1.0, pull=ask.pull)
    skipped = [0]
    d: FlatModel | None = None
    if not ask.apart:
        local = Local(client, (di,), ask.pace)
        objective: Objective = lambda f, batch: local.task(f, batch) + game.play(f)  # noqa: E731
    else:
        d = branches(client, ask.d)
        if ask.source:
            own = opponents(client)
            local = Local(client, (d, own, di))
            rates = Rates(*ask.rates.tolist())
            objective, skipped = disentangle(d, own, rates, local.beside, game.play, bool(ask.on_f))
        else:
            local = Local(client, (d, di), ask.pace)
            objective = passing(d, game.play, bool(ask.on_f))
    loss = local.epochs(objective)
    if d is not None and ask.source:
        client.memory["opponents"] = local.opponents[1].read()
    return Adapted(
        g=client.model.read().sub_(ask.x),
        d=d.read() if d is not None and ask.source else torch.empty(0),
        di=di.read(),
        n=len(client.data),
        loss=loss,
        skipped=skipped[0],
    )


def quarter(layout: Layout) -> int:
    """Width of FADA's discriminator."""
    return max(2, shape_of(layout).d // 4)
