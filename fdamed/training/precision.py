"""The precisions of a forward and backward pass: float32, tf32, bfloat16, and float16 with a scaled loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
FIRST, GROWTH, BACKOFF, INTERVAL = 65536.0, 2.0, 0.5, 2000
"""As in torch.amp.GradScaler: the first scale, its factors after INTERVAL good steps and after a bad one."""
SCALE, GOOD = "scaler.scale", "scaler.good"
"""In a client's memory: the scale, and the good steps since it changed."""


def in_half(objective: Callable[[], Tensor], device: torch.device, precision: str) -> Callable[[], Tensor]:
    """The loss that is computed in half precision."""

    def computed() -> Tensor:
        with autocast(device, precision):
            return objective()

    return computed


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Computes in half precision where that is asked for; in float32 and tf32 it does nothing."""
    return torch.autocast(device.type, HALF.get(precision, torch.bfloat16), enabled=precision in HALF)


def allow_tf32(precision: str) -> None:
    """Let matrix products and convolutions on a GPU round to TF32, or not: torch lets convolutions by default."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


class GradientScaler:
    """Scales losses so that float16 gradients do not vanish; a step whose gradients overflow is skipped.

    All of it stays on the device: torch.amp.GradScaler asks it in every step whether there was an overflow.
    """

    def __init__(self, device: torch.device, memory: Mapping[str, Tensor]) -> None:
        """Continues with the scale that a client remembers."""
        self.scale = memory.get(SCALE, torch.full((1,), FIRST)).to(device, copy=True)
        self.good = memory.get(GOOD, torch.zeros(1, dtype=torch.int32)).to(device, copy=True)

    def backward(self, loss: Tensor, *gradients: Tensor) -> Tensor:
        """Adds the gradient of the loss to `gradients`, which were zero -> 1 where one of them overflowed, else 0.

        Then all of them are zero.
        """
        (loss * self.scale[0]).backward()  # type: ignore[no-untyped-call]
        overflow = torch.zeros_like(self.scale)
        torch._amp_foreach_non_finite_check_and_unscale_(list(gradients), overflow, self.scale.reciprocal())
        for gradient in gradients:
            gradient.masked_fill_(overflow > 0, 0.0)
        torch._amp_update_scale_(self.scale, self.good, overflow, GROWTH, BACKOFF, INTERVAL)
        return overflow[0]

    def keep(self, memory: dict[str, Tensor]) -> None:
        """Leave the scale in a client's memory, which checkpoints save."""
        memory |= {SCALE: self.scale.to("cpu", copy=True), GOOD: self.good.to("cpu", copy=True)}
