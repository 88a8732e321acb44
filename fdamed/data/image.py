"""Any image file to gray values: looks at the first bytes, never at the suffix, and calls the format's decoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fdamed.data.gray_image import MAX_PIXELS, REASONS, Gray, Unreadable, decoding, robust_range, windowed

if TYPE_CHECKING:
    from PIL import Image

VERSION = 1
"""Part of the cache key and of exported models: raise it when the same file would give other bytes."""
MAX_BYTES = 400_000_000
TAIL = 4096
COLOR_NOISE = 24
"""Largest difference between channels that JPEG's chroma rounding makes of a gray image, out of 255."""
MARKS = {"dicom": (128, b"DICM"), "jpeg": (0, b"\xff\xd8\xff"), "png": (0, b"\x89PNG\r\n\x1a\n")}
ENDS = {"jpeg": b"\xff\xd9", "png": b"IEND"}


def kind(path: Path | str) -> str:
    """`dicom`, `jpeg` or `png` by the first bytes of the file."""
    path = Path(path)
    try:
        if not path.is_file():
            raise Unreadable("MISSING")
        size = path.stat().st_size
        with open(path, "rb") as file:
            head = file.read(132)
    except (OSError, ValueError) as error:
        raise Unreadable("UNREADABLE", f"{REASONS['UNREADABLE']} ({type(error).__name__})") from None
    if size == 0:
        raise Unreadable("EMPTY")
    if size > MAX_BYTES:
        raise Unreadable("TOO_LARGE")
    found = next((name for name, (at, mark) in MARKS.items() if head.startswith(mark, at)), None)
    if found is None:
        raise Unreadable("NOT_AN_IMAGE")
    return found


def read_header(path: Path | str) -> dict[str, Any]:
    """Columns of the index that a DICOM header fills, {} for JPEG and PNG; Unreadable if the header is bad."""
    if kind(path) == "dicom":
        from fdamed.data.dicom.header import read_header as read_dicom_header

        return read_dicom_header(path)
    with decoding(), _open(path):
        return {}


def read_gray(path: Path | str) -> Gray:
    """The gray values of a DICOM, JPEG or PNG file, bright = dense."""
    found = kind(path)
    if found == "dicom":
        from fdamed.data.dicom.reader import read_gray as read_dicom

        return read_dicom(path)
    with open(path, "rb") as file:
        file.seek(max(0, Path(path).stat().st_size - TAIL))
        if ENDS[found] not in file.read():
            raise Unreadable("TRUNCATED")
    with decoding(), _open(path) as opened:
        stored = _gray(opened)
        if stored.min() == stored.max():
            raise Unreadable("CONSTANT")
        if stored.dtype == np.uint8:
            return Gray(stored.astype(np.float32), 1 / 255)
        # 16-bit PNGs of radiographs hold 10 to 16 significant bits, and nothing in the file says how many.
        low, high = robust_range(stored)
        return windowed(stored, 1 / (high - low), -low / (high - low))


def _open(path: Path | str) -> Image.Image:
    """The file with its header checked and no pixel decoded."""
    from PIL import Image

    try:
        opened = Image.open(path, formats=("JPEG", "PNG"))
    except Image.DecompressionBombError:
        raise Unreadable("TOO_LARGE") from None
    if opened.width * opened.height > MAX_PIXELS:
        raise Unreadable("TOO_LARGE")
    if opened.format == "PNG" and getattr(opened, "n_frames", 1) != 1:
        raise Unreadable("MULTI_FRAME")
    if opened.mode not in ("L", "LA", "RGB", "RGBA", "P", "I;16", "I;16B", "I"):
        raise Unreadable("UNSUPPORTED")
    return opened


def _gray(opened: Image.Image) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """The one gray channel, as stored."""
    if opened.mode in ("L", "LA"):
        return np.asarray(opened.getchannel("L"))
    if opened.mode in ("I;16", "I;16B", "I"):
        wide = np.asarray(opened)
        if wide.min() < 0 or wide.max() > 65535:
            raise Unreadable("UNSUPPORTED")
        return wide.astype(np.uint16)
    channels = np.asarray(opened.convert("RGB"))
    spread = channels.max(axis=-1) - channels.min(axis=-1)
    if np.percentile(spread, 99) > COLOR_NOISE:
        raise Unreadable("COLOR")
    return np.ascontiguousarray(channels[..., 1])
