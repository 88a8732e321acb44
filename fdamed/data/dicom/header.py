"""Single values of a DICOM header, read with care: what they mean, or None, or Unreadable."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from fdamed.data.dicom.display import Lut
from fdamed.data.image import Unreadable
from fdamed.data.manifest import OLDEST

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
"""Decimal string of the standard; Python's float would also take `nan`, `inf` and `1_0`."""

FRONTAL = {"PA": "PA", "POSTEROANTERIOR": "PA", "AP": "AP", "ANTEROPOSTERIOR": "AP"}
LATERAL = {"LL": "LL", "LLAT": "LL", "RL": "RL", "RLAT": "RL", "LATERAL": "LATERAL", "LAT": "LATERAL"}
OBLIQUE = ("LAO", "RAO", "LPO", "RPO", "LLO", "RLO")


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


def read_lut(dataset: Any, name: str, signed: bool, big: bool) -> Lut | None:
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


def read_text(dataset: Any, name: str) -> str | None:
    value = dataset.get(name)
    if value is None:
        return None
    if isinstance(value, (list, tuple)) or type(value).__name__ == "MultiValue":
        value = value[0] if len(value) else ""
    return str(value).strip(" \x00") or None


def read_raw(dataset: Any, name: str) -> str | None:
    """First of the backslash-separated values as it stands in the file, before pydicom makes a number of it."""
    from pydicom.datadict import tag_for_keyword

    tag = tag_for_keyword(name)
    if tag is None or tag not in dataset:
        return None
    value = dataset.get_item(tag).value
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value or "")
    return text.split("\\")[0].strip(" \x00") or None


def read_decimal(dataset: Any, name: str) -> float | None:
    text = read_raw(dataset, name)
    if text is None:
        return None
    if not NUMBER.fullmatch(text):
        raise Unreadable("NONFINITE")
    return float(text)


def read_integer(dataset: Any, name: str) -> int | None:
    value = dataset.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, (list, tuple)) or type(value).__name__ == "MultiValue":
        raise Unreadable("BAD_HEADER")
    return int(value)


def read_padding(dataset: Any, name: str, signed: bool) -> int | None:
    value = read_integer(dataset, name)
    if value is None:
        return None
    return value - 65536 if signed and value > 32767 else value


def read_view_code(dataset: Any) -> str | None:
    """Meaning of the view code, for files whose ViewPosition is blank."""
    sequence = dataset.get("ViewCodeSequence")
    return read_text(sequence[0], "CodeMeaning") if sequence else None
