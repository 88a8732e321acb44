"""DICOM radiographs: an allow-list of header tags, and pixels as the standard says they are to be seen.

Nothing outside the allow-list is parsed, kept or quoted; every fault of a file becomes `Unreadable` with a code.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdamed.data import frames
from fdamed.data.image import REASONS, Unreadable, kind
from fdamed.data.manifest import OLDEST
from fdamed.data.pixels import Display, Lut, Window, significant, to_unit

MODALITIES = ("CR", "DX")
CHEST = ("CHEST", "THORAX", "TORAX", "LUNG")
HEADER = ["Modality", "BodyPartExamined", "ViewPosition", "ViewCodeSequence", "PatientSex", "PatientAge", "Rows", "Columns", "Manufacturer", "ManufacturerModelName", "BurnedInAnnotation", "PatientID", "StudyInstanceUID", "SeriesInstanceUID"]
PIXELS = ["Modality", "BodyPartExamined", "SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelPaddingValue", "PixelPaddingRangeLimit", "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "VOILUTSequence", "WindowCenter", "WindowWidth", "VOILUTFunction", "PixelData"]
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
"""Decimal string of the standard; Python's float would also take `nan`, `inf` and `1_0`."""

FRONTAL = {"PA": "PA", "POSTEROANTERIOR": "PA", "AP": "AP", "ANTEROPOSTERIOR": "AP"}
LATERAL = {"LL": "LL", "LLAT": "LL", "RL": "RL", "RLAT": "RL", "LATERAL": "LATERAL", "LAT": "LATERAL"}
OBLIQUE = ("LAO", "RAO", "LPO", "RPO", "LLO", "RLO")

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
        position = _text(dataset, "ViewPosition")
        view, projection = view_of(position or _view_code(dataset))
        sex = _text(dataset, "PatientSex")
        header = Header(
            modality=_text(dataset, "Modality"),
            body_part=_text(dataset, "BodyPartExamined"),
            view_position=position,
            view=view,
            projection=projection,
            sex=sex if sex in ("F", "M") else None,
            age=age_of(_text(dataset, "PatientAge")),
            rows=_integer(dataset, "Rows"),
            columns=_integer(dataset, "Columns"),
            manufacturer=_text(dataset, "Manufacturer"),
            model=_text(dataset, "ManufacturerModelName"),
            burned_in={"YES": True, "NO": False}.get((_text(dataset, "BurnedInAnnotation") or "").upper()),
            patient_id=_text(dataset, "PatientID"),
            study_uid=_text(dataset, "StudyInstanceUID"),
            series_uid=_text(dataset, "SeriesInstanceUID"),
        )
        _check_radiograph(header.modality, header.body_part, modalities)
        return header


def read_pixels(path: Path | str, modalities: tuple[str, ...] | None = MODALITIES) -> NDArray[np.float32]:
    """(rows, columns) float32 in [0, 1] in the sense of MONOCHROME2."""
    with _guard():
        syntax = _syntax(path)
        dataset = _dataset(path, PIXELS, pixels=True)
        shape, photometric = _shape(dataset, modalities)
        if "PixelData" not in dataset:
            raise Unreadable("NO_PIXELS")
        display = _display(dataset, shape, syntax, photometric == "MONOCHROME1")
        if syntax in frames.NATIVE:
            element = dataset["PixelData"]
            raw = frames.native(element.value, shape, syntax, words=element.VR == "OW")
            pixels = significant(raw, shape.stored, shape.high_bit, shape.signed)
        else:
            raw = frames.compressed(dataset, shape, syntax)
            pixels = significant(raw, shape.stored, shape.stored - 1, shape.signed)
        return to_unit(pixels, display)


def sniff(path: Path | str) -> None:
    """Raise Unreadable if the header already shows that the pixels will be refused; whatever the modality."""
    with _guard():
        _syntax(path)
        _shape(_dataset(path, PIXELS, pixels=False), modalities=None)


def view_of(position: str | None) -> tuple[str | None, str | None]:
    """View (frontal, lateral) and projection of a ViewPosition in any of its spellings."""
    words = re.split(r"[\s_,/-]+", (position or "").strip().upper())
    if words[:2] in (["POSTERO", "ANTERIOR"], ["ANTERO", "POSTERIOR"]):
        words = ["".join(words[:2])]
    if words[0] in FRONTAL:
        return "frontal", FRONTAL[words[0]]
    if words[0] in OBLIQUE:
        return None, words[0]
    side = next((LATERAL[w] for w in words if w in LATERAL), None)
    if side is None:
        return None, None
    if side == "LATERAL" and words[0] in ("LEFT", "RIGHT"):
        side = "LL" if words[0] == "LEFT" else "RL"
    return "lateral", side


def age_of(text: str | None) -> float | None:
    """Years from `062Y`, `62`, `006M`, `003W` or `010D`; over 120 is no age, 90 and over is 90."""
    found = re.fullmatch(r"\s*(\d{1,3})([YMWD]?)\s*", (text or "").upper())
    if not found:
        return None
    years = int(found[1]) / {"": 1, "Y": 1, "M": 12, "W": 52.1775, "D": 365.2425}[found[2]]
    return None if years > 120 else min(years, float(OLDEST))


