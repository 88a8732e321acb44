"""One image to its place in the cache: deterministic MONAI transforms, float32 in [0, 1] to uint8.

The whole picture is kept: it is shrunk until its longer side fits (area average; bilinear where it must grow) and
padded with black, centred. Cropping would cut costophrenic angles and apices, which findings are read from; stretching
would change the heart's proportions. Equalisation comes before the padding: the border must not enter the histogram.
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

from fdamed.data.image import Unreadable

NARROWEST = 8
"""No radiograph is eight times as long as it is wide, nor only a few pixels."""


@cache
def _steps(size: int, equalise: bool) -> tuple[Resize, Resize, SpatialPad, HistogramNormalize | None]:
    set_track_meta(False)
    shrink = Resize(size, size_mode="longest", mode="area")
    grow = Resize(size, size_mode="longest", mode="bilinear", align_corners=False)
    even = HistogramNormalize(num_bins=256, min=0.0, max=1.0) if equalise else None
    return shrink, grow, SpatialPad((size, size), mode="constant", value=0.0), even


def transform(image: NDArray[np.float32], size: int, equalise: bool) -> NDArray[np.uint8]:
    """(rows, columns) float32 in [0, 1] -> (size, size) uint8."""
    if min(image.shape) < NARROWEST or max(image.shape) > NARROWEST * min(image.shape):
        raise Unreadable("UNSUPPORTED", "too narrow to be a radiograph")
    shrink, grow, pad, even = _steps(size, equalise)
    picture = torch.from_numpy(image)[None]
    picture = (grow if max(image.shape) < size else shrink)(picture)
    if even is not None:
        picture = torch.as_tensor(even(picture))
    out = pad(picture)[0].mul(255).round_().clamp_(0, 255).to(torch.uint8).numpy()
    if out.min() == out.max():
        raise Unreadable("CONSTANT")
    return np.ascontiguousarray(out)
