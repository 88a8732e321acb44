"""Weighted sums of answers in fixed point: integers modulo 2**64, to which masks are added.

A number v with weight w is sent as round(w v 2**25). All |v| are below 2**14 and the weights of all clients add up to
at most 2**24, so no sum reaches 2**63. The mean of K clients differs from the exact one by at most K / (2 W) * 2**-25
where W is the sum of the weights: 2**-26 with equal weights, less with numbers of images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fdamed.core.errors import FdamedError
from fdamed.federation.messages import ROWS, WHOLE_MODEL, averages, checks, kinds, marked
from fdamed.models.flat import Layout

Words = npt.NDArray[np.uint64]
Weighting = Literal["samples", "uniform"]
SCALE = 2.0**25
LARGEST = 2.0**14
"""Every number is smaller."""
MOST_WEIGHT = 2**24
"""Sum of the weights of all clients, at most."""


@dataclass(frozen=True)
class Part:
    """One field of an answer that only its sum is learned of."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    """None: a single number."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def counts_in(answer: type) -> tuple[str, ...]:
    """The fields that are sent as they are: the weights follow from them."""
    return tuple(name for name, kind in kinds(answer).items() if kind == "count")


def parts_of(answer: type, ask: Any, layout: Layout) -> tuple[Part, ...]:
    """The fields that are masked, with their shapes, which follow from the question."""
    out = []
    for name, kind in kinds(answer).items():
        check = checks(answer).get(name)
        if kind == "scalar":
            out.append(Part(name, (), None))
        elif kind in WHOLE_MODEL:
            out.append(Part(name, (layout.size,), torch.float32))
        elif kind == "statistic" and check and check.shape and ROWS not in check.shape(ask, layout):
            out.append(Part(name, check.shape(ask, layout), check.dtype))
        elif kind != "count":
            raise TypeError(f"{answer.__name__}.{name} ({kind}) has no sum over clients")
    return tuple(out)


def weights(answer: type, part: Part, counts: Any, weighting: Weighting, layout: Layout) -> list[tuple[int, float]]:
    """(how many numbers, their weight) of one field of one client; `counts` has its counts as attributes."""
    images, rule = _images(answer, counts), averages(answer).get(part.name)
    by_images = rule.by == "images" if rule else part.dtype is None or weighting == "samples"
    weight = float(images) if by_images else float(images > 0)
    if rule and rule.per:
        divisor = getattr(counts, rule.per) if weight else 1.0
        return [(layout.trainable, weight / divisor), (layout.size - layout.trainable, weight)]
    return [(part.size, weight)]


def _images(answer: type, counts: Any) -> int:
    found = [name for name, check in checks(answer).items() if check.images]
    return int(getattr(counts, found[0])) if found else 1


def encode(reply: Any, parts: tuple[Part, ...], weighting: Weighting, layout: Layout, clients: int) -> Words:
    """The weighted numbers of an answer, (L,); raises FdamedError for what does not fit."""
    out = np.empty(sum(part.size for part in parts), np.uint64)
    at = 0
    for part in parts:
        value = getattr(reply, part.name)
        flat = value.detach().cpu().double().numpy().ravel() if isinstance(value, Tensor) else np.array([float(value)])
        shape = tuple(value.shape) if isinstance(value, Tensor) else ()
        if shape != part.shape or not bool(np.all(np.abs(flat) < LARGEST)):
            raise _unfit(f"{part.name} has a number that is not below {LARGEST:.0f}, or another shape than all others")
        for size, weight in weights(type(reply), part, reply, weighting, layout):
            if weight * clients > MOST_WEIGHT:
                raise _unfit(f"{marked(reply, 'images', 1)} images are too many for a sum over {clients} clients")
            rounded = np.rint(flat[:size] * (weight * SCALE))
            out[at : at + size] = rounded.astype(np.int64).view(np.uint64)
            flat, at = flat[size:], at + size
    return out


def decode(
    total: Words, answer: type, parts: tuple[Part, ...], counts: Mapping[str, Any], weighting: Weighting, layout: Layout
) -> dict[str, Tensor | float]:
    """Field -> its weighted mean over the clients whose counts these are; 0 where all weights are."""
    signed, at, out = total.view(np.int64), 0, dict[str, Tensor | float]()
    for part in parts:
        pieces = []
        for size, weight in _summed(answer, part, counts, weighting, layout):
            pieces.append(signed[at : at + size] / (SCALE * (weight or 1.0)))
            at += size
        mean = np.concatenate(pieces)
        out[part.name] = torch.from_numpy(mean).reshape(part.shape).to(part.dtype) if part.dtype else float(mean[0])
    return out


def _summed(
    answer: type, part: Part, counts: Mapping[str, Any], weighting: Weighting, layout: Layout
) -> Iterator[tuple[int, float]]:
    """(how many numbers, the sum of their weights)."""
    for pieces in zip(*(weights(answer, part, c, weighting, layout) for c in counts.values()), strict=True):
        yield pieces[0][0], sum(weight for _, weight in pieces)


def _unfit(what: str) -> FdamedError:
    return FdamedError(what, "secure aggregation", "Check the model and the learning rate, or set it to false.")
