"""DICOM headers: an allow-list of tags. Nothing outside it is parsed, kept or quoted."""

from __future__ import annotations

import logging
import re
from collections.abc import MutableSequence
from pathlib import Path
from typing import Any

from fdamed.data.image import Unreadable, decoding
from fdamed.data.vocabulary import lenient, parse_age, parse_flag, parse_sex, parse_view

MODALITIES = ("CR", "DX")
CHEST = ("CHEST", "THORAX", "TORAX", "LUNG")
HEADER_TAGS = [
    "Modality", "BodyPartExamined", "ViewPosition", "ViewCodeSequence", "PatientSex", "PatientAge", "Manufacturer",
    "ManufacturerModelName", "BurnedInAnnotation",
]  # fmt: skip
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
"""Decimal string of the standard; Python's float would also accept `nan`, `inf` and `1_0`."""
DEFLATED = ("1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.4.95", "1.2.840.10008.1.2.8.1")

# pydicom's messages quote header values; no handler may write them down.
logging.getLogger("pydicom").propagate = False


def read_header(path: Path | str) -> dict[str, Any]:
    """What the header of a chest radiograph says about columns of the index; other files are Unreadable."""
    from pydicom import dcmread

    with decoding():
        transfer_syntax(path)
        dataset = dcmread(path, specific_tags=list(HEADER_TAGS), stop_before_pixels=True)
        check_radiograph(dataset)
        codes = dataset.get("ViewCodeSequence")
        position = read_text(dataset, "ViewPosition") or (codes and read_text(codes[0], "CodeMeaning"))
        view, projection = parse_view(position or "")
        scanner = [read_text(dataset, name) for name in ("Manufacturer", "ManufacturerModelName")]
        return {
            "view": view,
            "projection": projection,
            "sex": lenient(parse_sex, read_text(dataset, "PatientSex")),
            "age": lenient(parse_age, read_text(dataset, "PatientAge")),
            "scanner": " ".join(filter(None, scanner)) or None,
            "burned_in": lenient(parse_flag, read_text(dataset, "BurnedInAnnotation")),
        }


def transfer_syntax(path: Path | str) -> str:
    """From the file meta alone: a deflated data set would be unpacked just by being opened."""
    from pydicom.filereader import read_file_meta_info

    syntax = str(read_file_meta_info(path).get("TransferSyntaxUID", "")).strip("\x00 ")
    if syntax in DEFLATED:
        raise Unreadable("DEFLATED")
    if not syntax:
        raise Unreadable("BAD_HEADER")
    return syntax


def check_radiograph(dataset: Any, modalities: tuple[str, ...] | None = MODALITIES) -> None:
    """Raise Unreadable if the header names another modality or another part of the body; None: any is fine."""
    modality, body_part = read_text(dataset, "Modality"), read_text(dataset, "BodyPartExamined")
    if modalities and modality and modality.upper() not in modalities:
        raise Unreadable("NOT_A_RADIOGRAPH")
    if modalities and body_part and not any(word in body_part.upper() for word in CHEST):
        raise Unreadable("NOT_CHEST")


def read_text(dataset: Any, name: str) -> str | None:
    """The first value as text."""
    value = dataset.get(name)
    if isinstance(value, MutableSequence):
        value = value[0] if len(value) else None
    return None if value is None else str(value).strip(" \x00") or None


def read_decimal(dataset: Any, name: str) -> float | None:
    """The first of the values as it stands in the file, before pydicom converts it to a number."""
    if name not in dataset:
        return None
    value = dataset.get_item(name).value
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value or "")
    first = text.split("\\")[0].strip(" \x00")
    if first and not NUMBER.fullmatch(first):
        raise Unreadable("NONFINITE")
    return float(first) if first else None


def read_integer(dataset: Any, name: str) -> int | None:
    value = dataset.get(name)
    if isinstance(value, MutableSequence):
        raise Unreadable("BAD_HEADER")
    return None if value is None or value == "" else int(value)
