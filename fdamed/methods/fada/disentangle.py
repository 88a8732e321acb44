"""FADA's model III inside a source: the feature is taken apart into what the domains share and what they do not.

Losses as in the paper's order (task, alignment, class confusion, mutual information, reconstruction), all taken at the
same weights, with one pass through the extractor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fdamed.core.rng import stream
from fdamed.federation.client import Client
from fdamed.methods._shared.adversarial_training import Batch, Pull
from fdamed.models.adversarial import (
    Branches,
    Opponents,
    flat_part,
    frozen,
    mutual_information,
    shape_of,
    uniformity,
)
from fdamed.models.flat import FlatModel, Layout, layout_of


@dataclass(frozen=True)
class Rates:
    """Weights of class confusion, mutual information and reconstruction."""

    entropy: float
    information: float
    reconstruction: float


def branches_layout(layout: Layout) -> Layout:
    """The layout of D and C behind a network of this layout."""
    s = shape_of(layout)
    return layout_of(Branches(s.d, s.classes))


def branches(client: Client, vector: Tensor) -> FlatModel:
    """D and C with the weights in `vector`, or as they begin in every hospital."""
    s = shape_of(client.model.layout)
    return flat_part(Branches(s.d, s.classes), vector, stream(client.seed, "branches"), client.model.theta.device)


def opponents(client: Client) -> FlatModel:
    """CI, M and R, which never leave this hospital."""
    s = shape_of(client.model.layout)
    vector = client.memory.get("opponents", torch.empty(0))
    return flat_part(
        Opponents(s.d, s.classes), vector, stream(client.seed, client.name, "opponents"), client.model.theta.device
    )


def disentangle(
    d: FlatModel, o: FlatModel, rates: Rates, beside: Callable[[Tensor, Batch], Tensor | float], pull: Pull, on_f: bool
) -> tuple[Callable[[Tensor, Batch], Tensor], list[int]]:
    """The objective of a source in model III, and a list that counts the steps whose mutual information overflowed."""
    parts, rivals = d.module, o.module
    if not isinstance(parts, Branches) or not isinstance(rivals, Opponents):
        raise TypeError("the parts of model III are Branches and Opponents")
    skipped = [0]

    def objective(f: Tensor, batch: Batch) -> Tensor:
        if batch.y is None:
            raise TypeError("a hospital without labels was asked to train with labels")
        f_di, f_ds = parts(f)
        task = F.cross_entropy(parts.classifier(f_di), batch.y) + F.cross_entropy(rivals.identifier(f_ds), batch.y)
        with frozen(rivals.identifier):
            confusion = uniformity(rivals.identifier(f_ds))
        apart = rates.reconstruction * F.mse_loss(rivals.reconstructor(torch.cat([f_di, f_ds], 1)), f.detach())
        order = torch.randperm(len(f), generator=batch.rng.child("shuffle").torch).to(f.device)
        estimate = _critic_step(rivals, f_di.detach(), f_ds.detach(), order)
        if not torch.isfinite(estimate):
            skipped[0] += 1
        elif rates.information:
            apart = apart + rates.information * mutual_information(
                rivals.mine(f_di, f_ds), rivals.mine(f_di, f_ds[order])
            )
        # These two shape the branches and the reconstructor; `inputs` keeps them from the extractor and the critic.
        shaped = [p for m in (parts.invariant, parts.specific, rivals.reconstructor) for p in m.parameters()]
        apart.backward(retain_graph=True, inputs=shaped)  # type: ignore[no-untyped-call]
        return task + beside(f, batch) + rates.entropy * confusion + pull(f if on_f else f_di)

    return objective, skipped


def _critic_step(rivals: Opponents, f_di: Tensor, f_ds: Tensor, order: Tensor) -> Tensor:
    """Add the critic's gradient of -I to it, where I is finite; I itself."""
    estimate = mutual_information(rivals.mine(f_di, f_ds), rivals.mine(f_di, f_ds[order]))
    if torch.isfinite(estimate):
        (-estimate).backward()  # type: ignore[no-untyped-call]
    return estimate.detach()


def passing(d: FlatModel, pull: Pull, on_f: bool) -> Callable[[Tensor, Batch], Tensor]:
    """The objective of the target: its features are pulled, through branches that stay as they are."""

    def objective(f: Tensor, batch: Batch) -> Tensor:
        with frozen(d.module):
            f_di: Tensor = d.module(f)[0]  # also where G is played on: the BatchNorms see the target
            return pull(f if on_f else f_di)

    return objective
