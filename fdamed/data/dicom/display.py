"""From stored integers to gray values in [0, 1]: DICOM PS3.3 C.11.1 (modality LUT), C.11.2 (VOI LUT), C.7.6.3 (pixels).

Done here from the standard's formulas because the order and the ranges matter: modality LUT, then VOI LUT or window,
then, once, the inversion of MONOCHROME1 within the output range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdamed.data.image import Unreadable

Integers = NDArray[Any]
SAMPLES = 65_536
TAILS = (0.1, 99.9)
"""Percentiles that become black and white where no window is given: hot pixels and markers do not set the scale."""
FAINTEST = 1 / 255
"""An image that shows less than this, one gray level of the cache, is as good as black."""


@dataclass(frozen=True, eq=False)
class Lut:
    """A look-up table: input `first` gives values[0]; inputs outside take the nearest end. Output is 0..top."""

    values: NDArray[np.uint16]
    first: int
    top: int

    def __call__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        index = np.clip(np.rint(x) - self.first, 0, len(self.values) - 1).astype(np.intp)
        out: NDArray[np.float64] = self.values[index].astype(np.float64)
        return out


@dataclass(frozen=True)
class Window:
    center: float
    width: float
    function: str = "LINEAR"

    def __post_init__(self) -> None:
        if not (np.isfinite(self.center) and np.isfinite(self.width)):
            raise Unreadable("NONFINITE")
        if self.function not in ("LINEAR", "LINEAR_EXACT", "SIGMOID"):
            raise Unreadable("BAD_WINDOW")
        if self.width <= 0 or (self.function == "LINEAR" and self.width < 1):
            raise Unreadable("BAD_WINDOW")

    def __call__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.function == "SIGMOID":
            with np.errstate(over="ignore"):
                return np.asarray(1 / (1 + np.exp(-4 * (x - self.center) / self.width)))
        if self.function == "LINEAR" and self.width == 1:
            return (x > self.center - 0.5).astype(np.float64)
        scale, offset = self.affine()
        return np.clip(x * scale + offset, 0, 1)

    def affine(self) -> tuple[float, float]:
        """The straight part as scale and offset; LINEAR of width 1 and SIGMOID have none."""
        if self.function == "LINEAR_EXACT":
            return 1 / self.width, 0.5 - self.center / self.width
        return 1 / (self.width - 1), 0.5 - (self.center - 0.5) / (self.width - 1)

    @property
    def straight(self) -> bool:
        return self.function == "LINEAR_EXACT" or (self.function == "LINEAR" and self.width > 1)


@dataclass(frozen=True)
class Display:
    """How stored values become gray: everything that the header says about it."""

    slope: float = 1.0
    intercept: float = 0.0
    modality: Lut | None = None
    voi: Lut | Window | None = None
    padding: tuple[int, int] | None = None
    """Stored values that mean `no image here`, first and last."""
    invert: bool = False

    def __post_init__(self) -> None:
        if not (np.isfinite(self.slope) and np.isfinite(self.intercept)):
            raise Unreadable("NONFINITE")
        if self.slope == 0:
            raise Unreadable("CONSTANT", "the rescale slope is zero")
        if not 1e-9 <= abs(self.slope) <= 1e6 or abs(self.intercept) > 1e7:
            raise Unreadable("BAD_RESCALE")


@dataclass(frozen=True, eq=False)
class Gray:
    """An image whose gray is values * scale + offset, in [0, 1].

    Averaging commutes with that: whoever shrinks the image applies it afterwards, to a hundredth of the pixels.
    """

    values: NDArray[np.float32]
    scale: float = 1.0
    offset: float = 0.0

    def unit(self) -> NDArray[np.float32]:
        """(rows, columns) float32 in [0, 1]."""
        out = self.values * np.float32(self.scale)
        out += np.float32(self.offset)
        return np.clip(out, 0, 1, out=out)


def significant(raw: Integers, stored_bits: int, high_bit: int, signed: bool) -> Integers:
    """Drop what stands outside the BitsStored bits that end at HighBit, and extend the sign."""
    width = raw.dtype.itemsize * 8
    if not 1 <= stored_bits <= high_bit + 1 <= width:
        raise Unreadable("BAD_HEADER")
    if stored_bits == width:
        return raw
    lowest, highest = (
        (-(1 << (stored_bits - 1)), (1 << (stored_bits - 1)) - 1) if signed else (0, (1 << stored_bits) - 1)
    )
    shift = high_bit + 1 - stored_bits
    if shift == 0 and raw.max() <= highest and (not signed or raw.min() >= lowest):
        return raw
    unsigned = raw.view(f"u{raw.dtype.itemsize}")
    kept: Integers = (unsigned >> shift) & np.array((1 << stored_bits) - 1, dtype=unsigned.dtype)
    if not signed:
        return kept
    sign = 1 << (stored_bits - 1)
    extended: Integers = ((kept.astype(np.int32) ^ sign) - sign).astype(raw.dtype)
    return extended


def to_gray(pixels: Integers, display: Display) -> Gray:
    """(rows, columns) of stored values -> the image as it is to be seen."""
    lowest, highest = int(pixels.min()), int(pixels.max())
    if lowest == highest:
        raise Unreadable("CONSTANT")
    voi = display.voi
    if display.modality is None and (voi is None or (isinstance(voi, Window) and voi.straight)):
        scale, offset = _straight(pixels, display)
        if display.invert:
            scale, offset = -scale, 1 - offset
        low, high = sorted((-offset / scale, (1 - offset) / scale))
        shown = (min(high, highest) - max(low, lowest)) * abs(scale)
        if low >= highest or high <= lowest or shown < FAINTEST:
            raise Unreadable("CONSTANT")
        values = pixels.astype(np.float32)
        if low > lowest or high < highest:
            np.clip(values, np.float32(low), np.float32(high), out=values)
        return Gray(values, scale, offset)
    domain = np.arange(lowest, highest + 1, dtype=np.float64)
    table = curve(domain, pixels, display).astype(np.float32)
    values = np.take(table, pixels if lowest == 0 else pixels.astype(np.int32) - lowest)
    if values.max() - values.min() < FAINTEST:
        raise Unreadable("CONSTANT")
    return Gray(values)


def curve(stored: NDArray[np.float64], pixels: Integers, display: Display) -> NDArray[np.float64]:
    """The gray value in [0, 1] of each stored value in `stored`; `pixels` sets the scale where no window is given."""
    x = display.modality(stored) if display.modality else stored * display.slope + display.intercept
    if isinstance(display.voi, Lut):
        y = display.voi(x) / display.voi.top
    elif isinstance(display.voi, Window):
        y = display.voi(x)
    else:
        low, high = robust_range(pixels, display.padding)
        ends = np.array([low, high], dtype=np.float64)
        a, b = sorted(display.modality(ends)) if display.modality else sorted(ends * display.slope + display.intercept)
        if a == b:
            raise Unreadable("CONSTANT")
        y = np.clip((x - a) / (b - a), 0, 1)
    return 1 - y if display.invert else y


def robust_range(pixels: Integers, padding: tuple[int, int] | None = None) -> tuple[float, float]:
    """Black and white points of an image without a window, from evenly spread pixels that are not padding."""
    sample = pixels.reshape(-1)[:: max(1, pixels.size // SAMPLES)]
    if padding is not None:
        inside = sample[(sample < padding[0]) | (sample > padding[1])]
        sample = inside if inside.size else sample
    low, high = np.percentile(sample, TAILS)
    if low == high:
        low, high = float(pixels.min()), float(pixels.max())
    return float(low), float(high)


def _straight(pixels: Integers, display: Display) -> tuple[float, float]:
    """Rescale and window (or robust range) as one scale and offset on stored values."""
    if isinstance(display.voi, Window):
        scale, offset = display.voi.affine()
        return scale * display.slope, scale * display.intercept + offset
    low, high = robust_range(pixels, display.padding)
    if display.slope < 0:
        return -1 / (high - low), high / (high - low)
    return 1 / (high - low), -low / (high - low)
