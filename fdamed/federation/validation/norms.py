"""Norms of updates, compared with each other: which are too large, and by which factor they are clipped (opt-in)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fdamed.config.validation import Norms
from fdamed.ops.aggregation import BLOCK

LARGEST = 1e30
"""Norm beyond which float32 has no unit direction of an update."""
SMALLEST = 1e-30
"""Norm below which an update is none: the client has not moved."""


@dataclass(frozen=True)
class Move:
    """The norm of an update (parameters only), from how many images, and its nominal reach."""

    norm: float
    n: int
    reach: float

    @property
    def rate(self) -> float:
        """Nominal reach of one image."""
        return self.reach / self.n if self.n > 0 else 0.0

    @property
    def usable(self) -> bool:
        return self.rate > 0.0 and self.norm < LARGEST

    @property
    def zero(self) -> bool:
        return not self.norm > SMALLEST


@dataclass(frozen=True)
class Verdict:
    """Whose update is rejected and why, and by which factor (below 1) whose else is clipped."""

    rejected: dict[str, str] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)


def judge(
    sources: Mapping[str, Move], target: Move | None, size: float, limits: Norms, subject: str = "its norm is"
) -> Verdict:
    """What happens to updates of a model whose parameters have the norm `size`."""
    rejected = {client: f"{subject} beyond all measure" for client, move in sources.items() if not move.usable}
    times, measure = ratios({c: m for c, m in sources.items() if c not in rejected}, target, size)
    factors = {}
    for client, found in times.items():
        if found > limits.reject_above:
            rejected[client] = f"{subject} {found:.3g} times that of {measure}"
        elif limits.clip_above is not None and found > limits.clip_above:
            factors[client] = limits.clip_above / found
    return Verdict(rejected, factors)


def ratios(sources: Mapping[str, Move], target: Move | None, size: float) -> tuple[dict[str, float], str]:
    """How many times too large each update is, and compared with what.

    Too large is what is too large in itself and for its number of images: a client with many images goes far, and one
    with a single image goes far for it. A reach that is reported too small counts as norm, as it would once aligned.
    Without two others there is no majority: then the larger of the model and the other is the measure.
    """
    moving = {client: move for client, move in sources.items() if not move.zero}
    together = [*moving.values(), *([target] if target and target.usable and not target.zero else [])]
    rates = sorted(m.rate for m in together)
    norms, by_images = sorted(m.norm for m in together), sorted(m.norm / m.n for m in together)
    found = {}
    for client, own in moving.items():
        usual = median_without(rates, own.rate, high=False) if len(together) > 1 else own.rate
        norm = own.norm * max(1.0, usual / own.rate)
        if len(together) > 2:
            by_norm = norm / median_without(norms, own.norm)
            by_image = norm / own.n / median_without(by_images, own.norm / own.n)
            found[client] = min(by_norm, by_image)
        else:
            yardstick = max([size, *(m.norm for m in together if m is not own)])
            found[client] = norm / yardstick if yardstick else 0.0
    return found, "the others" if len(together) > 2 else "the model and any other"


def median_without(ordered: Sequence[float], own: float, high: bool = True) -> float:
    """The high or low median of at least two ordered numbers without one of them, which is `own`."""
    place = (len(ordered) - 1) // 2 if high else (len(ordered) - 2) // 2
    return ordered[place if place < bisect_left(ordered, own) else place + 1]


def distance(v: Tensor, x: Tensor | None) -> float:
    """|v - x| over the numbers of x (P,), |v| without one; block by block, so nothing is copied whole."""
    if x is None:
        return float(torch.linalg.vector_norm(v))
    square, scratch = 0.0, torch.empty(BLOCK)
    for start in range(0, len(x), BLOCK):
        here = x[start : start + BLOCK]
        step = torch.sub(v[start : start + len(here)], here, out=scratch[: len(here)])
        square += float(torch.dot(step, step))
    return math.sqrt(square)
