"""DICOM radiographs: an allow-list of header tags, and pixels as the standard says they are to be seen.

Nothing outside the allow-list is parsed, kept or quoted; every fault of a file becomes `Unreadable` with a code.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdamed.data.dicom import frames
from fdamed.data.dicom.display import Display, Gray, Lut, Window, significant, to_gray
from fdamed.data.dicom.header import (
    age_of,
    read_decimal,
    read_integer,
    read_lut,
    read_padding,
    read_text,
    read_view_code,
    view_of,
)
from fdamed.data.image import REASONS, Unreadable, kind

MODALITIES = ("CR", "DX")
CHEST = ("CHEST", "THORAX", "TORAX", "LUNG")
HEADER = [
    *(
        "Modality",
        "BodyPartExamined",
        "ViewPosition",
        "ViewCodeSequence",
        "PatientSex",
        "PatientAge",
        "Rows",
        "Columns",
    ),
    *("Manufacturer", "ManufacturerModelName", "BurnedInAnnotation", "PatientID", "StudyInstanceUID"),
    "SeriesInstanceUID",
]
PIXELS = [
    *("Modality", "BodyPartExamined", "SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "Rows"),
    *("Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelPaddingValue"),
    *("PixelPaddingRangeLimit", "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "VOILUTSequence"),
    *("WindowCenter", "WindowWidth", "VOILUTFunction", "PixelData"),
]

# pydicom's messages quote header values; they must not travel up to a handler that writes them down.
logging.getLogger("pydicom").propagate = False


@dataclass(frozen=True)
class Header:
    """What fdamed may know of a file besides its pixels. The last three are raw identifiers: hash them at once."""

    modality: str | None
    body_part: str | None
    view_position: str | None
    view: str | None
    projection: str | None
    sex: str | None
    age: float | None
    rows: int | None
    columns: int | None
    manufacturer: str | None
    model: str | None
    burned_in: bool | None
    patient_id: str | None
    study_uid: str | None
    series_uid: str | None


def read_header(path: Path | str, modalities: tuple[str, ...] | None = MODALITIES) -> Header:
    """The allow-list of a file's tags; refuses what is not a chest radiograph (`modalities=None`: takes anything)."""
    with _guard():
        _syntax(path)
        dataset = _dataset(path, HEADER, pixels=False)
        position = read_text(dataset, "ViewPosition")
        view, projection = view_of(position or read_view_code(dataset))
        sex = read_text(dataset, "PatientSex")
        header = Header(
            modality=read_text(dataset, "Modality"),
            body_part=read_text(dataset, "BodyPartExamined"),
            view_position=position,
            view=view,
            projection=projection,
            sex=sex if sex in ("F", "M") else None,
            age=age_of(read_text(dataset, "PatientAge")),
            rows=read_integer(dataset, "Rows"),
            columns=read_integer(dataset, "Columns"),
            manufacturer=read_text(dataset, "Manufacturer"),
            model=read_text(dataset, "ManufacturerModelName"),
            burned_in={"YES": True, "NO": False}.get((read_text(dataset, "BurnedInAnnotation") or "").upper()),
            patient_id=read_text(dataset, "PatientID"),
            study_uid=read_text(dataset, "StudyInstanceUID"),
            series_uid=read_text(dataset, "SeriesInstanceUID"),
        )
        _check_radiograph(header.modality, header.body_part, modalities)
        return header


def read_pixels(path: Path | str, modalities: tuple[str, ...] | None = MODALITIES) -> NDArray[np.float32]:
    """(rows, columns) float32 in [0, 1] in the sense of MONOCHROME2."""
    return read_gray(path, modalities).unit()


