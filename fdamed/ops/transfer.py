"""The way of small things from the host to a device."""

from __future__ import annotations

import torch
from torch import Tensor


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; to a GPU through pinned memory, so that the host does not wait for the copy."""
    if tensor.device.type == device.type:
        return tensor
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def wide(device: torch.device) -> torch.dtype:
    """float64 where the device has it: sums over steps are taken in it."""
    return torch.float32 if device.type == "mps" else torch.float64
