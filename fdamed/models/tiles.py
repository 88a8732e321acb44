"""The transforms of a convolution by tiles (tiles.c), where the installation could build them.

They are optional: without a C compiler `forward_only` transforms with torch, which costs as much as the products
that it saves. Rounding differs, so `BUILD` is part of a run's conditions.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from fdamed.core.native import library, pointer

LANES, TILE, POINTS = 8, 4, 36

_LIBRARY = library(__file__, "_tiles", runs="fdamed_tiles_runs")
BUILD = "torch" if _LIBRARY is None else "compiled"
"""Which transforms this installation has."""


def serves(into: int, out: int) -> bool:
    """Whether the compiled transforms can take this many channels."""
    return _LIBRARY is not None and into % LANES == 0 and out % LANES == 0


def to_points(x: Tensor) -> Tensor:
    """(n, height, width, channels), contiguous -> (36, tiles, channels); zeros lie around an image."""
    n, height, width, channels = x.shape
    points = torch.empty(POINTS, n * -(-height // TILE) * -(-width // TILE), channels)
    _call("fdamed_tiles_in", x, x, points)
    return points


def from_points(points: Tensor, out: Tensor) -> None:
    """(36, tiles, channels) -> out (n, height, width, channels), contiguous."""
    _call("fdamed_tiles_out", points, out, out)


def _call(name: str, given: Tensor, image: Tensor, made: Tensor) -> None:
    sizes = (ctypes.c_int64(s) for s in (*image.shape, torch.get_num_threads()))
    getattr(_LIBRARY, name)(pointer(given), *sizes, pointer(made))
