"""The samples of a public set, wherever they were read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
