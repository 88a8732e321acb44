"""The convolutions of `cnn.Cnn` in one pass each way (trunk.c), where the installation could build them.

They are optional: a machine without a C compiler uses torch's layers, about eight times slower. Their rounding
differs, so `BUILD` is part of a run's conditions, and a checkpoint made with one is not taken up with the other.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fdamed.core.native import library, pointer

KERNEL, FIRST, SECOND, LANES = 5, 6, 16, 8
CHANNELS, SIDES = 4, range(16, 65)
"""What trunk.c has room for: input channels up to, and the sides of an image."""


_LIBRARY = library(__file__, "_trunk", runs="fdamed_trunk_runs")
BUILD = "torch" if _LIBRARY is None else "compiled"
"""Which convolutions this installation has."""


def sides_of(side: int) -> tuple[int, int]:
    """Side after the first and after the second convolution and pool."""
    first = (side - KERNEL + 1) // 2
    return first, (first - KERNEL + 1) // 2


def serves(x: Tensor, w1: Tensor, *rest: Tensor) -> bool:
    """Whether the compiled pass can take these: float32 on the CPU, contiguous weights, no gradient for the images."""
    if _LIBRARY is None or x.requires_grad or x.dim() != 4 or x.shape[2] not in SIDES:
        return False
    if x.shape[1] > CHANNELS or x.shape[1] != w1.shape[1] or x.shape[2] != x.shape[3]:
        return False
    plain = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in (x, w1, *rest))
    return plain and all(w.is_contiguous() for w in (w1, *rest))


class Trunk(torch.autograd.Function):
    """x (B, C, S, S), two kernels and two biases -> (B, 16 * P * P), as Flatten would give it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        x = x.contiguous()
        n, channels, side, _ = x.shape
        m, p = sides_of(side)
        mid = torch.empty(n, m * m, LANES)
        place1 = torch.empty(n, m * m, LANES, dtype=torch.uint8)
        place2 = torch.empty(n, p * p, SECOND, dtype=torch.uint8)
        out = torch.empty(n, SECOND * p * p)
        _call("fdamed_trunk_forward", x, n, channels, side, w1, b1, w2, b2, mid, place1, place2, out)
        ctx.save_for_backward(x, w1, w2, mid, place1, place2)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, w1, w2, mid, place1, place2 = ctx.saved_tensors
        n, channels, side, _ = x.shape
        g1, d1, g2, d2 = torch.empty_like(w1), torch.empty(FIRST), torch.empty_like(w2), torch.empty(SECOND)
        grad = grad.contiguous()
        _call("fdamed_trunk_backward", x, n, channels, side, w2, mid, place1, place2, grad, g1, d1, g2, d2)
        return None, g1, d1, g2, d2


def _call(name: str, x: Tensor, n: int, channels: int, side: int, *rest: Tensor) -> None:
    sizes = (ctypes.c_int64(n), ctypes.c_int64(channels), ctypes.c_int64(side))
    getattr(_LIBRARY, name)(pointer(x), *sizes, *(pointer(t) for t in rest))
