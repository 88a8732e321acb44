"""The row contract: the columns of the index, their check, and hashes of their content."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fdamed.core.errors import FdamedError
from fdamed.data.vocabulary import SEXES, VIEWS

BUG = "This is a bug in the data set's adapter."
LABEL = "label."
"""Prefix of a label column; its values are 1, 0, -1 (uncertain) and NaN (unknown, blank)."""

SPLITS = ("train", "adapt", "val", "test")

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

TEXT = ("image", "patient", "study", "view", "projection", "sex", "race", "site", "scanner", "release_split")


def pseudonym(salt: str, identifier: str) -> str:
    """A keyed hash of an identifier: without the salt it cannot be reversed."""
    return hmac.new(salt.encode(), identifier.encode(), hashlib.sha256).hexdigest()[:16]


def pseudonyms(salt: str, identifiers: pd.Series) -> pd.Series:
    """`pseudonym` of each value, computed once for each distinct one."""
    codes, distinct = pd.factorize(identifiers.astype(str))
    hashed = np.array([pseudonym(salt, v) for v in distinct], dtype=object)
    return pd.Series(hashed[codes], index=identifiers.index, dtype="str")


def label_columns(frame: pd.DataFrame) -> list[str]:
    return [c for c in frame.columns if c.startswith(LABEL)]


def as_index(frame: pd.DataFrame) -> pd.DataFrame:
    """An adapter's rows in the contract's columns, order and types, checked."""
    labels = sorted(label_columns(frame))
    unknown = [c for c in frame.columns if c not in COLUMNS and c not in labels]
    if unknown:
        raise ValueError(f"columns outside the row contract: {unknown}")
    out = pd.DataFrame(index=pd.RangeIndex(len(frame)))
    for column in COLUMNS:
        values = frame[column].reset_index(drop=True) if column in frame else pd.Series(np.nan, index=out.index)
        if column in TEXT:
            out[column] = values.astype("str")
        elif column == "burned_in":
            out[column] = values.astype("boolean")
        else:
            out[column] = values.astype("float32")
    for column in labels:
        out[column] = frame[column].reset_index(drop=True).astype("float32")
    check(out)
    return out


def check(frame: pd.DataFrame) -> None:
    """Raise on the first violation of the row contract."""
    _only(frame, "view", VIEWS)
    _only(frame, "sex", SEXES)
    for column in ("image", "patient", "study"):
        if frame[column].isna().any():
            raise FdamedError(
                f"{int(frame[column].isna().sum())} rows without {column}",
                "index",
                "This is a bug in the data set's adapter.",
            )
    if frame["image"].duplicated().any():
        twice = int(frame["image"].duplicated().sum())
        raise FdamedError(f"{twice} images are listed more than once", "index", BUG)
    for column in label_columns(frame):
        if not frame[column].dropna().isin((1.0, 0.0, -1.0)).all():
            what = f"{column} holds values outside 1, 0, -1 and blank"
            raise FdamedError(what, "index", "Reject such rows at ingest.")


def _only(frame: pd.DataFrame, column: str, allowed: Sequence[str]) -> None:
    if not frame[column].dropna().isin(allowed).all():
        raise FdamedError(f"{column} holds values outside {', '.join(allowed)}", "index", "Map them in the adapter.")


def content_hash(frame: pd.DataFrame) -> str:
    """Sixteen hex digits of the rows' content, independent of the order of rows, the same on any machine."""
    columns = sorted(frame.columns)
    texts = [_texts(frame[c]) for c in columns]
    rows = pc.binary_join_element_wise(*texts, pa.scalar("\x1f", pa.large_string()))
    rows = rows.take(pc.array_sort_indices(rows)).to_pylist()
    h = hashlib.sha256("\x1e".join(columns).encode())
    h.update("".join("\x1d" + row for row in rows).encode())
    return h.hexdigest()[:16]


def column_hash(frame: pd.DataFrame, key: str) -> str:
    """Sixteen hex digits of a large frame, column by column in the order of its unique `key`."""
    order = np.asarray(frame[key].argsort(), dtype="int64")
    h = hashlib.sha256()
    for name in sorted(frame.columns):
        column = frame[name]
        h.update(f"\x1e{name}\x1f".encode())
        if pd.api.types.is_float_dtype(column):
            values = column.to_numpy()[order].astype("<f4")
            h.update(np.where(np.isnan(values), np.float32(np.nan), values).astype("<f4").tobytes())
        else:
            h.update("\x1d".join(column.astype("str").fillna("").to_numpy(dtype=object)[order]).encode())
    return h.hexdigest()[:16]


def _texts(column: pd.Series) -> pa.Array:
    codes, distinct = pd.factorize(column)
    values = [str(v) for v in pd.Series(distinct).astype(object)] + [""]
    taken = np.where(codes < 0, len(distinct), codes)
    return pa.array(values, pa.large_string()).take(pa.array(taken))
