"""The pixels of a DICOM radiograph as the standard says they are to be seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fdamed.data.dicom.display import read_display, to_gray
from fdamed.data.dicom.frames import BIG_ENDIAN, NATIVE, PLUGINS, decode, read_shape
from fdamed.data.dicom.header import MODALITIES, open_dataset, transfer_syntax
from fdamed.data.gray_image import Gray, Unreadable, decoding

PIXEL_TAGS = [
    "Modality", "BodyPartExamined", "SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "Rows",
    "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelPaddingValue",
    "PixelPaddingRangeLimit", "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "VOILUTSequence",
    "WindowCenter", "WindowWidth", "VOILUTFunction", "PixelData",
]  # fmt: skip


def read_pixels(path: Path | str, modalities: tuple[str, ...] | None = MODALITIES) -> NDArray[np.float32]:
    """(rows, columns) float32 in [0, 1] in the sense of MONOCHROME2."""
    return read_gray(path, modalities).unit()


def read_gray(path: Path | str, modalities: tuple[str, ...] | None = MODALITIES) -> Gray:
    """The pixels in the sense of MONOCHROME2, windowed."""
    with decoding():
        syntax = _decodable_syntax(path)
        dataset = open_dataset(path, PIXEL_TAGS, pixels=True)
        if not dataset.get("PixelData"):
            raise Unreadable("NO_PIXELS")
        shape = read_shape(dataset, modalities)
        display = read_display(dataset, shape, syntax == BIG_ENDIAN)
        return to_gray(decode(dataset, shape, syntax), display)


def sniff(path: Path | str) -> None:
    """Raise Unreadable if the header alone shows that the pixels will be rejected; takes any modality."""
    with decoding():
        _decodable_syntax(path)
        read_shape(open_dataset(path, PIXEL_TAGS, pixels=False), modalities=None)


def _decodable_syntax(path: Path | str) -> str:
    syntax = transfer_syntax(path)
    if syntax not in NATIVE and syntax not in PLUGINS:
        raise Unreadable("UNSUPPORTED")
    return syntax
