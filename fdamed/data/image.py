"""Any image file to gray values in [0, 1], or to the reason why it gives none; the first bytes tell the format."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
MAX_PIXELS = 50_000_000
"""The largest detectors have about 20 megapixels; a header that claims more is a bomb or damaged."""
SAMPLES = 65_536
TAILS = (0.1, 99.9)
"""Percentiles that become black and white where no window is given: hot pixels and markers do not set the scale."""
FAINTEST = 1 / 255
"""An image whose contrast is below one gray level of the cache is as good as black."""

REASONS: dict[str, str] = {
    "MISSING": "there is no such file, or it is not a regular file",
    "PATH_OUTSIDE_ROOT": "the path or a link leaves the data root; see data.allowed_roots",
    "UNREADABLE": "the file system denies access to the file",
    "EMPTY": "the file has no bytes",
    "NOT_AN_IMAGE": "the file is not DICOM, JPEG or PNG",
    "NOT_A_RADIOGRAPH": "the modality is not CR or DX",
    "NOT_CHEST": "the header names another part of the body",
    "OTHER_VIEW": "the header names a view that the model was not trained on",
    "TOO_LARGE": "more pixels or bytes than any radiograph has",
    "TRUNCATED": "the file ends before the image does",
    "WRONG_LENGTH": "the pixel data are longer than the header says",
    "MISMATCH": "the compressed frame and the header disagree about the image",
    "UNDECODABLE": "the decoder failed",
    "DEFLATED": "deflated transfer syntaxes are not opened: small files can unpack to gigabytes",
    "UNSUPPORTED": "a kind of pixel or compression that radiographs do not have",
    "NO_PIXELS": "there is no pixel data",
    "MULTI_FRAME": "more than one frame",
    "COLOR": "a color image",
    "BAD_HEADER": "a tag that the pixels depend on is missing or out of range",
    "BAD_RESCALE": "rescale slope or intercept is out of any physical range",
    "BAD_WINDOW": "the window's width or function is not one that the standard allows",
    "BAD_LUT": "a lookup table's length and descriptor disagree",
    "NONFINITE": "a rescale or window value is not a finite number",
    "CONSTANT": "all pixels are equal",
    "MEMORY": "decoding needs more memory than a worker may use",
    "CRASHED": "the decoder's process died",
    "TIMEOUT": "decoding took longer than the limit",
}
"""Reason code -> what it means; the texts hold nothing from the file."""


class Unreadable(Exception):
    """A file that gives no usable image; `reason` is a key of REASONS, `detail` never quotes the file."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail or REASONS[reason]
        super().__init__(f"{reason}: {self.detail}")

    def __reduce__(self) -> tuple[type[Unreadable], tuple[str, str]]:
        return (type(self), (self.reason, self.detail))


@contextmanager
def decoding() -> Iterator[None]:
    """Whatever a decoder raises is the file's fault: pydicom alone raises nine classes and RecursionError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (Unreadable, MemoryError):
            raise
        except Exception as error:
            ended = isinstance(error, EOFError) or "truncated" in str(error).lower()
            reason = "TRUNCATED" if ended else "UNDECODABLE"
            raise Unreadable(reason, f"{REASONS[reason]} ({type(error).__name__})") from None


@dataclass(frozen=True, eq=False)
class Gray:
    """An image whose gray is values * scale + offset, in [0, 1].

    Averaging commutes with that: the image is shrunk first, and the multiplication runs on a hundredth of the pixels.
    """

    values: NDArray[np.float32]
    scale: float = 1.0
    offset: float = 0.0


def windowed(pixels: NDArray[Any], scale: float, offset: float) -> Gray:
    """Stored values whose gray is pixels * scale + offset, clipped to [0, 1]."""
    lowest, highest = int(pixels.min()), int(pixels.max())
    low, high = sorted((-offset / scale, (1 - offset) / scale))
    shown = (min(high, highest) - max(low, lowest)) * abs(scale)
    if low >= highest or high <= lowest or shown < FAINTEST:
        raise Unreadable("CONSTANT")
    values = pixels.astype(np.float32)
    if low > lowest or high < highest:
        np.clip(values, np.float32(low), np.float32(high), out=values)
    return Gray(values, scale, offset)


def robust_range(pixels: NDArray[Any], padding: tuple[int, int] | None = None) -> tuple[float, float]:
    """Black and white points of an image without a window, from evenly spread pixels that are not padding."""
    sample = pixels.reshape(-1)[:: max(1, pixels.size // SAMPLES)]
    if padding is not None:
        inside = sample[(sample < padding[0]) | (sample > padding[1])]
        sample = inside if inside.size else sample
    low, high = np.percentile(sample, TAILS)
    if low == high:
        low, high = float(pixels.min()), float(pixels.max())
    if low == high:
        raise Unreadable("CONSTANT")
    return float(low), float(high)


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
