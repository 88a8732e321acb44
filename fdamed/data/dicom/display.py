"""From stored integers to gray values: DICOM PS3.3 C.11.1 (modality LUT), C.11.2 (VOI LUT), C.7.6.3 (pixels).

The order matters: modality LUT, VOI LUT or window, then one inversion for MONOCHROME1 within the output range.
pydicom's own functions are not used here: they compute in float64 on every pixel, cannot read 8-bit tables that are
stored by bytes, and let inputs above 255 wrap around in an 8-bit table (pydicom 3.0.2, apply_voi).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdamed.data.dicom.header import read_decimal, read_integer, read_text
from fdamed.data.gray_image import FAINTEST, Gray, Unreadable, robust_range, windowed

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Lut:
    """A lookup table: input `first` gives values[0]; inputs outside take the nearest end. Output is 0..top."""

    values: NDArray[np.uint16]
    first: int
    top: int

    def __call__(self, x: Floats) -> Floats:
        index = np.clip(np.rint(x) - self.first, 0, len(self.values) - 1).astype(np.intp)
        return np.asarray(self.values[index], dtype=np.float64)


@dataclass(frozen=True)
class Window:
    """The first window of the header, checked."""

    center: float
    width: float
    function: str

    def __post_init__(self) -> None:
        if not (np.isfinite(self.center) and np.isfinite(self.width)):
            raise Unreadable("NONFINITE")
        narrowest = 1.0 if self.function == "LINEAR" else np.finfo(float).tiny
        if self.function not in ("LINEAR", "LINEAR_EXACT", "SIGMOID") or self.width < narrowest:
            raise Unreadable("BAD_WINDOW")

    def line(self) -> tuple[float, float] | None:
        """Scale and offset; a LINEAR window of width 1 is a step and SIGMOID a curve."""
        if self.function == "LINEAR_EXACT":
            return 1 / self.width, 0.5 - self.center / self.width
        if self.function == "LINEAR" and self.width > 1:
            return 1 / (self.width - 1), 0.5 - (self.center - 0.5) / (self.width - 1)
        return None

    def curve(self, x: Floats) -> Floats:
        """The gray value of each x in [0, 1]."""
        line = self.line()
        if line:
            return np.clip(x * line[0] + line[1], 0, 1)
        if self.function == "LINEAR":
            return (x > self.center - 0.5).astype(np.float64)
        with np.errstate(over="ignore"):
            return np.asarray(1 / (1 + np.exp(-4 * (x - self.center) / self.width)))


@dataclass(frozen=True)
class Display:
    """How stored values become gray: everything that the header says about it."""

    slope: float
    intercept: float
    modality: Lut | None
    voi: Lut | Window | None
    padding: tuple[int, int] | None
    """Stored values that mean `no image here`, first and last."""
    invert: bool

    def rescaled(self, values: Floats) -> Floats:
        return self.modality(values) if self.modality else values * self.slope + self.intercept


def read_display(dataset: Any, signed: bool, big_endian: bool) -> Display:
    """The header's rescaling, window and padding; values out of any range are Unreadable."""
    slope, intercept = read_decimal(dataset, "RescaleSlope"), read_decimal(dataset, "RescaleIntercept") or 0.0
    slope = 1.0 if slope is None else slope
    if not (np.isfinite(slope) and np.isfinite(intercept)):
        raise Unreadable("NONFINITE")
    if slope == 0:
        raise Unreadable("CONSTANT", "the rescale slope is zero")
    if not 1e-9 <= abs(slope) <= 1e6 or abs(intercept) > 1e7:
        raise Unreadable("BAD_RESCALE")
    voi: Lut | Window | None = _lut(dataset, "VOILUTSequence", signed or intercept < 0, big_endian)
    center, width = read_decimal(dataset, "WindowCenter"), read_decimal(dataset, "WindowWidth")
    if voi is None and center is not None and width is not None:
        voi = Window(center, width, (read_text(dataset, "VOILUTFunction") or "LINEAR").upper())
    ends = [read_integer(dataset, tag) for tag in ("PixelPaddingValue", "PixelPaddingRangeLimit")]
    padding = [v - 65536 if signed and v > 32767 else v for v in ends if v is not None]
    return Display(
        slope,
        intercept,
        _lut(dataset, "ModalityLUTSequence", signed, big_endian),
        voi,
        (min(padding), max(padding)) if ends[0] is not None else None,
        read_text(dataset, "PhotometricInterpretation") == "MONOCHROME1",
    )


def _lut(dataset: Any, name: str, signed: bool, big_endian: bool) -> Lut | None:
    """First item of a LUT sequence. 8-bit tables store one entry per byte or per word; the length shows which."""
    if not dataset.get(name):
        return None
    item = dataset[name].value[0]
    count, first, bits = (int(v) & 0xFFFF for v in item["LUTDescriptor"].value)
    count = count or 65536
    first = first - 65536 if signed and first > 32767 else first
    data, order = item["LUTData"].value, ">" if big_endian else "<"
    if not isinstance(data, bytes):
        data, order = (np.atleast_1d(np.asarray(data, dtype=np.int64)) & 0xFFFF).astype("<u2").tobytes(), "<"
    by_bytes = bits <= 8 and len(data) == count + count % 2
    if not 1 <= bits <= 16 or count < 2 or not (by_bytes or len(data) == 2 * count):
        raise Unreadable("BAD_LUT")
    values = np.frombuffer(data, dtype=f"{order}u2").astype("<u2")
    values = values if len(data) == 2 * count else values.view(np.uint8)[:count].astype(np.uint16)
    return Lut(values, first, max((1 << bits) - 1, int(values.max())))


def to_gray(pixels: NDArray[Any], display: Display) -> Gray:
    """(rows, columns) of stored values -> the image as the standard shows it."""
    lowest, highest = int(pixels.min()), int(pixels.max())
    if lowest == highest:
        raise Unreadable("CONSTANT")
    line = _line(pixels, display)
    if line:
        scale, offset = line
        return windowed(pixels, *((-scale, 1 - offset) if display.invert else (scale, offset)))
    # Through a table over all stored values: cheaper than computing every pixel.
    table = _curve(np.arange(lowest, highest + 1, dtype=np.float64), pixels, display).astype(np.float32)
    values = np.take(table, pixels if lowest == 0 else pixels.astype(np.int32) - lowest)
    if values.max() - values.min() < FAINTEST:
        raise Unreadable("CONSTANT")
    return Gray(values)


def _line(pixels: NDArray[Any], display: Display) -> tuple[float, float] | None:
    """Rescaling and window (or robust range) as one scale and offset on stored values, where they are straight."""
    if display.modality or isinstance(display.voi, Lut):
        return None
    if display.voi:
        line = display.voi.line()
        return line and (line[0] * display.slope, line[0] * display.intercept + line[1])
    low, high = robust_range(pixels, display.padding)
    return (-1 / (high - low), high / (high - low)) if display.slope < 0 else (1 / (high - low), -low / (high - low))


def _curve(stored: Floats, pixels: NDArray[Any], display: Display) -> Floats:
    """The gray value in [0, 1] of each stored value; `pixels` sets the scale where no window is given."""
    x = display.rescaled(stored)
    if isinstance(display.voi, Lut):
        y = display.voi(x) / display.voi.top
    elif display.voi:
        y = display.voi.curve(x)
    else:
        black, white = sorted(display.rescaled(np.array(robust_range(pixels, display.padding))))
        if black == white:
            raise Unreadable("CONSTANT")
        y = np.clip((x - black) / (white - black), 0, 1)
    return 1 - y if display.invert else y
