"""The small network of the FedGP paper's benchmarks: two convolutions, three linear layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdamed.core.errors import FdamedError

KERNEL, FIRST, SECOND, WIDE, FEATURES = 5, 6, 16, 120, 84


class Cnn(nn.Module):
    """Images (B, channels, side, side) in [0, 1] -> logits (B, classes); 44,426 parameters for 1 x 28 x 28, 10 classes.

    Conv(6, 5x5)-ReLU-MaxPool2, Conv(16, 5x5)-ReLU-MaxPool2, 120-ReLU, 84-ReLU, classes. No normalization, no dropout.
    """

    def __init__(self, channels: int = 1, side: int = 28, classes: int = 10) -> None:
        super().__init__()
        left = ((side - KERNEL + 1) // 2 - KERNEL + 1) // 2
        if left < 1:
            raise FdamedError(
                f"images of {side} x {side} are too small for two convolutions",
                "the cnn backbone",
                "Use images of 16 pixels a side or more.",
            )
        self.conv1 = nn.Conv2d(channels, FIRST, KERNEL)
        self.conv2 = nn.Conv2d(FIRST, SECOND, KERNEL)
        self.fc1 = nn.Linear(SECOND * left * left, WIDE)
        self.fc2 = nn.Linear(WIDE, FEATURES)
        self.head = nn.Linear(FEATURES, classes)

    def features(self, x: Tensor) -> Tensor:
        """(B, channels, side, side) -> (B, 84): what the main head and the auxiliary heads read."""
        return torch.relu(self.fc2(torch.relu(self.fc1(self.convolutions(x)))))

    def convolutions(self, x: Tensor) -> Tensor:
        """(B, channels, side, side) -> (B, 16 * P * P)."""
        first = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        return F.max_pool2d(torch.relu(self.conv2(first)), 2).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


@torch.no_grad()
def default_init(module: nn.Module, generator: torch.Generator) -> None:
    """PyTorch's defaults, seeded: all uniform in +-1 / sqrt(fan in), for weights that is kaiming_uniform(a=sqrt(5))."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = 1.0 / math.sqrt(layer.weight[0].numel())
            layer.weight.copy_(torch.empty(layer.weight.shape).uniform_(-bound, bound, generator=generator))
            if layer.bias is not None:
                layer.bias.copy_(torch.empty(layer.bias.shape).uniform_(-bound, bound, generator=generator))
