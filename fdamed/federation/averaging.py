"""The sources' part of a round: their updates, or their average, without those that cannot be of this training.

An unsound update is left out of its round by name, in the log and in the run's record; decision 0012 has the limits.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from fdamed.algebra.vector import BLOCK, cosines, mean
from fdamed.federation.method import Model
from fdamed.federation.network import Network
from fdamed.federation.site import Step
from fdamed.federation.steps import Moved, Trained, move_locally, train_locally

TOO_LONG = 100.0
"""Times the median of the others: no training of the same model goes so much further."""
FAR_TOO_LONG = 1e4
"""Times the one other and the model itself, where there is no majority to go by."""
SHORTEST, LONGEST = 1e-30, 1e30
"""Lengths between which float32 can make a unit direction of an update."""
AGAINST = -0.5
"""The cosine of the whole model from which on the log says that a source points against the target."""


class Learner(Protocol):
    """An answer with a model x that was trained on n images."""

    @property
    def x(self) -> Tensor: ...
    @property
    def n(self) -> int: ...
    @property
    def loss(self) -> float: ...


L = TypeVar("L", bound=Learner)


@dataclass(frozen=True)
class Travel:
    """How long an update is (parameters only), from how many images, and its nominal reach."""

    length: float
    n: int
    reach: float

    @property
    def rate(self) -> float:
        """Nominal reach of one image."""
        return self.reach / self.n if self.n > 0 else 0.0

    @property
    def fault(self) -> str | None:
        """Why nothing can be made of it, whatever the others sent."""
        if not self.rate > 0.0:
            return "it counts no training"
        if not self.length < LONGEST:
            return "its length is beyond all measure"
        return None if self.length > SHORTEST else "it is all zero"


def source_average(net: Network, model: Model) -> Model:
    """sum_k n_k/n h_k over the sources that answered soundly; the model itself if none did."""
    return average_of(net, train_locally, model, model)


def average_of(net: Network, step: Step, model: Model, question: Any) -> Model:
    """The same for another way to train locally from the model, asked by `question`."""
    h: dict[str, Trained] = sound_models(net, step, model.x, net.ask_all(net.sources, step, question))
    if not h:
        return model
    note_loss(net, h)
    return Model(x=mean([r.x for r in h.values()], [r.n for r in h.values()]))


def note_loss(net: Network, h: Mapping[str, Learner]) -> None:
    """Keep the sources' mean loss, by images, for the metrics of the round."""
    net.notes["train/loss"] = sum(r.n * r.loss for r in h.values()) / sum(r.n for r in h.values())


def sound_models(net: Network, step: Step, x: Tensor, h: Mapping[str, L]) -> dict[str, L]:
    """The models that can have been trained from x; the others are left out of the round by name."""
    x = x[: net.layout.trainable]
    lengths = distances([r.x for r in h.values()], x)
    travels = {k: Travel(length, r.n, r.n) for (k, r), length in zip(h.items(), lengths, strict=True)}
    kept = sound(net, step, travels, x)
    return {k: r for k, r in h.items() if k in kept}


def source_moves(net: Network, model: Model, target: Moved) -> dict[str, Moved]:
    """The updates of the sources that answered soundly, judged beside the target's."""
    s: dict[str, Moved] = net.ask_all(net.sources, move_locally, model)
    cut = net.layout.trainable

    def travel(r: Moved) -> Travel:
        return Travel(float(torch.linalg.vector_norm(r.g[:cut])), r.n, r.reach)

    kept = sound(net, move_locally, {k: travel(r) for k, r in s.items()}, model.x[:cut], travel(target))
    return {k: r for k, r in s.items() if k in kept}


def sound(
    net: Network, step: Step, travels: Mapping[str, Travel], x: Tensor, target: Travel | None = None
) -> frozenset[str]:
    """Whose updates of x can be of this training; the others are left out of the round by name."""
    faults = implausible(travels, target, x)
    for party, why in faults.items():
        net.reject(party, step, why)
    return frozenset(travels.keys() - faults.keys())


def implausible(sources: Mapping[str, Travel], target: Travel | None, x: Tensor) -> dict[str, str]:
    """Which updates of the parameters x (P,) cannot be of this training, and why.

    Too long is what is too long in itself and for its number of images: a hospital with many images goes far, and one
    with a single image goes far for it. A reach that is told too small counts as length, as it would once aligned.
    """
    found = {party: why for party, t in sources.items() if (why := t.fault)}
    rest = {party: t for party, t in sources.items() if party not in found}
    together = [*rest.values(), *([target] if target and not target.fault else [])]
    rates = sorted(t.rate for t in together)
    lengths, by_images = sorted(t.length for t in together), sorted(t.length / t.n for t in together)
    for party, own in rest.items():
        usual = median_without(rates, own.rate, high=False) if len(together) > 1 else own.rate
        length = own.length * max(1.0, usual / own.rate)
        if len(together) > 2:
            by_length = length / median_without(lengths, own.length)
            by_image = length / own.n / median_without(by_images, own.length / own.n)
            times, limit, what = min(by_length, by_image), TOO_LONG, "the others"
        else:
            others = [t for t in together if t is not own]
            yardstick = max([float(torch.linalg.vector_norm(x)), *(t.length for t in others)])
            times, limit, what = length / yardstick if yardstick else 0.0, FAR_TOO_LONG, "the model and any other"
        if times > limit:
            found[party] = f"it is {times:.3g} times as long as {what}"
    return found


def median_without(ordered: Sequence[float], own: float, high: bool = True) -> float:
    """The high or low median of at least two ordered numbers without one of them, which is `own`."""
    place = (len(ordered) - 1) // 2 if high else (len(ordered) - 2) // 2
    return ordered[place if place < bisect_left(ordered, own) else place + 1]


def distances(vectors: Sequence[Tensor], x: Tensor) -> list[float]:
    """|v - x| over the numbers of x (P,) for each v, block by block: x is read once and nothing is copied whole."""
    squares, scratch = [0.0] * len(vectors), torch.empty(BLOCK)
    for start in range(0, len(x), BLOCK):
        here = x[start : start + BLOCK]
        for i, v in enumerate(vectors):
            step = torch.sub(v[start : start + len(here)], here, out=scratch[: len(here)])
            squares[i] += float(torch.dot(step, step))
    return [square**0.5 for square in squares]


def tell_opponents(net: Network, sources: Sequence[str], dot: Tensor, ss: Tensor, tt: Tensor) -> None:
    """Say once a round which sources' updates, as a whole, point against the target's; products are (N, L) and (L,)."""
    cos = cosines(dot.sum(1), ss.sum(1), tt.sum()).tolist()
    against = [f"{name} (cosine {c:.2f})" for name, c in zip(sources, cos, strict=True) if c < AGAINST]
    if against:
        print(f"round {net.round}: against {net.target}: {', '.join(against)}", file=sys.stderr, flush=True)
