"""Algorithms of torch that give the same bits every time."""

from __future__ import annotations

import torch


def deterministic(mode: str | int = "warn") -> None:
    """Choose deterministic algorithms in this process; `mode` as in torch.set_deterministic_debug_mode.

    torch.use_deterministic_algorithms would import the compiler, 2 s of CPU. New memory is not filled with NaN first,
    which torch does in this mode to find reads of what nobody wrote: it would take a tenth of each training step.
    """
    torch.set_deterministic_debug_mode(mode)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
