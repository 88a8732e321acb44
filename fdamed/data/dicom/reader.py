"""The pixels of a DICOM radiograph as the standard says they are to be seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdamed.data.dicom.display import read_display, to_gray
from fdamed.data.dicom.header import MODALITIES, check_radiograph, read_integer, read_text, transfer_syntax
from fdamed.data.image import MAX_PIXELS, Gray, Unreadable, decoding

PIXEL_TAGS = [
    "Modality", "BodyPartExamined", "SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "Rows",
    "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelPaddingValue",
    "PixelPaddingRangeLimit", "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "VOILUTSequence",
    "WindowCenter", "WindowWidth", "VOILUTFunction", "PixelData",
]  # fmt: skip
BIG_ENDIAN = "1.2.840.10008.1.2.2"
NATIVE = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", BIG_ENDIAN)
PLUGINS = {
    "1.2.840.10008.1.2.5": "pydicom",
    **{f"1.2.840.10008.1.2.4.{n}": "pillow" for n in (50, 51)},
    **{f"1.2.840.10008.1.2.4.{n}": "gdcm" for n in (57, 70, 80, 81)},
    **{f"1.2.840.10008.1.2.4.{n}": "pylibjpeg" for n in (90, 91, 201, 202, 203)},
}
"""Compressed transfer syntax -> decoder; GDCM only where no other free one exists, because it has crashed most."""


def read_gray(path: Path | str, modalities: tuple[str, ...] | None = MODALITIES) -> Gray:
    """The pixels in the sense of MONOCHROME2, windowed; `modalities=None` accepts any."""
    from pydicom import dcmread

    with decoding():
        syntax = transfer_syntax(path)
        if syntax not in NATIVE and syntax not in PLUGINS:
            raise Unreadable("UNSUPPORTED")
        dataset = dcmread(path, specific_tags=list(PIXEL_TAGS))
        if not dataset.get("PixelData"):
            raise Unreadable("NO_PIXELS")
        check_radiograph(dataset, modalities)
        shape = _read_shape(dataset)
        display = read_display(dataset, bool(shape["pixel_representation"]), syntax == BIG_ENDIAN)
        return to_gray(_decode(dataset, shape, syntax), display)


def _read_shape(dataset: Any) -> dict[str, int]:
    """What the header says about the stored pixels, in pydicom's words; only one gray frame is accepted."""
    if (read_integer(dataset, "NumberOfFrames") or 1) != 1:
        raise Unreadable("MULTI_FRAME")
    photometric = read_text(dataset, "PhotometricInterpretation")
    if (read_integer(dataset, "SamplesPerPixel") or 1) != 1 or photometric not in ("MONOCHROME1", "MONOCHROME2"):
        raise Unreadable("COLOR" if photometric else "BAD_HEADER")
    rows, columns, allocated = (read_integer(dataset, t) or 0 for t in ("Rows", "Columns", "BitsAllocated"))
    if min(rows, columns, allocated) < 1:
        raise Unreadable("BAD_HEADER")
    if rows * columns > MAX_PIXELS:
        raise Unreadable("TOO_LARGE")
    if allocated not in (8, 16):
        raise Unreadable("UNSUPPORTED")
    stored = read_integer(dataset, "BitsStored") or allocated
    if not 1 <= stored <= _high_bit(dataset, stored) + 1 <= allocated:
        raise Unreadable("BAD_HEADER")
    signed = int(read_integer(dataset, "PixelRepresentation") == 1)
    return {
        "rows": rows, "columns": columns, "bits_allocated": allocated, "bits_stored": stored,
        "pixel_representation": signed,
    }  # fmt: skip


def _high_bit(dataset: Any, stored: int) -> int:
    high = read_integer(dataset, "HighBit")
    return stored - 1 if high is None else high


def _decode(dataset: Any, shape: dict[str, int], syntax: str) -> NDArray[Any]:
    """(rows, columns) of stored values. A bomb or a crash inside a plug-in costs the worker process, not the run."""
    from pydicom.pixels import get_decoder

    element, stored = dataset["PixelData"], shape["bits_stored"]
    if syntax in NATIVE:
        expected = shape["rows"] * shape["columns"] * shape["bits_allocated"] // 8
        if len(element.value) not in (expected, expected + expected % 2):
            raise Unreadable("TRUNCATED" if len(element.value) < expected else "WRONG_LENGTH")
    try:
        pixels, _ = get_decoder(syntax).as_array(
            element.value,
            index=0,
            raw=True,
            decoding_plugin=PLUGINS.get(syntax, ""),
            number_of_frames=1,
            samples_per_pixel=1,
            photometric_interpretation="MONOCHROME2",
            pixel_keyword="PixelData",
            pixel_vr=element.VR,
            correct_unused_bits=False,
            **shape,
        )
    except ValueError:  # the decoded frame does not fill the header's shape; a decoder that fails raises RuntimeError
        raise Unreadable("MISMATCH") from None
    # Drop what stands outside the BitsStored bits that end at HighBit; in the pixels' own type the sign comes along.
    width, high = pixels.dtype.itemsize * 8, _high_bit(dataset, stored) if syntax in NATIVE else stored - 1
    if stored < width:
        pixels = (pixels << (width - high - 1)) >> (width - stored)
    return np.asarray(pixels)
