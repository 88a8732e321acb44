"""The stored integers of a DICOM file's one frame, decoded by pydicom and its plug-ins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdamed.data.dicom.header import check_radiograph, read_integer, read_text
from fdamed.data.gray_image import MAX_PIXELS, Unreadable

NATIVE = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2")
BIG_ENDIAN = "1.2.840.10008.1.2.2"
PLUGINS = {
    "1.2.840.10008.1.2.5": "pydicom",
    **{f"1.2.840.10008.1.2.4.{n}": "pillow" for n in (50, 51)},
    **{f"1.2.840.10008.1.2.4.{n}": "gdcm" for n in (57, 70, 80, 81)},
    **{f"1.2.840.10008.1.2.4.{n}": "pylibjpeg" for n in (90, 91, 201, 202, 203)},
}
"""Compressed transfer syntax -> decoder; GDCM only where no other free one exists, for it has crashed most."""


@dataclass(frozen=True)
class Shape:
    """What the header says about the stored pixels; checked before anything is decoded."""

    rows: int
    columns: int
    allocated: int
    stored: int
    high_bit: int
    signed: bool
    inverted: bool

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise Unreadable("BAD_HEADER")
        if self.rows * self.columns > MAX_PIXELS:
            raise Unreadable("TOO_LARGE")
        if self.allocated not in (8, 16):
            raise Unreadable("UNSUPPORTED")
        if not 1 <= self.stored <= self.high_bit + 1 <= self.allocated:
            raise Unreadable("BAD_HEADER")


def read_shape(dataset: Any, modalities: tuple[str, ...] | None) -> Shape:
    """The shape of a gray chest radiograph of one frame."""
    check_radiograph(dataset, modalities)
    if (read_integer(dataset, "NumberOfFrames") or 1) != 1:
        raise Unreadable("MULTI_FRAME")
    photometric = read_text(dataset, "PhotometricInterpretation")
    if (read_integer(dataset, "SamplesPerPixel") or 1) != 1 or photometric not in ("MONOCHROME1", "MONOCHROME2"):
        raise Unreadable("COLOR" if photometric else "BAD_HEADER")
    rows, columns, allocated = (read_integer(dataset, t) for t in ("Rows", "Columns", "BitsAllocated"))
    if rows is None or columns is None or allocated is None:
        raise Unreadable("BAD_HEADER")
    stored = read_integer(dataset, "BitsStored") or allocated
    high = read_integer(dataset, "HighBit")
    signed = read_integer(dataset, "PixelRepresentation") == 1
    inverted = photometric == "MONOCHROME1"
    return Shape(rows, columns, allocated, stored, stored - 1 if high is None else high, signed, inverted)


def decode(dataset: Any, shape: Shape, syntax: str) -> NDArray[Any]:
    """(rows, columns) of stored values. A bomb or a crash inside a plug-in costs the worker process, not the run."""
    from pydicom.pixels import get_decoder

    element = dataset["PixelData"]
    if syntax in NATIVE:
        expected = shape.rows * shape.columns * shape.allocated // 8
        if len(element.value) != expected + expected % 2 and len(element.value) != expected:
            raise Unreadable("TRUNCATED" if len(element.value) < expected else "WRONG_LENGTH")
    try:
        pixels, _ = get_decoder(syntax).as_array(
            element.value,
            index=0,
            raw=True,
            decoding_plugin=PLUGINS.get(syntax, ""),
            rows=shape.rows,
            columns=shape.columns,
            number_of_frames=1,
            samples_per_pixel=1,
            bits_allocated=shape.allocated,
            bits_stored=shape.stored,
            pixel_representation=int(shape.signed),
            photometric_interpretation="MONOCHROME2",
            pixel_keyword="PixelData",
            pixel_vr=element.VR,
            correct_unused_bits=False,
        )
    except ValueError:  # the decoded frame does not fill the header's shape; a decoder that fails raises RuntimeError
        raise Unreadable("MISMATCH") from None
    # Drop what stands outside the BitsStored bits that end at HighBit; in the pixels' own type the sign comes along.
    width, high = pixels.dtype.itemsize * 8, shape.high_bit if syntax in NATIVE else shape.stored - 1
    if shape.stored < width:
        pixels = (pixels << (width - high - 1)) >> (width - shape.stored)
    return np.asarray(pixels)
