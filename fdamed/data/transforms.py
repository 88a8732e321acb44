"""One image to its place in the cache: deterministic MONAI transforms, float32 in [0, 1] to uint8.

The whole image is kept: it is shrunk until its longer side fits (area average; bilinear where it must grow) and
padded with black, centered. Cropping would cut costophrenic angles and apices, which findings are read from; stretching
would change the heart's proportions. Equalization comes before the padding: the border must not enter the histogram.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from monai.data.meta_obj import set_track_meta
from monai.transforms.croppad.array import SpatialPad
from monai.transforms.intensity.array import HistogramNormalize
from monai.transforms.spatial.array import Resize
from numpy.typing import NDArray

from fdamed.data.image import Gray, Unreadable

NARROWEST = 8
"""No radiograph is eight times as long as it is wide, nor only a few pixels."""


@cache
def _steps(size: int, equalize: bool) -> tuple[Resize, Resize, SpatialPad, HistogramNormalize | None]:
    set_track_meta(False)
    shrink = Resize(size, size_mode="longest", mode="area")
    grow = Resize(size, size_mode="longest", mode="bilinear", align_corners=False)
    even = HistogramNormalize(num_bins=256, min=0.0, max=1.0) if equalize else None
    return shrink, grow, SpatialPad((size, size), mode="constant", value=0.0), even


def transform(image: Gray, size: int, equalize: bool) -> NDArray[np.uint8]:
    """Gray values in [0, 1] of any shape -> (size, size) uint8."""
    rows, columns = image.values.shape
    if min(rows, columns) < NARROWEST or max(rows, columns) > NARROWEST * min(rows, columns):
        raise Unreadable("UNSUPPORTED", "too narrow to be a radiograph")
    shrink, grow, pad, even = _steps(size, equalize)
    shown = (grow if max(rows, columns) < size else shrink)(torch.from_numpy(image.values)[None])
    shown = (shown * image.scale + image.offset).clamp_(0, 1)
    if even is not None:
        shown = torch.as_tensor(even(shown))
    out = pad(shown)[0].mul(255).round_().to(torch.uint8).numpy()
    if out.min() == out.max():
        raise Unreadable("CONSTANT")
    return np.ascontiguousarray(out)
