"""One phantom image as a DICOM file, with the variety that archives have: inversion, bit depth, windows, syntaxes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import (
    ComputedRadiographyImageStorage,
    DigitalXRayImageStorageForPresentation,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    RLELossless,
)

from fdamed.core.rng import stream
from fdamed.data.phantom.population import Cohort
from fdamed.data.phantom.render import Pixels

BITS = (12, 12, 12, 12, 14, 10)
SYNTAXES = (ExplicitVRLittleEndian, ImplicitVRLittleEndian, JPEG2000Lossless, RLELossless)
SYNTAX_SHARES = (0.80, 0.08, 0.08, 0.04)
HALVED = 32
"""JPEG 2000 halves an image five times: a smaller one stays uncompressed."""


def uid(*names: object) -> str:
    """A UID below 2.25 that is always the same for the same names."""
    return f"2.25.{int.from_bytes(hashlib.sha256(repr(names).encode()).digest()[:15], 'big')}"


def uids(cohort: Cohort, row: int) -> tuple[str, str, str]:
    """The UIDs of an image's study, series and instance."""
    study = uid(cohort.seed, "study", int(cohort.images["study_index"][row]))
    return study, uid(cohort.seed, "series", row), uid(cohort.seed, "image", row)


def save(path: Path, cohort: Cohort, row: int, pixels: Pixels, inverted: float, header: Mapping[str, str]) -> None:
    """Write 12-bit pixels (white = dense); `inverted` is the probability of MONOCHROME1."""
    rng = stream(cohort.seed, "dicom", row).numpy
    study, series, instance = uids(cohort, row)
    modality = header["Modality"]
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = (
        ComputedRadiographyImageStorage if modality == "CR" else DigitalXRayImageStorageForPresentation
    )
    meta.MediaStorageSOPInstanceUID = instance
    meta.ImplementationClassUID = "2.25.4711"
    syntax = SYNTAXES[int(rng.choice(len(SYNTAXES), p=SYNTAX_SHARES))]
    meta.TransferSyntaxUID = syntax if syntax.is_implicit_VR or not syntax.is_compressed else ExplicitVRLittleEndian
    image = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    image.SOPClassUID = meta.MediaStorageSOPClassUID
    image.StudyInstanceUID, image.SeriesInstanceUID, image.SOPInstanceUID = study, series, instance
    image.PatientName = ""
    image.PatientSex = "M" if cohort.images["male"][row] else "F"
    image.PatientAge = f"{cohort.images['age'][row]:03d}Y"
    for keyword, value in header.items():
        setattr(image, keyword, value)
    image.BodyPartExamined = "CHEST" if rng.random() < 0.9 else ""
    burned = rng.random()
    if burned < 0.6:
        image.BurnedInAnnotation = "YES" if burned < 0.01 else "NO"
    spacing = [round(700 / max(pixels.shape) / 2, 4)] * 2
    image.ImagerPixelSpacing = spacing
    if rng.random() < 0.65:
        image.PixelSpacing = spacing
    _pixels(image, pixels, rng.random() < inverted, BITS[int(rng.integers(len(BITS)))], rng)
    if syntax == RLELossless or (syntax == JPEG2000Lossless and min(pixels.shape) >= HALVED):
        image.compress(syntax, generate_instance_uid=False)
    image.save_as(path, enforce_file_format=True)


def _pixels(image: Dataset, pixels: Pixels, inverted: bool, bits: int, rng: np.random.Generator) -> None:
    full = (1 << bits) - 1
    stored = pixels << (bits - 12) if bits > 12 else pixels >> (12 - bits)
    if inverted:
        stored = (full - stored).astype(np.uint16)
    image.Rows, image.Columns = stored.shape
    image.SamplesPerPixel = 1
    image.PhotometricInterpretation = "MONOCHROME1" if inverted else "MONOCHROME2"
    if rng.random() < 0.4:
        image.PresentationLUTShape = "INVERSE" if inverted else "IDENTITY"
    image.BitsAllocated, image.BitsStored, image.HighBit, image.PixelRepresentation = 16, bits, bits - 1, 0
    if rng.random() < 0.5:
        image.RescaleIntercept, image.RescaleSlope, image.RescaleType = "0", "1", "US"
    kind = rng.random()
    if kind < 0.45:
        image.WindowCenter, image.WindowWidth = str(full // 2), str(full)
    elif kind < 0.52:
        image.WindowCenter = [str(full // 2), str(full // 2)]
        image.WindowWidth = [str(full), str(full // 2)]
        image.WindowCenterWidthExplanation = ["NORMAL", "HARDER"]
    elif kind < 0.65:
        image.VOILUTSequence = [_table(full)]
    image.PixelData = np.ascontiguousarray(stored).astype("<u2").tobytes()
    image["PixelData"].VR = "OW"


def _table(full: int) -> Dataset:
    """A VOI table with a slight toe."""
    steps = np.linspace(0, 1, full + 1)
    table = np.rint((0.85 * steps + 0.15 * steps**2) * 4095).astype("<u2")
    item = Dataset()
    item.LUTDescriptor = [full + 1, 0, 12]
    item.LUTExplanation = "NORMAL"
    item.LUTData = table.tobytes()
    item["LUTDescriptor"].VR = "US"
    item["LUTData"].VR = "OW"
    return item