# --- reading tags ----------------------------------------------------------------------------------------------------


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
    _check_radiograph(_text(dataset, "Modality"), _text(dataset, "BodyPartExamined"), modalities)
    if (_integer(dataset, "NumberOfFrames") or 1) != 1:
        raise Unreadable("MULTI_FRAME")
    photometric = _text(dataset, "PhotometricInterpretation")
    if (_integer(dataset, "SamplesPerPixel") or 1) != 1 or photometric not in ("MONOCHROME1", "MONOCHROME2"):
        raise Unreadable("COLOUR" if photometric else "BAD_HEADER")
    rows, columns, allocated = (_integer(dataset, t) for t in ("Rows", "Columns", "BitsAllocated"))
    if rows is None or columns is None or allocated is None:
        raise Unreadable("BAD_HEADER")
    stored = _integer(dataset, "BitsStored") or allocated
    high = _integer(dataset, "HighBit")
    signed = _integer(dataset, "PixelRepresentation") == 1
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
    slope, intercept = _decimal(dataset, "RescaleSlope"), _decimal(dataset, "RescaleIntercept")
    modality = _lut(dataset, "ModalityLUTSequence", shape.signed, big)
    voi: Lut | Window | None = _lut(dataset, "VOILUTSequence", shape.signed or (intercept or 0) < 0, big)
    if voi is None:
        centre, width = _decimal(dataset, "WindowCenter"), _decimal(dataset, "WindowWidth")
        if centre is not None and width is not None:
            voi = Window(centre, width, (_text(dataset, "VOILUTFunction") or "LINEAR").upper())
    pad = _padding(dataset, "PixelPaddingValue", shape)
    limit = _padding(dataset, "PixelPaddingRangeLimit", shape)
    padding = (
        None if pad is None else (min(pad, pad if limit is None else limit), max(pad, pad if limit is None else limit))
    )
    return Display(1.0 if slope is None else slope, intercept or 0.0, modality, voi, padding, invert)


def _lut(dataset: Any, name: str, signed: bool, big: bool) -> Lut | None:
    """First item of a LUT sequence. 8-bit tables are stored one entry a byte or one a word; the length tells which."""
    if name not in dataset or not dataset[name].value:
        return None
    item = dataset[name].value[0]
    count, first, bits = (int(v) & 0xFFFF for v in item["LUTDescriptor"].value)
    count = count or 65536
    first = first - 65536 if signed and first > 32767 else first
    data = item["LUTData"].value
    if not isinstance(data, bytes):
        words = np.atleast_1d(np.asarray(data, dtype=np.int64)) & 0xFFFF
        data = words.astype("<u2").tobytes()
        big = False
    if not 1 <= bits <= 16 or count < 2:
        raise Unreadable("BAD_LUT")
    if len(data) == 2 * count:
        values = np.frombuffer(data, dtype=">u2" if big else "<u2").astype(np.uint16)
    elif bits <= 8 and len(data) == count + count % 2:
        swapped = np.frombuffer(data, dtype="u2").byteswap().tobytes() if big else data
        values = np.frombuffer(swapped, dtype=np.uint8, count=count).astype(np.uint16)
    else:
        raise Unreadable("BAD_LUT")
    return Lut(values, first, max((1 << bits) - 1, int(values.max())))


def _text(dataset: Any, name: str) -> str | None:
    value = dataset.get(name)
    if value is None:
        return None
    if isinstance(value, (list, tuple)) or type(value).__name__ == "MultiValue":
        value = value[0] if len(value) else ""
    return str(value).strip(" \x00") or None


def _raw(dataset: Any, name: str) -> str | None:
    """First of the backslash-separated values as it stands in the file, before pydicom makes a number of it."""
    from pydicom.datadict import tag_for_keyword

    tag = tag_for_keyword(name)
    if tag is None or tag not in dataset:
        return None
    value = dataset.get_item(tag).value
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value or "")
    return text.split("\\")[0].strip(" \x00") or None


def _decimal(dataset: Any, name: str) -> float | None:
    text = _raw(dataset, name)
    if text is None:
        return None
    if not NUMBER.fullmatch(text):
        raise Unreadable("NONFINITE")
    return float(text)


def _integer(dataset: Any, name: str) -> int | None:
    value = dataset.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, (list, tuple)) or type(value).__name__ == "MultiValue":
        raise Unreadable("BAD_HEADER")
    return int(value)


def _padding(dataset: Any, name: str, shape: frames.Shape) -> int | None:
    value = _integer(dataset, name)
    if value is None:
        return None
    return value - 65536 if shape.signed and value > 32767 else value


def _view_code(dataset: Any) -> str | None:
    """Meaning of the view code, for files whose ViewPosition is blank."""
    sequence = dataset.get("ViewCodeSequence")
    return _text(sequence[0], "CodeMeaning") if sequence else None
