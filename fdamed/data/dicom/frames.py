"""From a DICOM file's pixel bytes to stored integers; a compressed frame is looked at before a C decoder sees it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdamed.data.image import MAX_PIXELS, Unreadable

NATIVE = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2")
BIG_ENDIAN = "1.2.840.10008.1.2.2"
DEFLATED = ("1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.4.95", "1.2.840.10008.1.2.8.1")
JPEG = "1.2.840.10008.1.2.4."
RLE = "1.2.840.10008.1.2.5"

PLUGINS: dict[str, str] = {
    JPEG + "50": "pillow",
    JPEG + "51": "gdcm",
    JPEG + "57": "gdcm",
    JPEG + "70": "gdcm",
    JPEG + "80": "gdcm",
    JPEG + "81": "gdcm",
    JPEG + "90": "pylibjpeg",
    JPEG + "91": "pylibjpeg",
    JPEG + "201": "pylibjpeg",
    JPEG + "202": "pylibjpeg",
    JPEG + "203": "pylibjpeg",
    RLE: "pydicom",
}
"""Transfer syntax -> decoder; GDCM only where no other free decoder exists, for it is the one that has crashed most."""


@dataclass(frozen=True)
class Shape:
    """What the header says about the stored pixels."""

    rows: int
    columns: int
    allocated: int
    stored: int
    high_bit: int
    signed: bool

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise Unreadable("BAD_HEADER")
        if self.rows * self.columns > MAX_PIXELS:
            raise Unreadable("TOO_LARGE")
        if self.allocated not in (8, 16):
            raise Unreadable("UNSUPPORTED")
        if not 1 <= self.stored <= self.high_bit + 1 <= self.allocated:
            raise Unreadable("BAD_HEADER")


def native(data: bytes, shape: Shape, syntax: str, words: bool) -> NDArray[Any]:
    """Uncompressed pixels; `words`: the element is OW, so 8-bit pixels of big-endian files stand in swapped pairs."""
    expected = shape.rows * shape.columns * shape.allocated // 8
    if len(data) < expected:
        raise Unreadable("TRUNCATED")
    if len(data) > expected + expected % 2:
        raise Unreadable("WRONG_LENGTH")
    order = ">" if syntax == BIG_ENDIAN else "<"
    if shape.allocated == 8 and words and syntax == BIG_ENDIAN:
        data = np.frombuffer(data, dtype="u2").byteswap().tobytes()
    dtype = np.dtype(f"{order}{'i' if shape.signed else 'u'}{shape.allocated // 8}")
    pixels = np.frombuffer(data, dtype=dtype, count=shape.rows * shape.columns)
    return pixels.astype(dtype.newbyteorder("="), copy=False).reshape(shape.rows, shape.columns)


def compressed(dataset: Any, shape: Shape, syntax: str) -> NDArray[Any]:
    """One encapsulated frame through the decoder of its transfer syntax."""
    from pydicom.encaps import generate_frames
    from pydicom.pixels import get_decoder

    frames = generate_frames(dataset.PixelData, number_of_frames=1)
    frame = next(frames, None)
    if not frame:
        raise Unreadable("NO_PIXELS")
    plugin = PLUGINS[syntax]
    if syntax == RLE:
        return _rle(frame, shape)
    rows, columns, components, bits = declared(frame)
    if (rows, columns, components) != (shape.rows, shape.columns, 1) or bits > shape.allocated:
        raise Unreadable("MISMATCH")
    if syntax == JPEG + "51":
        if bits != 8:
            raise Unreadable("UNSUPPORTED", "no free decoder reads 12-bit JPEG Extended")
        plugin = "pillow"
    if plugin == "pillow" and not frame.rstrip(b"\x00").endswith(b"\xff\xd9"):
        raise Unreadable("TRUNCATED")
    pixels, _ = get_decoder(syntax).as_array(dataset, index=0, raw=True, decoding_plugin=plugin)
    if pixels.shape != (shape.rows, shape.columns):
        raise Unreadable("MISMATCH")
    return np.asarray(pixels)


def declared(frame: bytes) -> tuple[int, int, int, int]:
    """Rows, columns, components and bits that a JPEG, JPEG-LS or JPEG 2000 frame says of itself."""
    if frame[:4] == b"\xff\x4f\xff\x51":
        return _siz(frame)
    if frame[:2] == b"\xff\xd8":
        return _sof(frame)
    if frame[4:8] == b"jP  ":
        at = frame.find(b"\xff\x4f\xff\x51")
        if at > 0:
            return _siz(frame[at : at + 64])
    raise Unreadable("UNDECODABLE", "the compressed frame does not begin as its transfer syntax says")


def _siz(frame: bytes) -> tuple[int, int, int, int]:
    if len(frame) < 43:
        raise Unreadable("TRUNCATED")
    x, y, x0, y0 = struct.unpack(">4I", frame[8:24])
    (components,) = struct.unpack(">H", frame[40:42])
    return y - y0, x - x0, components, (frame[42] & 0x7F) + 1


def _sof(frame: bytes) -> tuple[int, int, int, int]:
    """Walk JPEG's marker segments up to the frame header."""
    at = 2
    while at + 9 < len(frame):
        if frame[at] != 0xFF:
            raise Unreadable("UNDECODABLE", "damaged marker in the compressed frame")
        marker = frame[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)) or marker == 0xF7:
            bits, rows, columns, components = struct.unpack(">BHHB", frame[at + 4 : at + 10])
            return rows, columns, components, bits
        (length,) = struct.unpack(">H", frame[at + 2 : at + 4])
        at += 2 + length
    raise Unreadable("TRUNCATED")


def _rle(frame: bytes, shape: Shape) -> NDArray[Any]:
    """PS3.5 annex G: one segment for each byte of a pixel, most significant first."""
    planes = shape.allocated // 8
    if len(frame) < 64:
        raise Unreadable("TRUNCATED")
    count, *offsets = struct.unpack("<16I", frame[:64])
    if count != planes:
        raise Unreadable("MISMATCH")
    ends = [*offsets[1:planes], len(frame)]
    size = shape.rows * shape.columns
    out = np.empty((size, planes), dtype=np.uint8)
    for plane, (begin, end) in enumerate(zip(offsets[:planes], ends, strict=True)):
        if not 64 <= begin <= end <= len(frame):
            raise Unreadable("TRUNCATED")
        out[:, planes - 1 - plane] = np.frombuffer(_unpack(frame[begin:end], size), dtype=np.uint8)
    pixels = out.view("<i2" if shape.signed else "<u2") if planes == 2 else out.view("i1" if shape.signed else "u1")
    return pixels.reshape(shape.rows, shape.columns)


def _unpack(packed: bytes, size: int) -> bytes:
    """PackBits of one segment; stops at `size` bytes, so a bomb cannot unpack to more."""
    pieces: list[bytes] = []
    at = have = 0
    end = len(packed)
    while have < size:
        if at + 1 >= end:
            raise Unreadable("TRUNCATED")
        head = packed[at]
        if head < 128:
            piece = packed[at + 1 : at + 2 + head]
            at += 2 + head
        elif head > 128:
            piece = packed[at + 1 : at + 2] * (257 - head)
            at += 2
        else:
            at += 1
            continue
        pieces.append(piece)
        have += len(piece)
    return b"".join(pieces)[:size]
