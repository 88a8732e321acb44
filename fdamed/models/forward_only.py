"""Convolutions with fewer multiplications, for a model that judges many images and does not learn from them.

A 3 x 3 convolution by Winograd's F(4 x 4, 3 x 3) (Lavin and Gray, CVPR 2016) takes 36 products where the direct one
takes 144; the transformed kernels are made once a model, and tiles.c moves images to points and back. A gray image that
stands for three channels is one channel under the sum of the three kernels. Results differ from torch's in the last
bits: a few 1e-5 of a layer's spread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdamed.models import tiles
from fdamed.models.tiles import TILE

CHANNELS_FROM = 32 if tiles.BUILD == "compiled" else 128
"""Fewer channels are not worth it: the transforms cost as much as the products saved."""
WORTH = 0.5
"""Largest share of the direct products that tiles of four may need, borders and all."""
POINTS = 6
AT_ONCE = 256
"""Tiles whose points are multiplied together: a kernel is read seldom, and they stay in the cache."""

_INPUT = torch.tensor(
    [
        [4.0, 0.0, -5.0, 0.0, 1.0, 0.0],
        [0.0, -4.0, -4.0, 1.0, 1.0, 0.0],
        [0.0, 4.0, -4.0, -1.0, 1.0, 0.0],
        [0.0, -2.0, -1.0, 2.0, 1.0, 0.0],
        [0.0, 2.0, -1.0, -2.0, 1.0, 0.0],
        [0.0, 4.0, 0.0, -5.0, 0.0, 1.0],
    ]
)
_KERNEL = torch.tensor([[6.0, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24.0
_OUTPUT = torch.tensor(
    [
        [1.0, 1.0, 1.0, 1.0, 1.0, 0.0],
        [0.0, 1.0, -1.0, 2.0, -2.0, 0.0],
        [0.0, 1.0, 1.0, 4.0, 4.0, 0.0],
        [0.0, 1.0, -1.0, 8.0, -8.0, 1.0],
    ]
)
# Both directions at once: (36, 36), (36, 9) and (16, 36).
_TO_POINTS, _KERNEL_TO_POINTS, _FROM_POINTS = (torch.kron(m, m) for m in (_INPUT, _KERNEL, _OUTPUT))


@contextmanager
def forward_only(net: nn.Module) -> Iterator[None]:
    """Within, the convolutions of `net` that gain by it are computed the quick way, with the weights of its entry."""
    plain = [
        (parent, name, child)
        for parent in net.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Conv2d) and _quick(child)
    ]
    try:
        for parent, name, child in plain:
            setattr(parent, name, Winograd(child) if _tiles_fit(child) else Gray(child))
        yield
    finally:
        for parent, name, child in plain:
            setattr(parent, name, child)


def _quick(conv: nn.Conv2d) -> bool:
    ordinary = conv.groups == 1 and conv.dilation == (1, 1) and conv.bias is None and conv.padding_mode == "zeros"
    served = conv.weight.dtype == torch.float32 and conv.weight.device.type == "cpu"
    return ordinary and served and (_tiles_fit(conv) or _stem(conv))


def _tiles_fit(conv: nn.Conv2d) -> bool:
    three = conv.kernel_size == (3, 3) and conv.stride == (1, 1) and conv.padding == (1, 1)
    return three and min(conv.in_channels, conv.out_channels) >= CHANNELS_FROM


def _stem(conv: nn.Conv2d) -> bool:
    return (conv.in_channels, conv.kernel_size, conv.stride, conv.padding) == (3, (7, 7), (2, 2), (3, 3))


class Winograd(nn.Module):
    """A 3 x 3 convolution of stride 1 in tiles of 4 x 4 outputs."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self._conv = conv

    @cached_property
    def _kernels(self) -> Tensor:
        """(36, in, out)"""
        out, into = self._conv.weight.shape[:2]
        taps = self._conv.weight.detach().permute(2, 3, 1, 0).reshape(9, into * out)
        return (_KERNEL_TO_POINTS @ taps).view(POINTS**2, into, out)

    def forward(self, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        rows, columns = -(-height // TILE), -(-width // TILE)
        if POINTS**2 * rows * columns > WORTH * 9 * height * width:
            return cast(Tensor, self._conv(x))
        if tiles.serves(channels, self._conv.out_channels):
            return self._compiled(x.permute(0, 2, 3, 1).contiguous(), max(1, AT_ONCE // (rows * columns)))
        padded = x.new_zeros(n, TILE * rows + 2, TILE * columns + 2, channels)
        padded[:, 1 : height + 1, 1 : width + 1] = x.permute(0, 2, 3, 1)
        a, b, c, _ = padded.stride()
        overlapping = padded.as_strided((n, rows, columns, POINTS, POINTS, channels), (a, TILE * b, TILE * c, b, c, 1))
        pieces = overlapping.reshape(-1, POINTS**2, channels)
        points = torch.bmm(_TO_POINTS.expand(len(pieces), -1, -1), pieces)
        products = torch.bmm(points.transpose(0, 1), self._kernels)
        y = torch.bmm(_FROM_POINTS.expand(len(pieces), -1, -1), products.transpose(0, 1))
        whole = y.view(n, rows, columns, TILE, TILE, -1).transpose(2, 3).reshape(n, TILE * rows, TILE * columns, -1)
        return whole[:, :height, :width].contiguous().permute(0, 3, 1, 2)

    def _compiled(self, x: Tensor, images: int) -> Tensor:
        """x (n, height, width, in), contiguous, this many images at a time."""
        y = torch.empty(*x.shape[:3], self._conv.out_channels)
        for some, out in zip(torch.split(x, images), torch.split(y, images), strict=True):
            tiles.from_points(torch.bmm(tiles.to_points(some), self._kernels), out)
        return y.permute(0, 3, 1, 2)


class Gray(nn.Module):
    """The first convolution (7 x 7, stride 2) of an image whose three channels are one and the same.

    Pairs of rows and fours of columns become eight channels, for which torch's convolution is at its best: a kernel
    of 4 x 2 that leaves out every other column.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self._conv = conv
        one = F.pad(conv.weight.detach().sum(1), (0, 1, 0, 1)).view(-1, 4, 2, 2, 4)  # row = 2 i + u, column = 4 j + t
        eight = one.permute(0, 2, 4, 1, 3).reshape(-1, 8, 4, 2)
        self._kernel = eight.contiguous(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        if x.stride(1) != 0:  # three channels of their own
            return cast(Tensor, self._conv(x))
        n, _, height, width = x.shape
        rows, columns = (height + 1) // 2, (width + 1) // 2
        padded = F.pad(x[:, 0], (3, 2 * columns + 3 - width, 3, 2 * rows + 3 - height))
        a, b, c = padded.stride()
        fours = padded.as_strided((n, rows + 3, columns + 2, 2, 4), (a, 2 * b, 2 * c, b, c))
        eight = fours.reshape(n, rows + 3, columns + 2, 8).permute(0, 3, 1, 2)
        return F.conv2d(eight, self._kernel, dilation=(1, 2))
