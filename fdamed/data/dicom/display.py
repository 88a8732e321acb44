"""From stored integers to gray values: DICOM PS3.3 C.11.1 (modality LUT), C.11.2 (VOI LUT), C.7.6.3 (pixels).

The order matters: modality LUT, VOI LUT or window, then one inversion for MONOCHROME1 within the output range.
pydicom's own functions are not used here: they compute in float64 on every pixel, cannot read 8-bit tables that are
stored by bytes, and let inputs above 255 wrap around in an 8-bit table (pydicom 3.0.2, apply_voi).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdamed.data.dicom.header import read_decimal, read_integer, read_text
from fdamed.data.image import FAINTEST, Gray, Unreadable, robust_range, windowed

Curve = Callable[[NDArray[np.float64]], NDArray[np.float64]]
Line = tuple[float, float]
"""Scale and offset."""


@dataclass(frozen=True)
class Display:
    """How stored values become gray: everything that the header says about it."""

    rescale: Curve
    """Modality LUT, or slope and intercept."""
    slope: float | None
    """None: the modality LUT is a table."""
    window: Curve | None
    """VOI LUT or window of rescaled values, to [0, 1]."""
    line: Line | None
    """Rescaling and window as one line on stored values, where they are straight."""
    padding: tuple[int, int] | None
    """Stored values that mean `no image here`, first and last."""
    invert: bool


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
    window, line = _lut(dataset, "VOILUTSequence", signed or intercept < 0, big_endian, unit=True), None
    center, width = read_decimal(dataset, "WindowCenter"), read_decimal(dataset, "WindowWidth")
    if window is None and center is not None and width is not None:
        window, line = _window(center, width, (read_text(dataset, "VOILUTFunction") or "LINEAR").upper())
    modality = _lut(dataset, "ModalityLUTSequence", signed, big_endian)
    ends = [read_integer(dataset, tag) for tag in ("PixelPaddingValue", "PixelPaddingRangeLimit")]
    padding = [v - 65536 if signed and v > 32767 else v for v in ends if v is not None]
    return Display(
        modality or (lambda x: x * slope + intercept),
        None if modality else slope,
        window,
        None if modality or not line else (line[0] * slope, line[0] * intercept + line[1]),
        (min(padding), max(padding)) if ends[0] is not None else None,
        read_text(dataset, "PhotometricInterpretation") == "MONOCHROME1",
    )


def _window(center: float, width: float, function: str) -> tuple[Curve, Line | None]:
    """A window as a curve to [0, 1], and its straight part; LINEAR of width 1 and SIGMOID have none."""
    if not (np.isfinite(center) and np.isfinite(width)):
        raise Unreadable("NONFINITE")
    narrowest = 1.0 if function == "LINEAR" else np.finfo(float).tiny
    if function not in ("LINEAR", "LINEAR_EXACT", "SIGMOID") or width < narrowest:
        raise Unreadable("BAD_WINDOW")
    if function == "SIGMOID":
        return lambda x: 1 / (1 + np.exp(-4 * (x - center) / width)), None
    if function == "LINEAR":
        center, width = center - 0.5, width - 1
    if width == 0:
        return lambda x: (x > center).astype(np.float64), None
    scale, offset = 1 / width, 0.5 - center / width
    return lambda x: np.clip(x * scale + offset, 0, 1), (scale, offset)


def _lut(dataset: Any, name: str, signed: bool, big_endian: bool, unit: bool = False) -> Curve | None:
    """First item of a LUT sequence, with `unit` scaled to [0, 1]; inputs outside take the nearest end.

    8-bit tables store one entry per byte or per word; the length shows which.
    """
    if not dataset.get(name):
        return None
    item = dataset[name].value[0]
    count, first, bits = (int(v) & 0xFFFF for v in item["LUTDescriptor"].value)
    count = count or 65536
    first = first - 65536 if signed and first > 32767 else first
    data, order = item["LUTData"].value, ">" if big_endian else "<"
    if not isinstance(data, bytes):
        data, order = (np.atleast_1d(np.asarray(data, dtype=np.int64)) & 0xFFFF).astype("<u2").tobytes(), "<"
    by_words = len(data) == 2 * count
    if not 1 <= bits <= 16 or count < 2 or not (by_words or (bits <= 8 and len(data) == count + count % 2)):
        raise Unreadable("BAD_LUT")
    words = np.frombuffer(data, dtype=f"{order}u2").astype("<u2")
    values = (words if by_words else words.view(np.uint8)[:count]).astype(np.float64)
    top = max((1 << bits) - 1, values.max()) if unit else 1.0
    return lambda x: values[np.clip(np.rint(x) - first, 0, count - 1).astype(np.intp)] / top


def to_gray(pixels: NDArray[Any], display: Display) -> Gray:
    """(rows, columns) of stored values -> the image as the standard shows it."""
    lowest, highest = int(pixels.min()), int(pixels.max())
    if lowest == highest:
        raise Unreadable("CONSTANT")
    window, line = (display.window, display.line) if display.window else _robust_window(pixels, display)
    if line:
        scale, offset = line
        return windowed(pixels, *((-scale, 1 - offset) if display.invert else (scale, offset)))
    # Through a table over all stored values: cheaper than computing every pixel.
    gray = window(display.rescale(np.arange(lowest, highest + 1, dtype=np.float64)))
    table = (1 - gray if display.invert else gray).astype(np.float32)
    values = np.take(table, pixels if lowest == 0 else pixels.astype(np.int32) - lowest)
    if values.max() - values.min() < FAINTEST:
        raise Unreadable("CONSTANT")
    return Gray(values)


def _robust_window(pixels: NDArray[Any], display: Display) -> tuple[Curve, Line | None]:
    """A window from the pixels, where the header has none."""
    low, high = robust_range(pixels, display.padding)
    black, white = sorted(display.rescale(np.array([low, high])))
    if black == white:
        raise Unreadable("CONSTANT")
    line = None if display.slope is None else (1 / (high - low), -low / (high - low))
    if display.slope is not None and display.slope < 0:
        line = -1 / (high - low), high / (high - low)
    return lambda x: np.clip((x - black) / (white - black), 0, 1), line
