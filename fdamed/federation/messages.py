"""Messages: frozen dataclasses whose fields have a kind, and their bytes.

The bytes are a JSON header (names, kinds, dtypes, shapes) followed by the raw numbers. Nothing is pickled, and bytes
without the declared names, types and shapes are refused.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, dataclass_transform, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from fdamed.models.flat import Layout

ROWS = -1
"""In a shape: any number of rows from 1 on."""


@dataclass(frozen=True)
class Kind:
    """The kind of a field: what its reader learns."""

    name: str


@dataclass(frozen=True)
class Check:
    """How validation checks a field beyond its kind: Annotated[Statistic, Check(...)].

    A scalar is compared with the other clients' only if it has a Check.
    """

    shape: Callable[[Any, Layout], tuple[int, ...]] | None = None
    """(question, layout) -> the shape. Every statistic and all features of an answer need one."""
    dtype: torch.dtype = torch.float32
    optional: bool = False
    """Whether a client may send an empty tensor instead, because it has none."""
    module: Callable[[Layout], Layout] | None = None
    """The layout of the module that the field holds, whose running variances must not be negative."""
    positive: bool = False
    """A number that must be above 0."""
    images: bool = False
    """The number of images that the answer was computed on: at most those that the client has declared."""
    nominal_step: bool = False
    """The nominal step length of an update, with which norms are compared."""
    start: bool = False
    """The model that training starts from, where a question has several."""
    zero_ok: bool = True
    """Whether an honest answer can be all zeros."""
    clip: bool = True
    """Whether the server may clip it; False where the client continues with what it sent."""
    direction: Literal["layers", "whole", "none"] = "layers"
    """How directions are compared: as a whole and layer by layer, as a whole, or not at all."""


@dataclass(frozen=True)
class Average:
    """How the server averages a field over the clients, where this is not by the method's option `weighting`, which
    without such an option is by images; single numbers are averaged by images."""

    by: Literal["images", "clients"] = "images"
    per: str = ""
    """A count by which each client's change of the parameters is divided first; not that of the buffers."""


Weights = Annotated[Tensor, Kind("weights")]
"""A whole model, (P,)."""
Individual = Annotated[Tensor, Kind("individual")]
"""Models of single clients, (K, P), not averaged, on their way to another client."""
Update = Annotated[Tensor, Kind("update")]
"""A difference of models or a gradient, (P,)."""
Statistic = Annotated[Tensor, Kind("statistic")]
"""An average over many patients, any shape."""
Features = Annotated[Tensor, Kind("features")]
"""One row for each patient: the kind that clients rarely release."""
Scalar = Annotated[float, Kind("scalar")]
Count = Annotated[int, Kind("count")]
Key = Annotated[Tensor, Kind("key")]
"""Public keys, names and encrypted shares of secure aggregation, as bytes."""
Masked = Annotated[Tensor, Kind("masked")]
"""Numbers under masks: alone they are random, and their sum over the clients is not."""
PROTOCOL = frozenset({"key", "masked"})
"""Kinds that say nothing of a client's images."""
Images = Annotated[Count, Check(images=True)]
NominalStep = Annotated[Scalar, Check(positive=True, nominal_step=True)]

_MAGIC = b"FDM1"
_DTYPES = ("float32", "float64", "int64", "uint8")
_NUMBERS = {"scalar": "<d", "count": "<q"}
_LARGEST_HEADER = 1 << 24
_MOST_AXES, _LONGEST_AXIS = 8, 1 << 40
WHOLE_MODEL = ("weights", "update")
"""Kinds that have one number for each of the model's."""
M = TypeVar("M")


class WireError(ValueError):
    """Bytes that are not the expected message."""


def kinds(message: type) -> dict[str, str]:
    """Field -> kind."""
    return _annotations(message)[0]


def checks(message: type) -> dict[str, Check]:
    """Field -> its Check, for the fields that have one."""
    return _annotations(message)[1]


def averages(message: type) -> dict[str, Average]:
    """Field -> its Average, for the fields that have one."""
    return _annotations(message)[2]


@cache
def _annotations(message: type) -> tuple[dict[str, str], dict[str, Check], dict[str, Average]]:
    # With the module as globals, so that a lambda in an annotation finds the functions of its module.
    hints = get_type_hints(message, vars(sys.modules[message.__module__]), include_extras=True)
    of_kind: dict[str, str] = {}
    of_check: dict[str, Check] = {}
    of_average: dict[str, Average] = {}
    for name in (f.name for f in fields(message)):
        marks = get_args(hints[name])[1:]
        found = [mark.name for mark in marks if isinstance(mark, Kind)]
        if len(found) != 1:
            raise TypeError(f"{message.__name__}.{name} has no kind, such as Weights or Count: it cannot be sent")
        of_kind[name] = found[0]
        of_check.update((name, mark) for mark in marks if isinstance(mark, Check))
        of_average.update((name, mark) for mark in marks if isinstance(mark, Average))
    for mark in ("images", "nominal_step", "start"):
        if len(twice := [name for name, check in of_check.items() if getattr(check, mark)]) > 1:
            raise TypeError(f"{message.__name__} has two fields with Check({mark}=True): {', '.join(twice)}")
    return of_kind, of_check, of_average


@dataclass_transform(frozen_default=True)
def message(cls: type[M]) -> type[M]:
    """Make a frozen dataclass that can be sent; every field needs a kind."""
    made = dataclass(frozen=True, eq=False)(cls)
    kinds(made)
    return made


