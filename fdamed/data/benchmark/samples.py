"""The samples of a public set, wherever they were read from, and how their images are fitted or shifted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdamed.config.datasets import Moved
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream

CHUNK = 4096


@dataclass(frozen=True, eq=False)
class Samples:
    """x (n, S, S), (n, S, S, 3) uint8 or (n, d) float32; y (n,) from 0 on; `test` (n,): the part released as a test."""

    x: NDArray[Any]
    y: NDArray[np.int64]
    test: NDArray[np.bool_]
    names: tuple[str, ...] = ()
    """Names of the classes, where the files have them: y is a place in it."""
    origin: str = ""
    """Which files these are; sets of one origin have the same sample in the same row."""

    def __len__(self) -> int:
        return len(self.y)


def fitted(samples: Samples, side: int, channels: int) -> Samples:
    """The images at `side` pixels with `channels` channels; feature vectors stay as they are."""
    x = samples.x
    if x.ndim == 2:
        return samples
    if x.ndim == 4 and channels == 1:
        luma = np.array([0.299, 0.587, 0.114], dtype=np.float32)
        chunks = range(0, len(x), CHUNK)
        x = np.concatenate([np.round(x[i : i + CHUNK] @ luma).astype(np.uint8) for i in chunks])
    if x.ndim == 3 and channels == 3:
        x = np.repeat(x[..., None], 3, axis=-1)
    if x.shape[1] != side:
        from torch.nn.functional import interpolate

        options: dict[str, Any] = {"size": (side, side), "mode": "bilinear", "antialias": True, "align_corners": False}
        x = by_planes(x, lambda planes: interpolate(planes, **options))
    return replace(samples, x=np.ascontiguousarray(x))


def numbered_alike(sets: dict[str, Samples]) -> dict[str, Samples]:
    """The sets with one numbering of their class names: a set that lacks a class does not shift the others."""
    names = tuple(sorted({name for s in sets.values() for name in s.names}))
    return {
        key: replace(s, y=np.array([names.index(n) for n in s.names], dtype=np.int64)[s.y], names=names)
        if s.names
        else s
        for key, s in sets.items()
    }


def by_planes(x: NDArray[Any], change: Callable[[Any], Any]) -> NDArray[np.uint8]:
    """Images after `change`, a function of float tensors (n, C, S, S)."""
    import torch

    out = []
    for start in range(0, len(x), CHUNK):
        part = torch.from_numpy(np.ascontiguousarray(x[start : start + CHUNK])).float()
        planes = part.unsqueeze(1) if x.ndim == 3 else part.permute(0, 3, 1, 2)
        new = change(planes).round_().clamp_(0, 255).to(torch.uint8)
        out.append((new.squeeze(1) if x.ndim == 3 else new.permute(0, 2, 3, 1)).numpy())
    return np.concatenate(out)


def shifted(x: NDArray[Any], by: Moved, where: str) -> NDArray[np.uint8]:
    """Images (n, S, S) or (n, S, S, 3) uint8 -> the same number of others, the same on every machine.

    First turned, then inverted, then of another contrast and brightness, then with noise, which belongs to the image
    and is drawn once (that of `split.noise` is drawn anew at each access).
    """
    if x.ndim == 2 or x.dtype != np.uint8:
        raise FdamedError("only images can be shifted, these are feature vectors", where, "Leave `shift` out.")
    out = by_planes(x, lambda planes: _turned(planes, by.rotate)) if by.rotate else x.copy()
    if by.invert:
        out = 255 - out
    if by.contrast != 1.0 or by.brightness:
        levels = np.arange(256) * by.contrast + 255 * by.brightness
        out = np.clip(np.round(levels), 0, 255).astype(np.uint8)[out]
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
