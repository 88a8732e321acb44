"""The compiled loops of kernel.c, where the installation could build them.

They are optional: a machine without a C compiler uses torch, which reads memory twice. Their rounding differs, so
`BUILD` is part of a run's conditions, and a checkpoint made with one is not taken up with the other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from fdamed.core.native import library, pointer

Block = tuple[int, int, int]
"""(layer, start, stop): a stretch of the vector inside one layer."""


_LIBRARY = library(__file__, "_kernel")
BUILD = "torch" if _LIBRARY is None else "compiled"
"""Which loops this installation has."""


def serves(g_t: Tensor, g_s: Tensor) -> bool:
    """Whether the compiled loops can take these vectors: float32 on the CPU, rows contiguous."""
    plain = all(g.dtype == torch.float32 and g.device.type == "cpu" and g.stride(-1) == 1 for g in (g_t, g_s))
    return _LIBRARY is not None and plain


def inner(g_t: Tensor, g_s: Tensor, part: Sequence[Block]) -> tuple[Tensor, Tensor, Tensor]:
    """<g_T, g_i> (B, N), <g_i, g_i> (B, N), <g_T, g_T> (B,) in float64, one B for each block."""
    n, count = len(g_s), len(part)
    blocks = torch.tensor(part, dtype=torch.int64)
    dot, ss = torch.empty(count, n, dtype=torch.float64), torch.empty(count, n, dtype=torch.float64)
    tt = torch.empty(count, dtype=torch.float64)
    _call("fdamed_inner", g_t, g_s, blocks, pointer(dot), pointer(ss), pointer(tt))
    return dot, ss, tt


def combine(g_t: Tensor, g_s: Tensor, part: Sequence[Block], own: float, shares: Tensor, out: Tensor) -> None:
    """out = own * g_T + sum_i shares[layer, i] * g_i on the blocks of `part`; shares (L, N) float32, contiguous."""
    blocks = torch.tensor(part, dtype=torch.int64)
    _call("fdamed_combine", g_t, g_s, blocks, ctypes.c_float(own), pointer(shares), pointer(out))


def _call(name: str, g_t: Tensor, g_s: Tensor, blocks: Tensor, *rest: object) -> None:
    row = ctypes.c_ssize_t(g_s.stride(0))
    n, count = ctypes.c_int64(len(g_s)), ctypes.c_int64(len(blocks))
    getattr(_LIBRARY, name)(pointer(g_t), pointer(g_s), row, n, pointer(blocks), count, *rest)
