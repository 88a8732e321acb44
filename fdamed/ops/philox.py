"""Philox4x32-10 (Salmon et al., SC 2011): random numbers as a function of key and counter, the same on every device.

torch's generators give other numbers on a GPU than on a CPU. Here a stream's 64 bits are the key, and the counter is
(block, row, 0, 0): every image has numbers of its own, whatever batch it is in. The bits are exact everywhere; normal
numbers differ by the rounding of log, sin and cos at most. Plain operations on int64, whose products wrap around.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fdamed.core.rng import Stream

MULTIPLIERS, WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
MASK, ROUNDS, WORDS = 0xFFFFFFFF, 10, 4
CHUNK = 1 << 14
"""Counters at a time on a CPU: they stay in its cache."""


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Four words of 32 bits for each counter of four words, all in int64 tensors of one shape."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0 = (p1 >> 32).bitwise_and_(MASK).bitwise_xor_(c1).bitwise_xor_(k0)
        c2 = (p0 >> 32).bitwise_and_(MASK).bitwise_xor_(c3).bitwise_xor_(k1)
        c1, c3 = p1.bitwise_and_(MASK), p0.bitwise_and_(MASK)
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c0, c1, c2, c3


def words(rng: Stream, rows: Tensor, count: int) -> Tensor:
    """`count` whole numbers below 2^32 for each row (R,) -> (R, count), on the device of `rows`."""
    return _filled(rng, rows, count, torch.int64, lambda w: torch.stack(w, 1))


def normal(rng: Stream, rows: Tensor, count: int) -> Tensor:
    """`count` normal numbers for each row (R,) -> (R, count) float32."""
    return _filled(rng, rows, count, torch.float32, box_muller)


def box_muller(w: tuple[Tensor, ...]) -> Tensor:
    """Four normal numbers (N, 4) of four words, (N,) each."""
    out = torch.empty(len(w[0]), WORDS, device=w[0].device)
    for i in (0, 2):
        radius = w[i].float().add_(0.5).mul_(2.0**-32).log_().mul_(-2.0).sqrt_()
        angle = w[i + 1].float().mul_(2.0 * math.pi * 2.0**-32)
        torch.mul(radius, angle.cos(), out=out[:, i])
        torch.mul(radius, angle.sin(), out=out[:, i + 1])
    return out


def _filled(
    rng: Stream, rows: Tensor, count: int, dtype: torch.dtype, made: Callable[[tuple[Tensor, ...]], Tensor]
) -> Tensor:
    """What `made` makes of the words, (R, count)."""
    key, device, blocks = (rng.key & MASK, rng.key >> 32), rows.device, -(-count // WORDS)
    total = len(rows) * blocks
    out = torch.empty(total, WORDS, dtype=dtype, device=device)
    size = CHUNK if device.type == "cpu" else max(1, total)
    for start in range(0, total, size):
        place = torch.arange(start, min(start + size, total), device=device)
        row = rows.index_select(0, place.div(blocks, rounding_mode="floor"))
        zero = torch.zeros_like(place)
        out[start : start + size] = made(philox((place.remainder(blocks), row, zero, zero), key))
    return out.view(len(rows), blocks * WORDS)[:, :count]
