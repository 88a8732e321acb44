"""The row contract: the columns of the index, their check, and hashes of their content."""

from __future__ import annotations

import hashlib
import hmac

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fdamed.core.errors import FdamedError
from fdamed.data.vocabulary import SEXES, VIEWS

BUG = "This is a bug in the data set's adapter."
LABEL = "label."
"""Prefix of a label column; its values are 1, 0, -1 (uncertain) and NaN (unknown, blank)."""

PARTS = ("train", "adapt", "val", "test")

COLUMNS: dict[str, str] = {
    "image": "path of the image below the data root; never leaves clients/",
    "patient": "salted hash, 16 hex digits",
    "study": "salted hash, 16 hex digits",
    "view": "frontal, lateral or missing",
    "projection": "AP, PA, LL, RL, ... or missing",
    "sex": "F, M or missing",
    "age": "years at the study, 90 = 90 and over, NaN = unknown",
    "race": "as the adapter maps it, or missing",
    "site": "hospital, state or another place, or missing",
    "scanner": "manufacturer and model, or missing",
    "release_split": "the split that the data set ships (train, valid, ...), or missing",
    "burned_in": "whether text is burned into the pixels, by the header; missing: not in the header",
}
"""Columns of index.parquet besides the labels, in this order."""

TYPES = dict.fromkeys(COLUMNS, "str") | {"age": "float32", "burned_in": "boolean"}
TEXT = [name for name, kind in TYPES.items() if kind == "str"]


def pseudonyms(salt: str, identifiers: pd.Series) -> pd.Series:
    """A keyed hash of each identifier: without the salt it cannot be reversed."""
    identifiers = identifiers.astype("str")
    hashed = {v: hmac.new(salt.encode(), v.encode(), "sha256").hexdigest()[:16] for v in identifiers.unique()}
    return identifiers.map(hashed).astype("str")


def label_columns(frame: pd.DataFrame) -> list[str]:
    return [c for c in frame.columns if c.startswith(LABEL)]


def as_index(frame: pd.DataFrame) -> pd.DataFrame:
    """An adapter's rows in the contract's columns, order and types, checked."""
    labels = sorted(label_columns(frame))
    out = frame.reindex(columns=[*COLUMNS, *labels]).reset_index(drop=True)
    out = out.astype(TYPES | dict.fromkeys(labels, "float32"))
    check(out)
    return out


def check(frame: pd.DataFrame) -> None:
    """Raise on the first violation of the row contract."""
    for column in ("image", "patient", "study"):
        blank = int(frame[column].isna().sum())
        if blank:
            raise FdamedError(f"{blank} rows without {column}", "index", BUG)
    twice = int(frame["image"].duplicated().sum())
    if twice:
        fix = f"Is the image in two tables? If not: {BUG}"
        raise FdamedError(f"{twice} images are listed more than once", "index", fix)
    allowed = {"view": VIEWS, "sex": SEXES} | dict.fromkeys(label_columns(frame), (1.0, 0.0, -1.0))
    for column, values in allowed.items():
        if not frame[column].dropna().isin(values).all():
            raise FdamedError(f"{column} holds values outside {', '.join(map(str, values))}", "index", BUG)


def content_hash(frame: pd.DataFrame) -> str:
    """Sixteen hex digits of the rows' content, independent of the order of rows, the same on any machine."""
    columns = sorted(frame.columns)
    texts = [_texts(frame[c]) for c in columns]
    rows = pc.binary_join_element_wise(*texts, pa.scalar("\x1f", pa.large_string()))
    rows = rows.take(pc.array_sort_indices(rows)).to_pylist()
    h = hashlib.sha256("\x1e".join(columns).encode())
    h.update("".join("\x1d" + row for row in rows).encode())
    return h.hexdigest()[:16]


def _texts(column: pd.Series) -> pa.Array:
    codes, distinct = pd.factorize(column)
    values = [str(v) for v in pd.Series(distinct).astype(object)] + [""]
    return pa.array(values, pa.large_string()).take(pa.array(codes % len(values)))
