"""DICOM headers: an allow-list of tags. Nothing outside it is parsed, kept or quoted."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdamed.data.gray_image import Unreadable, decoding
from fdamed.data.vocabulary import lenient, parse_age, parse_flag, parse_sex, parse_view

MODALITIES = ("CR", "DX")
CHEST = ("CHEST", "THORAX", "TORAX", "LUNG")
HEADER_TAGS = [
    "Modality", "BodyPartExamined", "ViewPosition", "ViewCodeSequence", "PatientSex", "PatientAge", "Rows", "Columns",
    "Manufacturer", "ManufacturerModelName", "BurnedInAnnotation", "PatientID", "StudyInstanceUID",
    "SeriesInstanceUID",
]  # fmt: skip
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
"""Decimal string of the standard; Python's float would also take `nan`, `inf` and `1_0`."""
DEFLATED = ("1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.4.95", "1.2.840.10008.1.2.8.1")

# pydicom's messages quote header values; no handler may write them down.
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
    """The allow-listed tags of a chest radiograph; other files are Unreadable (`modalities=None`: takes any)."""
    with decoding():
        transfer_syntax(path)
        dataset = open_dataset(path, HEADER_TAGS, pixels=False)
        check_radiograph(dataset, modalities)
        position = read_text(dataset, "ViewPosition")
        codes = dataset.get("ViewCodeSequence")
        view, projection = parse_view(position or (codes and read_text(codes[0], "CodeMeaning")) or "")
        return Header(
            modality=read_text(dataset, "Modality"),
            body_part=read_text(dataset, "BodyPartExamined"),
            view_position=position,
            view=view,
            projection=projection,
            sex=lenient(parse_sex, read_text(dataset, "PatientSex")),
            age=lenient(parse_age, read_text(dataset, "PatientAge")),
            rows=read_integer(dataset, "Rows"),
            columns=read_integer(dataset, "Columns"),
            manufacturer=read_text(dataset, "Manufacturer"),
            model=read_text(dataset, "ManufacturerModelName"),
            burned_in=lenient(parse_flag, read_text(dataset, "BurnedInAnnotation")),
            patient_id=read_text(dataset, "PatientID"),
            study_uid=read_text(dataset, "StudyInstanceUID"),
            series_uid=read_text(dataset, "SeriesInstanceUID"),
        )


def transfer_syntax(path: Path | str) -> str:
    """From the file meta alone: a deflated data set would be unpacked just by being opened."""
    from pydicom.filereader import read_file_meta_info

    syntax = str(read_file_meta_info(path).get("TransferSyntaxUID", "")).strip("\x00 ")
    if syntax in DEFLATED:
        raise Unreadable("DEFLATED")
    if not syntax:
        raise Unreadable("BAD_HEADER")
    return syntax


def open_dataset(path: Path | str, tags: list[str], pixels: bool) -> Any:
    from pydicom import dcmread

    return dcmread(path, specific_tags=list(tags), stop_before_pixels=not pixels)


def check_radiograph(dataset: Any, modalities: tuple[str, ...] | None) -> None:
    modality, body_part = read_text(dataset, "Modality"), read_text(dataset, "BodyPartExamined")
    if modalities and modality and modality.upper() not in modalities:
        raise Unreadable("NOT_A_RADIOGRAPH")
    if modalities and body_part and not any(word in body_part.upper() for word in CHEST):
        raise Unreadable("NOT_CHEST")


def read_text(dataset: Any, name: str) -> str | None:
    """The first value as text."""
    value = dataset.get(name)
    if isinstance(value, (list, tuple)) or type(value).__name__ == "MultiValue":
        value = value[0] if len(value) else None
    return None if value is None else str(value).strip(" \x00") or None


def read_decimal(dataset: Any, name: str) -> float | None:
    """The first of the values as it stands in the file, before pydicom makes a number of it."""
    from pydicom.datadict import tag_for_keyword

    tag = tag_for_keyword(name)
    if tag is None or tag not in dataset:
        return None
    value = dataset.get_item(tag).value
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value or "")
    first = text.split("\\")[0].strip(" \x00")
    if first and not NUMBER.fullmatch(first):
        raise Unreadable("NONFINITE")
    return float(first) if first else None


def read_integer(dataset: Any, name: str) -> int | None:
    value = dataset.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, (list, tuple)) or type(value).__name__ == "MultiValue":
        raise Unreadable("BAD_HEADER")
    return int(value)
