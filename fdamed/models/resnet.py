"""The ResNet of He et al. (2015) without its last layer: names and arithmetic are those of MONAI and torchvision.

MONAI's own class is the same network, but `import monai` costs about 5 s of CPU in every job (decision 0045).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Norm = Callable[[int], nn.Module]
"""Channels -> normalization layer."""


class Basic(nn.Module):
    """Two 3 x 3 convolutions and a shortcut: (B, inputs, S, S) -> (B, planes, S / stride, S / stride)."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int, norm: Norm, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, padding=1, bias=False)
        self.bn1 = norm(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = norm(planes)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn2(self.conv2(torch.relu_(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return torch.relu_(out)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions and a shortcut: four times as many channels leave as `planes`."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int, norm: Norm, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = norm(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, padding=1, bias=False)
        self.bn2 = norm(planes)
        self.conv3 = nn.Conv2d(planes, planes * self.expansion, 1, bias=False)
        self.bn3 = norm(planes * self.expansion)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu_(self.bn2(self.conv2(torch.relu_(self.bn1(self.conv1(x))))))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return torch.relu_(out)


class First(nn.Conv2d):
    """The first convolution; a gray image stands for three equal channels.

    The sum of their kernels gives the same with a third of the arithmetic.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != 1:
            return super().forward(x)
        kernel = self.weight.sum(1, keepdim=True)
        if self.weight.is_contiguous(memory_format=torch.channels_last):
            # One channel has both orders at once: torch goes by this stride, and later layers by the result.
            kernel = kernel.squeeze(1).unsqueeze(3).permute(0, 3, 1, 2)
        return F.conv2d(x, kernel, None, self.stride, self.padding)


class ResNet(nn.Module):
    """Images (B, 1 or 3, S, S) -> features (B, planes[3] * expansion)."""

    def __init__(
        self, block: type[Basic | Bottleneck], blocks: Sequence[int], planes: Sequence[int], norm: Norm
    ) -> None:
        super().__init__()
        self.conv1 = First(3, planes[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(planes[0])
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = [f"layer{i}" for i in range(1, len(blocks) + 1)]
        inputs = planes[0]
        for name, count, width in zip(self.stages, blocks, planes, strict=True):
            stride, outputs = (1 if name == "layer1" else 2), width * block.expansion
            downsample = None
            if stride != 1 or inputs != outputs:
                downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))
            first = block(inputs, width, stride, norm, downsample)
            rest = [block(outputs, width, 1, norm, None) for _ in range(count - 1)]
            self.add_module(name, nn.Sequential(first, *rest))
            inputs = outputs
        self.avgpool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(torch.relu_(self.bn1(self.conv1(x))))
        for stage in self.stages:
            x = getattr(self, stage)(x)
        features: Tensor = self.avgpool(x)
        return features.flatten(1)