def check_exchange(step: str, question: type, answer: type) -> None:
    """Raise if a step's messages leave open what validation must know of them."""
    models = [name for name, kind in kinds(question).items() if kind == "weights"]
    if len(models) > 1 and not any(checks(question)[name].start for name in models if name in checks(question)):
        raise TypeError(f"step {step}: mark the model that it starts from with Check(start=True): {', '.join(models)}")
    for name, kind in kinds(answer).items():
        if kind == "update" and not models:
            raise TypeError(f"step {step}: {name} is an update, but the question has no Weights that it starts from")
        if kind in ("statistic", "features") and (name not in checks(answer) or checks(answer)[name].shape is None):
            raise TypeError(f"step {step}: {name} needs a shape: Annotated[{kind.title()}, Check(shape=...)]")


def marked(msg: Any, mark: Literal["images", "nominal_step"], default: float) -> Any:
    """The value of the field whose Check has this mark."""
    found = [name for name, check in checks(type(msg)).items() if getattr(check, mark)]
    return getattr(msg, found[0]) if found else default


def starting_model(question: Any) -> Tensor | None:
    """The model that training starts from, if the question has one."""
    models, annotated = tensors(question, "weights"), checks(type(question))
    chosen = [name for name in models if len(models) == 1 or (name in annotated and annotated[name].start)]
    return models[chosen[0]] if chosen else None


def sizes(msg: Any) -> dict[str, int]:
    """Kind -> bytes of the numbers in a message, from shapes and dtypes alone."""
    out: dict[str, int] = {}
    for name, kind in kinds(type(msg)).items():
        value = getattr(msg, name)
        out[kind] = out.get(kind, 0) + (value.nbytes if isinstance(value, Tensor) else 8)
    return out


def tensors(msg: Any, *wanted: str) -> dict[str, Tensor]:
    """Field -> tensor, for the fields of these kinds."""
    found = {name: getattr(msg, name) for name, kind in kinds(type(msg)).items() if kind in wanted}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def pack(head: dict[str, Any], body: bytes) -> bytes:
    """A JSON header with its length, and the bytes behind it."""
    text = json.dumps(head).encode()
    return struct.pack("<I", len(text)) + text + body


def unpack(data: bytes | memoryview) -> tuple[dict[str, Any], memoryview]:
    """The header and the bytes behind it."""
    view = memoryview(data)
    length = int.from_bytes(view[:4], "little")
    if len(view) < 4 + length or length > _LARGEST_HEADER:
        raise WireError("the header is longer than the message")
    try:
        head = json.loads(bytes(view[4 : 4 + length]))
    except (ValueError, RecursionError) as error:
        raise WireError(f"the header cannot be read ({type(error).__name__})") from None
    if not isinstance(head, dict):
        raise WireError("the header is not an object")
    return head, view[4 + length :]


def encode(msg: Any) -> bytes:
    """The message as bytes."""
    header: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for name, kind in kinds(type(msg)).items():
        value = getattr(msg, name)
        entry: dict[str, Any] = {"name": name, "kind": kind}
        if kind in _NUMBERS:
            parts.append(struct.pack(_NUMBERS[kind], value))
        else:
            array = value.detach().cpu().contiguous().numpy()
            parts.append(array.tobytes())
            entry |= {"dtype": array.dtype.name, "shape": list(array.shape)}
        header.append(entry)
    return _MAGIC + pack({"type": type(msg).__name__, "fields": header}, b"".join(parts))


def decode(cls: type[M], data: bytes | memoryview, size: int) -> M:
    """The message in `data`, which must be a `cls` whose whole-model fields have `size` numbers."""
    view = memoryview(data)
    if bytes(view[:4]) != _MAGIC:
        raise WireError("not a message")
    head, body = unpack(view[4:])
    try:
        expected = head["type"] == cls.__name__
        expected &= [(f["name"], f["kind"]) for f in head["fields"]] == list(kinds(cls).items())
    except (KeyError, TypeError) as error:
        raise WireError(f"the header cannot be read ({type(error).__name__})") from None
    if not expected:
        raise WireError(f"expected a {cls.__name__}, got something else")
    at, values = 0, {}
    for field in head["fields"]:
        values[field["name"]], at = _read(body, at, field, size)
    if at != len(body):
        raise WireError(f"{len(body) - at} bytes too many")
    return cls(**values)


def _read(view: memoryview, at: int, field: dict[str, Any], size: int) -> tuple[Tensor | float | int, int]:
    """The value of a field that begins at `at`, and where it ends."""
    name, kind = field["name"], field["kind"]
    number = _NUMBERS.get(kind)
    dtype, shape = ("float64", []) if number else (field.get("dtype"), field.get("shape"))
    if dtype not in _DTYPES or not _is_shape(shape):
        raise WireError(f"{name} has no readable shape")
    if kind in WHOLE_MODEL and (shape != [size] or dtype != "float32"):
        raise WireError(f"{name} has shape {shape} of {dtype}, not [{size}] of float32")
    if kind == "individual" and (len(shape) != 2 or shape[1] != size or dtype != "float32"):
        raise WireError(f"{name} has shape {shape} of {dtype}, not rows of {size} float32")
    end = at + math.prod(shape) * np.dtype(dtype).itemsize  # Python's integers do not overflow
    if end > len(view):
        raise WireError("the message ends too early")
    if number:
        return struct.unpack(number, view[at:end])[0], end
    return torch.from_numpy(np.frombuffer(view[at:end], dtype=dtype).reshape(shape).copy()), end


def _is_shape(given: object) -> TypeGuard[list[int]]:
    """Whether this is a plausible shape; `true` is an integer in Python, but not a size."""
    return (
        isinstance(given, list)
        and len(given) <= _MOST_AXES
        and all(type(n) is int and 0 <= n <= _LONGEST_AXIS for n in given)
        and math.prod(max(1, n) for n in given) <= _LONGEST_AXIS  # numpy's limit, even for an axis of size 0
    )
