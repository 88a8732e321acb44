"""JPEG and PNG to pixels, and the one question all formats share: is this file a readable gray image?

`read` looks at the first bytes of a file, never at its suffix, and gives a 2-D float32 image in [0, 1] or says in one
word why not.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

    from fdamed.data.dicom.display import Gray

VERSION = 1
"""Part of the cache key and of exported models: raise it when the same file would give other bytes."""
MAX_PIXELS = 50_000_000
"""The largest detectors have about 20 megapixels; a header that claims more is a bomb or damaged."""
MAX_BYTES = 400_000_000
TAIL = 4096
COLOR_NOISE = 24
"""Largest difference between channels that JPEG's chroma rounding makes of a gray picture, out of 255."""

REASONS: dict[str, str] = {
    "MISSING": "there is no such file, or it is not a regular file",
    "PATH_OUTSIDE_ROOT": "the path leaves the data root",
    "UNREADABLE": "the file system does not let us read the file",
    "EMPTY": "the file has no bytes",
    "NOT_AN_IMAGE": "the file is neither DICOM, JPEG nor PNG",
    "NOT_A_RADIOGRAPH": "the modality is not one of those asked for",
    "NOT_CHEST": "the header names another part of the body",
    "OTHER_VIEW": "the header names a view that the model was not trained on",
    "TOO_LARGE": "more pixels or bytes than any radiograph has",
    "TRUNCATED": "the file ends before the image does",
    "WRONG_LENGTH": "the pixel data do not have the length that the header says",
    "MISMATCH": "the compressed frame and the header disagree about the image",
    "UNDECODABLE": "the decoder gave up",
    "DEFLATED": "deflated transfer syntaxes are not opened: small files can unpack to gigabytes",
    "UNSUPPORTED": "a kind of pixel or compression that radiographs do not have",
    "NO_PIXELS": "there is no pixel data",
    "MULTI_FRAME": "more than one frame",
    "COLOR": "a color picture",
    "BAD_HEADER": "a tag that the pixels depend on is missing or out of range",
    "BAD_RESCALE": "rescale slope or intercept out of any physical range",
    "BAD_WINDOW": "the window's width or function is not one that the standard allows",
    "BAD_LUT": "a look-up table's length and descriptor disagree",
    "NONFINITE": "a rescale or window value is not a finite number",
    "CONSTANT": "all pixels are equal",
    "MEMORY": "decoding needs more memory than a worker may have",
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


def kind(path: Path | str) -> str:
    """`dicom`, `jpeg` or `png` by the first bytes of the file."""
    path = Path(path)
    try:
        if not path.is_file():
            raise Unreadable("MISSING")
        with open(path, "rb") as file:
            head = file.read(132)
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        raise Unreadable("UNREADABLE", f"{REASONS['UNREADABLE']} ({type(error).__name__})") from None
    if size == 0:
        raise Unreadable("EMPTY")
    if size > MAX_BYTES:
        raise Unreadable("TOO_LARGE")
    if head[128:132] == b"DICM":
        return "dicom"
    if head[:3] == b"\xff\xd8\xff":
        return "jpeg"
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    raise Unreadable("NOT_AN_IMAGE")


def sniff(path: Path | str) -> str:
    """Look at the header only: the format, or Unreadable if the image is sure to be refused. No pixel is decoded."""
    found = kind(path)
    if found == "dicom":
        from fdamed.data.dicom.reader import sniff as sniff_dicom

        sniff_dicom(path)
    else:
        with _guard(), _open(path) as opened:
            _check_header(opened)
    return found


def read(path: Path | str) -> NDArray[np.float32]:
    """(rows, columns) float32 in [0, 1], bright = dense, of a DICOM, JPEG or PNG file."""
    return read_gray(path).unit()


def read_gray(path: Path | str) -> Gray:
    """The same, with the last multiplication left to the caller."""
    if kind(path) == "dicom":
        from fdamed.data.dicom.reader import read_gray as read_dicom

        return read_dicom(path)
    return read_picture(path)


def read_picture(path: Path | str) -> Gray:
    """A gray JPEG or PNG of 8 or 16 bit."""
    end = {"jpeg": b"\xff\xd9", "png": b"IEND"}.get(kind(path))
    if end is None:
        raise Unreadable("NOT_AN_IMAGE")
    with open(path, "rb") as file:
        file.seek(max(0, Path(path).stat().st_size - TAIL))
        if end not in file.read():
            raise Unreadable("TRUNCATED")
    with _guard(), _open(path) as opened:
        _check_header(opened)
        opened.load()
        stored = _gray(opened)
    from fdamed.data.dicom.display import Display, Gray, to_gray

    if stored.dtype == np.uint8:
        if stored.min() == stored.max():
            raise Unreadable("CONSTANT")
        return Gray(stored.astype(np.float32), 1 / 255)
    # 16-bit PNGs of radiographs hold 10 to 16 significant bits, and nothing in the file says how many.
    return to_gray(stored, Display())


class _guard:
    """Turn whatever Pillow raises into Unreadable, and its bomb warning into an error."""

    def __enter__(self) -> None:
        self.warnings = warnings.catch_warnings()
        self.warnings.__enter__()
        warnings.simplefilter("ignore")
        from PIL import Image

        warnings.simplefilter("error", Image.DecompressionBombWarning)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.warnings.__exit__(None, None, None)
        if error is None or isinstance(error, (Unreadable, MemoryError)) or not isinstance(error, Exception):
            return
        name = type(error).__name__
        if name in ("DecompressionBombWarning", "DecompressionBombError"):
            raise Unreadable("TOO_LARGE") from None
        if isinstance(error, OSError) and "truncated" in str(error).lower():
            raise Unreadable("TRUNCATED") from None
        raise Unreadable("UNDECODABLE", f"{REASONS['UNDECODABLE']} ({name})") from None


def _open(path: Path | str) -> Image.Image:
    from PIL import Image

    return Image.open(path, formats=("JPEG", "PNG"))


def _check_header(opened: Image.Image) -> None:
    if opened.width * opened.height > MAX_PIXELS:
        raise Unreadable("TOO_LARGE")
    if getattr(opened, "n_frames", 1) != 1 and opened.format == "PNG":
        raise Unreadable("MULTI_FRAME")
    if opened.mode not in ("L", "LA", "RGB", "RGBA", "P", "I;16", "I;16B", "I"):
        raise Unreadable("UNSUPPORTED")


def _gray(opened: Image.Image) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """The one gray channel, as stored."""
    mode = opened.mode
    if mode == "L":
        return np.asarray(opened)
    if mode == "LA":
        return np.asarray(opened)[..., 0]
    if mode in ("I;16", "I;16B", "I"):
        wide = np.asarray(opened)
        if wide.min() < 0 or wide.max() > 65535:
            raise Unreadable("UNSUPPORTED")
        return wide.astype(np.uint16)
    channels = np.asarray(opened.convert("RGB"))
    red, green, blue = (channels[..., c] for c in range(3))
    spread = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    if np.percentile(spread, 99) > COLOR_NOISE:
        raise Unreadable("COLOR")
    return np.ascontiguousarray(green)
