"""Every random number comes from `stream(seed, *names)`; no generator state is carried along."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Stream:
    """A named source of randomness; each access gives a generator at its beginning."""

    key: int

    @property
    def numpy(self) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(self.key))

    @property
    def torch(self) -> torch.Generator:
        import torch

        return torch.Generator().manual_seed(self.key & 0x7FFF_FFFF_FFFF_FFFF)

    def child(self, *names: str | int) -> Stream:
        return stream(self.key, *names)


def stream(seed: int, *names: str | int) -> Stream:
    """The stream of `names` under `seed`: the same on every machine, in every order, after every resume."""
    text = repr((int(seed), *(n if isinstance(n, str) else int(n) for n in names)))
    return Stream(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big"))
