"""Messages: frozen records whose fields have a kind, and their bytes.

The bytes are a JSON header (names, kinds, dtypes, shapes) and the raw numbers behind it. Nothing is pickled, and bytes
without the declared names, types and shapes are refused.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, dataclass_transform, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from fdamed.models.flat import Layout


@dataclass(frozen=True)
class Knowledge:
    """What the reader of a field learns."""

    kind: str


@dataclass(frozen=True)
class Check:
    """What validation must know of a field beyond its kind: Annotated[Tensor, Knowledge("statistic"), Check(...)].

    A scalar is compared with the other clients' only if it has a Check.
    """

    shape: Callable[[Any, Layout], tuple[int, ...]] | None = None
    """(question, layout) -> the shape; default: that of the question's field of this name, else of most answers."""
    module: Callable[[Layout], Layout] | None = None
    """The layout of the module that the field holds, whose running variances must not be negative."""
    positive: bool = False
    """A scalar that must be above 0."""
    zero_ok: bool = True
    """Whether all zeros are an honest answer."""
    clip: bool = True
    """Whether the server may clip it; False where the client continues with what it sent."""
    direction: Literal["layers", "whole", "none"] = "layers"
    """How directions are compared: layer by layer too, as a whole only, or not at all."""


Weights = Annotated[Tensor, Knowledge("weights")]
"""A whole model, (P,)."""
Individual = Annotated[Tensor, Knowledge("individual")]
"""Models of single clients, (K, P), not averaged, on their way to another client."""
Update = Annotated[Tensor, Knowledge("update")]
"""A difference of models or a gradient, (P,)."""
Statistic = Annotated[Tensor, Knowledge("statistic")]
"""An average over many patients, any shape."""
Features = Annotated[Tensor, Knowledge("features")]
"""One row for each patient: the kind that clients rarely release."""
Scalar = Annotated[float, Knowledge("scalar")]
Count = Annotated[int, Knowledge("count")]

_MAGIC = b"FDM1"
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64, "uint8": torch.uint8}
_WHOLE_MODEL = ("weights", "update")
_LARGEST_HEADER = 1 << 20
_MOST_AXES, _LONGEST_AXIS = 8, 1 << 40
M = TypeVar("M")


class WireError(ValueError):
    """Bytes that are not the message they should be."""


_KNOWN: dict[type, tuple[dict[str, str], dict[str, Check]]] = {}


def kinds(message: type) -> dict[str, str]:
    """Field -> kind of knowledge."""
    return _annotations(message)[0]


def checks(message: type) -> dict[str, Check]:
    """Field -> its Check, for the fields that have one."""
    return _annotations(message)[1]


def _annotations(message: type) -> tuple[dict[str, str], dict[str, Check]]:
    if message not in _KNOWN:
        hints = get_type_hints(message, include_extras=True)
        of_kind: dict[str, str] = {}
        of_check: dict[str, Check] = {}
        for name in (f.name for f in fields(message)):
            marks = get_args(hints[name])[1:]
            found = [mark.kind for mark in marks if isinstance(mark, Knowledge)]
            if len(found) != 1:
                raise TypeError(f"{message.__name__}.{name} has no kind of knowledge: it cannot be sent")
            of_kind[name] = found[0]
            of_check.update((name, mark) for mark in marks if isinstance(mark, Check))
        _KNOWN[message] = (of_kind, of_check)
    return _KNOWN[message]


@dataclass_transform(frozen_default=True)
def message(cls: type[M]) -> type[M]:
    """Make a frozen record that can travel; a field without a kind is an error when it is first used."""
    return dataclass(frozen=True, eq=False)(cls)


def sizes(msg: Any) -> dict[str, int]:
    """Kind -> bytes of the numbers in a message, from shapes and dtypes alone."""
    out: dict[str, int] = {}
    for name, kind in kinds(type(msg)).items():
        value = getattr(msg, name)
        n = value.numel() * value.element_size() if isinstance(value, Tensor) else 8
        out[kind] = out.get(kind, 0) + n
    return out


def encode(msg: Any) -> bytes:
    """The message as bytes."""
    header: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for name, kind in kinds(type(msg)).items():
        value = getattr(msg, name)
        if kind == "scalar":
            parts.append(struct.pack("<d", value))
            header.append({"name": name, "kind": kind})
        elif kind == "count":
            parts.append(struct.pack("<q", value))
            header.append({"name": name, "kind": kind})
        else:
            array = value.detach().cpu().contiguous().numpy()
            parts.append(array.tobytes())
            header.append({"name": name, "kind": kind, "dtype": array.dtype.name, "shape": list(array.shape)})
    head = json.dumps({"type": type(msg).__name__, "fields": header}).encode()
    return b"".join([_MAGIC, struct.pack("<I", len(head)), head, *parts])


def decode(cls: type[M], data: bytes | memoryview, size: int) -> M:
    """The message in `data`, which must be a `cls` whose whole-model fields have `size` numbers."""
    view = memoryview(data)
    if bytes(view[:4]) != _MAGIC or len(view) < 8:
        raise WireError("not a message")
    (length,) = struct.unpack("<I", view[4:8])
    if length > _LARGEST_HEADER or 8 + length > len(view):
        raise WireError("the header is longer than the message")
    try:
        head = json.loads(bytes(view[8 : 8 + length]))
        given = [(f["name"], f["kind"]) for f in head["fields"]]
        name = head["type"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError(f"the header cannot be read ({type(error).__name__})") from None
    if name != cls.__name__ or given != list(kinds(cls).items()):
        raise WireError(f"expected a {cls.__name__}, got something else")
    at, values = 8 + length, {}
    for field in head["fields"]:
        value, at = _read(view, at, field, size)
        values[field["name"]] = value
    if at != len(view):
        raise WireError(f"{len(view) - at} bytes too many")
    return cls(**values)


def _read(view: memoryview, at: int, field: dict[str, Any], size: int) -> tuple[Tensor | float | int, int]:
    kind = field["kind"]
    if kind in ("scalar", "count"):
        if at + 8 > len(view):
            raise WireError("the message ends too early")
        return struct.unpack("<d" if kind == "scalar" else "<q", view[at : at + 8])[0], at + 8
    dtype, shape = field.get("dtype"), field.get("shape")
    if not isinstance(dtype, str) or dtype not in _DTYPES or not _is_shape(shape):
        raise WireError(f"{field['name']} has no readable shape")
    if kind in _WHOLE_MODEL and (shape != [size] or dtype != "float32"):
        raise WireError(f"{field['name']} has shape {shape} of {dtype}, not [{size}] of float32")
    if kind == "individual" and (len(shape) != 2 or shape[1] != size or dtype != "float32"):
        raise WireError(f"{field['name']} has shape {shape} of {dtype}, not rows of {size} float32")
    n = math.prod(shape) * np.dtype(dtype).itemsize  # Python's integers: a product that overflows would pass for small
    if at + n > len(view):
        raise WireError("the message ends too early")
    array = np.frombuffer(view[at : at + n], dtype=dtype).reshape(shape).copy()
    return torch.from_numpy(array), at + n


def _is_shape(given: object) -> TypeGuard[list[int]]:
    """Whether this is a plausible shape; `true` is none, though Python counts it among the integers."""
    return (
        isinstance(given, list)
        and len(given) <= _MOST_AXES
        and all(type(n) is int and 0 <= n <= _LONGEST_AXIS for n in given)
        and math.prod(max(1, n) for n in given) <= _LONGEST_AXIS  # numpy refuses more even where an axis has no length
    )
