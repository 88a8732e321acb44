"""Checks of one answer by itself: names, shapes, finite values, counts, running variances. No honest client fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fdamed.federation.absences import Reason
from fdamed.federation.messages import Check, checks, kinds
from fdamed.models.flat import Layout

MOST = 10**9
"""Largest count of anything where the client has declared no number of images."""
WHOLE = ("weights", "update")
PLAIN = Check()


@dataclass(frozen=True)
class Fault:
    """Why an answer is not used."""

    reason: Reason
    why: str


def fault_of(reply: Any, question: Any = None, layout: Layout | None = None, images: int = MOST) -> Fault | None:
    """Why an answer cannot be used; None: it can. `images`: how many the client has declared."""
    annotated = checks(type(reply))
    for name, kind in kinds(type(reply)).items():
        value, check = getattr(reply, name), annotated.get(name, PLAIN)
        if kind == "count":
            most = images if name == "n" else MOST
            if type(value) is not int or not 0 <= value <= most:
                return Fault(Reason.COUNT, f"{name} is not a possible number of samples")
        elif kind == "scalar":
            if not isinstance(value, float | int) or value != value or abs(value) == float("inf"):
                return Fault(Reason.NOT_FINITE, f"{name} is not finite")
            if check.positive and not value > 0.0:
                return Fault(Reason.VALUE, f"{name} is not above 0")
        elif not isinstance(value, Tensor):
            return Fault(Reason.MALFORMED, f"{name} is not a tensor")
        elif fault := _tensor_fault(name, value, kind, check, question, layout):
            return fault
    return None


def _tensor_fault(
    name: str, value: Tensor, kind: str, check: Check, question: Any, layout: Layout | None
) -> Fault | None:
    expected = _expected_shape(name, kind, check, question, layout)
    if expected is not None and (tuple(value.shape), value.dtype) != expected:
        return Fault(Reason.SHAPE, f"{name} has {_described(value)}, not {list(expected[0])} of {_name(expected[1])}")
    # A finite sum proves finite entries; only a suspicious one is looked at closely.
    if value.is_floating_point() and not torch.isfinite(value.sum()) and not torch.isfinite(value).all():
        return Fault(Reason.NOT_FINITE, f"{name} has entries that are not finite")
    if layout is not None and (kind in WHOLE or check.module):
        return _variance_fault(name, value, kind, check.module(layout) if check.module else layout, question)
    return None


def _expected_shape(
    name: str, kind: str, check: Check, question: Any, layout: Layout | None
) -> tuple[tuple[int, ...], torch.dtype] | None:
    """Shape and dtype that the layout or the annotation prescribes; None: neither does."""
    if kind in WHOLE:
        return ((layout.size,), torch.float32) if layout else None
    if check.shape is not None:
        return (check.shape(question, layout), torch.float32) if layout else None
    return None


def _variance_fault(name: str, value: Tensor, kind: str, layout: Layout, question: Any) -> Fault | None:
    """A negative running variance, in a model or where an update leads from the model of the question."""
    if not len(layout.variances) or value.numel() != layout.size:
        return None
    found = value[layout.variances]
    if kind == "update":
        base = getattr(question, "x", None)
        if not isinstance(base, Tensor) or base.shape != value.shape:
            return None
        found = found + base[layout.variances]
    return Fault(Reason.VARIANCE, f"{name} has a negative running variance") if float(found.min()) < 0.0 else None


def odd_shapes(name: str, values: Mapping[str, Tensor], like: Tensor | None = None) -> dict[str, Fault]:
    """Whose tensor has not the shape and dtype of `like`, or of most; nothing is ever broadcast."""
    found = {client: (tuple(value.shape), value.dtype) for client, value in values.items()}
    if not found:
        return {}
    shape, dtype = (tuple(like.shape), like.dtype) if like is not None else Counter(found.values()).most_common(1)[0][0]
    usual = f"{list(shape)} of {_name(dtype)}"
    return {
        client: Fault(Reason.SHAPE, f"{name} has {_described(values[client])}, not {usual}")
        for client, own in found.items()
        if own != (shape, dtype)
    }


def _described(value: Tensor) -> str:
    return f"shape {list(value.shape)} of {_name(value.dtype)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