def read_gray(path: Path | str, modalities: tuple[str, ...] | None = MODALITIES) -> Gray:
    """The pixels in the sense of MONOCHROME2, windowed."""
    with _guard():
        syntax = _syntax(path)
        dataset = _dataset(path, PIXELS, pixels=True)
        if "PixelData" not in dataset:
            raise Unreadable("NO_PIXELS")
        shape, photometric = _shape(dataset, modalities)
        display = _display(dataset, shape, syntax, photometric == "MONOCHROME1")
        if syntax in frames.NATIVE:
            element = dataset["PixelData"]
            raw = frames.native(element.value, shape, syntax, words=element.VR == "OW")
            pixels = significant(raw, shape.stored, shape.high_bit, shape.signed)
        else:
            raw = frames.compressed(dataset, shape, syntax)
            pixels = significant(raw, shape.stored, shape.stored - 1, shape.signed)
        return to_gray(pixels, display)


def sniff(path: Path | str) -> None:
    """Raise Unreadable if the header already shows that the pixels will be refused; whatever the modality."""
    with _guard():
        _syntax(path)
        _shape(_dataset(path, PIXELS, pixels=False), modalities=None)


@contextmanager
def _guard() -> Iterator[None]:
    """Whatever goes wrong inside a file is that file's fault: pydicom raises nine classes and RecursionError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (Unreadable, MemoryError):
            raise
        except Exception as error:
            reason = "TRUNCATED" if isinstance(error, EOFError) else "UNDECODABLE"
            raise Unreadable(reason, f"{REASONS[reason]} ({type(error).__name__})") from None


def _syntax(path: Path | str) -> str:
    """Transfer syntax from the file meta alone: a deflated data set would be unpacked just by being opened."""
    from pydicom.filereader import read_file_meta_info

    if kind(path) != "dicom":
        raise Unreadable("NOT_AN_IMAGE")
    syntax = str(read_file_meta_info(path).get("TransferSyntaxUID", "")).strip("\x00 ")
    if syntax in frames.DEFLATED:
        raise Unreadable("DEFLATED")
    if syntax not in frames.NATIVE and syntax not in frames.PLUGINS:
        raise Unreadable("UNSUPPORTED" if syntax else "BAD_HEADER")
    return syntax


def _dataset(path: Path | str, tags: list[str], pixels: bool) -> Any:
    from pydicom import dcmread

    return dcmread(path, specific_tags=list(tags), stop_before_pixels=not pixels)


def _shape(dataset: Any, modalities: tuple[str, ...] | None) -> tuple[frames.Shape, str]:
    _check_radiograph(read_text(dataset, "Modality"), read_text(dataset, "BodyPartExamined"), modalities)
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
    return frames.Shape(rows, columns, allocated, stored, stored - 1 if high is None else high, signed), photometric


def _check_radiograph(modality: str | None, body_part: str | None, modalities: tuple[str, ...] | None) -> None:
    if modalities is None:
        return
    if modality and modality.upper() not in modalities:
        raise Unreadable("NOT_A_RADIOGRAPH")
    if body_part and not any(word in body_part.upper() for word in CHEST):
        raise Unreadable("NOT_CHEST")


def _display(dataset: Any, shape: frames.Shape, syntax: str, invert: bool) -> Display:
    big = syntax == frames.BIG_ENDIAN
    slope, intercept = read_decimal(dataset, "RescaleSlope"), read_decimal(dataset, "RescaleIntercept")
    modality = read_lut(dataset, "ModalityLUTSequence", shape.signed, big)
    voi: Lut | Window | None = read_lut(dataset, "VOILUTSequence", shape.signed or (intercept or 0) < 0, big)
    if voi is None:
        center, width = read_decimal(dataset, "WindowCenter"), read_decimal(dataset, "WindowWidth")
        if center is not None and width is not None:
            voi = Window(center, width, (read_text(dataset, "VOILUTFunction") or "LINEAR").upper())
    pad = read_padding(dataset, "PixelPaddingValue", shape.signed)
    limit = read_padding(dataset, "PixelPaddingRangeLimit", shape.signed)
    padding = (
        None if pad is None else (min(pad, pad if limit is None else limit), max(pad, pad if limit is None else limit))
    )
    return Display(1.0 if slope is None else slope, intercept or 0.0, modality, voi, padding, invert)
