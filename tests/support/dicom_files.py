"""DICOM files made for tests: a gray radiograph-like image in any transfer syntax that can be written here."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    UID,
    ExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    RLELossless,
    generate_uid,
)

from fdamed.data.dicom.reader import read_gray as read_dicom
from fdamed.data.image import Gray, read_gray

CR_STORAGE = "1.2.840.10008.5.1.4.1.1.1"


def unit(gray: Gray) -> NDArray[np.float32]:
    """(rows, columns) float32 in [0, 1]."""
    out = gray.values * np.float32(gray.scale)
    out += np.float32(gray.offset)
    return np.clip(out, 0, 1, out=out)


def read(path: Path | str) -> NDArray[np.float32]:
    """An image file as gray values in [0, 1]."""
    return unit(read_gray(path))


def read_pixels(path: Path | str, **options: Any) -> NDArray[np.float32]:
    """A DICOM file as gray values in [0, 1]."""
    return unit(read_dicom(path, **options))


def thorax(rows: int = 96, columns: int = 80, bits: int = 12) -> NDArray[np.uint16]:
    """A smooth bright body with two dark lungs and a little texture, over most of the range of `bits`."""
    y, x = np.mgrid[0:rows, 0:columns].astype(np.float64)
    y, x = y / rows - 0.5, x / columns - 0.5
    body = np.clip(1.2 - 2 * (x**2 + y**2), 0, 1)
    lungs = np.exp(-(((np.abs(x) - 0.2) / 0.1) ** 2 + (y / 0.25) ** 2))
    texture = 0.02 * np.random.default_rng(0).standard_normal((rows, columns))
    return np.clip((0.9 * body - 0.6 * lungs + texture) * (2**bits - 1), 0, 2**bits - 1).astype(np.uint16)


def dataset(pixels: NDArray[Any], bits: int = 12, syntax: str = ExplicitVRLittleEndian, **tags: Any) -> FileDataset:
    """A CR chest image; `tags` are set last and may overwrite anything (None deletes)."""
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = UID(syntax)
    meta.MediaStorageSOPClassUID = CR_STORAGE
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=["test"])
    implicit, little = syntax == "1.2.840.10008.1.2", syntax != "1.2.840.10008.1.2.2"
    ds = FileDataset("", {}, b"\0" * 128, meta, is_implicit_VR=implicit, is_little_endian=little)
    ds.SOPClassUID, ds.SOPInstanceUID = CR_STORAGE, meta.MediaStorageSOPInstanceUID
    ds.Modality, ds.BodyPartExamined, ds.ViewPosition = "CR", "CHEST", "PA"
    ds.PatientName, ds.PatientID, ds.PatientBirthDate = "Doe^Jane", "CANARY-4711", "19500101"
    ds.PatientSex, ds.PatientAge = "F", "062Y"
    ds.StudyInstanceUID, ds.SeriesInstanceUID = "1.2.3", "1.2.3.4"
    ds.SamplesPerPixel, ds.PhotometricInterpretation = 1, "MONOCHROME2"
    ds.Rows, ds.Columns = pixels.shape
    ds.BitsAllocated = pixels.dtype.itemsize * 8
    ds.BitsStored, ds.HighBit = bits, bits - 1
    ds.PixelRepresentation = int(pixels.dtype.kind == "i")
    order = ">" if syntax == "1.2.840.10008.1.2.2" else "<"
    ds.PixelData = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes() + b"\0" * (pixels.nbytes % 2)
    ds["PixelData"].VR = "OB" if ds.BitsAllocated == 8 and syntax != "1.2.840.10008.1.2" else "OW"
    for name, value in tags.items():
        if value is None:
            delattr(ds, name)
        else:
            setattr(ds, name, value)
    return ds


def write(path: Path, ds: FileDataset) -> Path:
    from pydicom.dataset import validate_file_meta

    validate_file_meta(ds.file_meta, enforce_standard=True)
    ds.save_as(path, enforce_file_format=True)
    return path


def lut(values: Any, first: int, bits: int, count: int | None = None) -> Dataset:
    """One item of a modality or VOI LUT sequence; bytes as `values` are written as they are, as OW."""
    item = Dataset()
    count = (len(values) if count is None else count) % 65536
    item.add_new("LUTDescriptor", "SS" if first < 0 else "US", [count, first, bits])
    item.add_new("LUTData", "OW" if isinstance(values, bytes) else "US", values)
    return item


def compressed(pixels: NDArray[Any], syntax: str, bits: int = 12, **tags: Any) -> FileDataset:
    """The same image as RLE, JPEG 2000, JPEG baseline (8 bit) or JPEG lossless (by GDCM)."""
    ds = dataset(pixels, bits, **tags)
    if syntax in (RLELossless, JPEG2000Lossless):
        ds.compress(syntax, generate_instance_uid=False)
    elif syntax == JPEGBaseline8Bit:
        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
        ds.PixelData = encapsulate([buffer.getvalue()])
        ds["PixelData"].is_undefined_length = True
        ds["PixelData"].VR = "OB"
        ds.file_meta.TransferSyntaxUID = UID(syntax)
    elif syntax == JPEGLosslessSV1:
        ds.PixelData = encapsulate([_by_gdcm(ds)])
        ds["PixelData"].is_undefined_length = True
        ds["PixelData"].VR = "OB"
        ds.file_meta.TransferSyntaxUID = UID(syntax)
    else:
        raise ValueError(syntax)
    return ds


def _by_gdcm(ds: FileDataset) -> bytes:
    """One frame as JPEG lossless, first-order prediction."""
    import tempfile

    import gdcm

    with tempfile.TemporaryDirectory() as folder:
        raw, packed = f"{folder}/raw.dcm", f"{folder}/packed.dcm"
        write(Path(raw), ds)
        reader = gdcm.ImageReader()
        reader.SetFileName(raw)
        reader.Read()
        change = gdcm.ImageChangeTransferSyntax()
        change.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.JPEGLosslessProcess14_1))
        change.SetInput(reader.GetImage())
        change.Change()
        writer = gdcm.ImageWriter()
        writer.SetFileName(packed)
        writer.SetFile(reader.GetFile())
        writer.SetImage(change.GetOutput())
        writer.Write()
        from pydicom import dcmread
        from pydicom.encaps import generate_frames

        return next(generate_frames(dcmread(packed).PixelData, number_of_frames=1))
