"""Small sets in MNIST's file format."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fdamed.core.rng import stream


def write_idx(folder: Path, train: int = 400, test: int = 100, side: int = 28, classes: int = 10) -> None:
    """Four idx files; an image is its class's own stripe on noise, so that a network can learn it."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = stream(0, "idx").numpy
    for part, n in (("train", train), ("t10k", test)):
        y = (np.arange(n) % classes).astype(np.uint8)
        x = rng.integers(0, 60, (n, side, side)).astype(np.uint8)
        for i, label in enumerate(y):
            x[i, 2 * label : 2 * label + 4] = 220
        _write(folder / f"{part}-images-idx3-ubyte.gz", x)
        _write(folder / f"{part}-labels-idx1-ubyte", y)


def _write(path: Path, values: NDArray[np.uint8]) -> None:
    content = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
