"""A domain made from another: its images turned, inverted, covered with noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdamed.config.datasets import Moved
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.data.benchmark.samples import CHUNK, by_planes


def shifted(x: NDArray[Any], by: Moved, where: str) -> NDArray[np.uint8]:
    """Images (n, S, S) or (n, S, S, 3) uint8 -> the same number of others, the same on every machine.

    First turned, then inverted, then with noise, which belongs to the image and is drawn once (that of `split.noise` is
    drawn anew at each access).
    """
    if x.ndim == 2 or x.dtype != np.uint8:
        raise FdamedError("only images can be shifted, these are feature vectors", where, "Leave `shift` out.")
    out = by_planes(x, lambda planes: _turned(planes, by.rotate)) if by.rotate else x.copy()
    if by.invert:
        out = 255 - out
    for start in range(0, len(x), CHUNK) if by.noise else ():
        part = out[start : start + CHUNK]
        drawn = stream(by.seed, "shift", start).numpy.standard_normal(part.shape, dtype=np.float32)
        part[:] = np.clip(np.round(part + 255 * by.noise * drawn), 0, 255)
    return out


def _turned(planes: Any, degrees: float) -> Any:
    """Counter-clockwise about the middle, bilinear; what comes in from outside is black."""
    import torch
    from torch.nn.functional import affine_grid, grid_sample

    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = torch.tensor([[c, -s, 0.0], [s, c, 0.0]]).expand(len(planes), 2, 3)
    grid = affine_grid(turn, list(planes.shape), align_corners=False)
    return grid_sample(planes, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
