"""Norms of updates, compared with each other: which are too large, and by which factor they are clipped (opt-in)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fdamed.config.train import Norms
from fdamed.ops.aggregation import BLOCK

LARGEST = 1e30
"""Norm beyond which float32 has no unit direction of an update."""
SMALLEST = 1e-30
"""Norm below which an update is zero: the client has not moved."""


@dataclass(frozen=True)
class Move:
    """The norm of an update (parameters only), its number of images, and its nominal step."""

    norm: float
    n: int
    nominal_step: float

    @property
    def rate(self) -> float:
        """Nominal step of one image."""
        return self.nominal_step / self.n if self.n > 0 else 0.0

    @property
    def usable(self) -> bool:
        return self.rate > 0.0 and self.norm < LARGEST

    @property
    def zero(self) -> bool:
        return not self.norm > SMALLEST


class Judgment(NamedTuple):
    """Whose update is rejected and why, and by which factor (below 1) others are clipped."""

    rejected: dict[str, str]
    factors: dict[str, float]


def judge(
    sources: Mapping[str, Move], target: Move | None, size: float, limits: Norms, subject: str = "its norm is"
) -> Judgment:
    """Compare updates of a model whose parameters have the norm `size`.

    An update is too large only if it is so both absolutely and for its number of images: a client with many images
    moves far, and one with a single image moves far for it. A nominal step that is reported too small counts as
    norm, as it would after alignment. Without two others there is no majority, and the larger of the model and the
    other is the reference.
    """
    rejected = {client: f"{subject} not finite" for client, move in sources.items() if not move.usable}
    factors = {}
    moving = {client: move for client, move in sources.items() if move.usable and not move.zero}
    together = [*moving.values(), *([target] if target and target.usable and not target.zero else [])]
    rates = sorted(m.rate for m in together)
    norms, by_images = sorted(m.norm for m in together), sorted(m.norm / m.n for m in together)
    for client, own in moving.items():
        usual = median_without(rates, own.rate, high=False) if len(together) > 1 else own.rate
        norm = own.norm * max(1.0, usual / own.rate)
        if len(together) > 2:
            by_norm = norm / median_without(norms, own.norm)
            times = min(by_norm, norm / own.n / median_without(by_images, own.norm / own.n))
        else:
            reference = max([size, *(m.norm for m in together if m is not own)])
            times = norm / reference if reference else 0.0
        if times > limits.reject_above:
            compared = "the others" if len(together) > 2 else "the model and any other"
            rejected[client] = f"{subject} {times:.3g} times that of {compared}"
        elif limits.clip_above is not None and times > limits.clip_above:
            factors[client] = limits.clip_above / times
    return Judgment(rejected, factors)


def median_without(ordered: Sequence[float], own: float, high: bool = True) -> float:
    """The high or low median of at least two ordered numbers without one of them, which is `own`."""
    place = (len(ordered) - 1) // 2 if high else (len(ordered) - 2) // 2
    return ordered[place if place < bisect_left(ordered, own) else place + 1]


def distance(v: Tensor, x: Tensor | None) -> float:
    """|v - x| over the numbers of x (P,), |v| without one; block by block, so nothing is copied whole."""
    if x is None:
        return float(torch.linalg.vector_norm(v))
    moves = (v[i : min(i + BLOCK, len(x))] - x[i : i + BLOCK] for i in range(0, len(x), BLOCK))
    return math.sqrt(sum(float(torch.dot(move, move)) for move in moves))
