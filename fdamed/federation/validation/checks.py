"""What an answer must be like before any rule may aggregate it: pure functions, used by every method (docs/guard.md).

At the door (`unusable`), for each answer by itself: names, shapes and dtypes as declared, finite, no negative running
variance, counts that the hospital can have. Before an aggregation (`judged`), side by side: no update that dwarfs the
others. Whoever does not pass is left out of the round by name; decisions 0012 and 0026 have the reasons. Who points
against the others is found by direction.py, and who says again what it said before by repeats.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fdamed.config.validation import Guard
from fdamed.federation.messages import kinds
from fdamed.models.flat import Layout
from fdamed.ops.aggregation import BLOCK

LONGEST = 1e30
"""Length beyond which float32 can make no unit direction of an update."""
SHORTEST = 1e-30
"""Length below which an update is none: a hospital that has not moved, which is no fault."""
MOST = 10**9
"""Of anything that is counted, where nobody has declared how many there are."""
REJECTED = "update rejected: "
ASIDE = "update left aside: "
"""Of an answer that may be honest: it is left out of its round, and counts for no quarantine."""
WHOLE = ("weights", "update")


# --- at the door ------------------------------------------------------------------------------------------------------


def unusable(reply: Any, question: Any = None, layout: Layout | None = None, images: int = MOST) -> str | None:
    """Why an answer must not reach an aggregation rule; None: it may. `images`: as many as the hospital declared."""
    for name, kind in kinds(type(reply)).items():
        value = getattr(reply, name)
        if kind == "count":
            most = images if name == "n" else MOST
            why = None if type(value) is int and 0 <= value <= most else "is no possible number of samples"
        elif kind == "scalar":
            number = isinstance(value, float | int) and value == value and abs(value) != float("inf")
            why = None if number else "is not finite"
        elif not isinstance(value, Tensor):
            why = "is not made of numbers"
        else:
            why = _no_tensor(value, kind, layout) or (
                _no_model(value, kind, layout, question) if layout and kind in WHOLE else None
            )
        if why:
            return f"{REJECTED}{name} {why}"
    return None


def _no_tensor(value: Tensor, kind: str, layout: Layout | None) -> str | None:
    if layout and kind in WHOLE and (value.shape != (layout.size,) or value.dtype != torch.float32):
        return f"has shape {list(value.shape)} of {_name(value.dtype)}, not [{layout.size}] of float32"
    # A finite sum proves finite entries; only a suspicious one is looked at closely.
    if value.is_floating_point() and not torch.isfinite(value.sum()) and not torch.isfinite(value).all():
        return "has entries that are not finite"
    return None


def _no_model(value: Tensor, kind: str, layout: Layout, question: Any) -> str | None:
    """A negative running variance, in a model or where an update would lead from the model of the question."""
    if not len(layout.variances):
        return None
    found = value[layout.variances]
    base = getattr(question, "x", None)
    if kind == "update":
        if not isinstance(base, Tensor) or base.shape != value.shape:
            return None
        found = found + base[layout.variances]
    return "has a negative running variance" if float(found.min()) < 0.0 else None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def odd_shapes(parts: Mapping[str, Tensor], like: Tensor | None = None) -> dict[str, str]:
    """Whose part has not the shape and dtype of `like`, or without one those of most; nothing is ever broadcast."""
    if not parts:
        return {}
    found = {client: (tuple(part.shape), part.dtype) for client, part in parts.items()}
    usual = (tuple(like.shape), like.dtype) if like is not None else Counter(found.values()).most_common(1)[0][0]
    return {
        client: f"a part has shape {list(shape)} of {_name(dtype)}, not {list(usual[0])} of {_name(usual[1])}"
        for client, (shape, dtype) in found.items()
        if (shape, dtype) != usual
    }


# --- side by side -----------------------------------------------------------------------------------------------------


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
        return None if self.length < LONGEST else "its length is beyond all measure"

    @property
    def idle(self) -> bool:
        """Nothing has moved: it adds nothing, and is no measure for the others."""
        return not self.length > SHORTEST


@dataclass(frozen=True)
class Verdict:
    """Who is left out and why, and by which factor (below 1) the update of who else is shortened."""

    faults: dict[str, str] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)


def judged(
    sources: Mapping[str, Travel], target: Travel | None, size: float, guard: Guard, subject: str = "it is"
) -> Verdict:
    """What is to be done with updates of a model whose parameters have length `size`."""
    faults = {client: why for client, t in sources.items() if (why := t.fault)}
    times, what = stretches({p: t for p, t in sources.items() if p not in faults}, target, size)
    factors = {}
    for client, found in times.items():
        if found > guard.longest:
            faults[client] = f"{subject} {found:.3g} times as long as {what}"
        elif guard.shortened is not None and found > guard.shortened:
            factors[client] = guard.shortened / found
    return Verdict(faults, factors)


def stretches(sources: Mapping[str, Travel], target: Travel | None, size: float) -> tuple[dict[str, float], str]:
    """How many times too long each update is, and for which measure.

    Too long is what is too long in itself and for its number of images: a hospital with many images goes far, and one
    with a single image goes far for it. A reach that is told too small counts as length, as it would once aligned.
    Without two others there is no majority: then the longer of the model and the other is the measure.
    """
    moving = {client: t for client, t in sources.items() if not t.idle}
    together = [*moving.values(), *([target] if target and not target.fault and not target.idle else [])]
    rates = sorted(t.rate for t in together)
    lengths, by_images = sorted(t.length for t in together), sorted(t.length / t.n for t in together)
    found = {}
    for client, own in moving.items():
        usual = median_without(rates, own.rate, high=False) if len(together) > 1 else own.rate
        length = own.length * max(1.0, usual / own.rate)
        if len(together) > 2:
            by_length = length / median_without(lengths, own.length)
            by_image = length / own.n / median_without(by_images, own.length / own.n)
            found[client] = min(by_length, by_image)
        else:
            yardstick = max([size, *(t.length for t in together if t is not own)])
            found[client] = length / yardstick if yardstick else 0.0
    return found, "the others" if len(together) > 2 else "the model and any other"


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
