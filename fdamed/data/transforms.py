"""One image to its place in the cache, float32 in [0, 1] to uint8.

The whole image is kept: it is shrunk until its longer side fits (area average; bilinear where it must grow) and
padded with black, centered. Cropping would cut costophrenic angles and apices, which findings are read from; stretching
would change the heart's proportions. Equalization comes before the padding: the border must not enter the histogram.

The bytes are those of MONAI's Resize, HistogramNormalize and SpatialPad, without their import (decision 0076).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate, pad

from fdamed.data.image import Gray, Unreadable

NARROWEST = 8
"""No radiograph is eight times as long as it is wide, nor only a few pixels."""
BINS = 256


def transform(image: Gray, size: int, equalize: bool) -> NDArray[np.uint8]:
    """Gray values in [0, 1] of any shape -> (size, size) uint8."""
    rows, columns = image.values.shape
    longest = max(rows, columns)
    if min(rows, columns) < NARROWEST or longest > NARROWEST * min(rows, columns):
        raise Unreadable("UNSUPPORTED", "too narrow to be a radiograph")
    height, width = round(rows * (size / longest)), round(columns * (size / longest))
    how = {"mode": "bilinear", "align_corners": False} if longest < size else {"mode": "area"}
    shown = interpolate(torch.from_numpy(image.values)[None, None], (height, width), **how)[0, 0]
    shown = (shown * image.scale + image.offset).clamp_(0, 1)
    if equalize:
        shown = equalized(shown)
    left, top = (size - width) // 2, (size - height) // 2
    shown = pad(shown, (left, size - width - left, top, size - height - top))
    out = shown.mul(255).round_().to(torch.uint8).numpy()
    if out.min() == out.max():
        raise Unreadable("CONSTANT")
    return np.ascontiguousarray(out)


def equalized(gray: Tensor) -> Tensor:
    """Each gray value replaced by the share of pixels that are darker, interpolated between the bins' centers."""
    try:
        counts, edges = np.histogram(gray.numpy(), BINS)
    except ValueError:  # the pixels differ by rounding only
        raise Unreadable("CONSTANT") from None
    below = counts.cumsum().astype(np.float32)
    share = (below - below[0]) / (below[-1] - below[0])
    return torch.from_numpy(np.interp(gray.numpy(), (edges[:-1] + edges[1:]) / 2, share).astype(np.float32))
