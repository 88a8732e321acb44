"""The row contract: what every data set's adapter gives, and the check that it does."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fdamed.core.errors import FdamedError

if TYPE_CHECKING:
    import pandas as pd

LABEL = "label."
"""Prefix of a label column; its values are 1, 0, -1 (uncertain) and NaN (unknown, blank)."""

VIEWS = ("frontal", "lateral")
SEXES = ("F", "M")
SPLITS = ("train", "adapt", "val", "test")
OLDEST = 90
"""Ages from here on are one class: a rarer age would point at a person."""

COLUMNS: dict[str, str] = {
    "image": "path of the image below the data root; never leaves clients/",
    "patient": "salted hash, 16 hex digits",
    "study": "salted hash, 16 hex digits",
    "view": "frontal, lateral or missing",
    "projection": "AP, PA, LL, RL, ... or missing",
    "sex": "F, M or missing",
    "age": "years at the study, 90 = 90 and over, NaN = unknown",
    "race": "as the adapter maps it, or missing",
    "site": "hospital, state or whatever the set calls a place, or missing",
    "scanner": "manufacturer and model, or missing",
    "release_split": "the split that the data set ships (train, valid, ...), or missing",
    "burned_in": "whether the header says that text is burned into the pixels; missing: it says nothing",
}
"""Columns of index.parquet besides the labels, in this order."""

TEXT = ("image", "patient", "study", "view", "projection", "sex", "race", "site", "scanner", "release_split")


def pseudonym(salt: str, identifier: str) -> str:
    """A keyed hash of an identifier as an exact string: without the salt nobody can walk back."""
    return hmac.new(salt.encode(), identifier.encode(), hashlib.sha256).hexdigest()[:16]


def pseudonyms(salt: str, identifiers: pd.Series) -> pd.Series:
    """`pseudonym` of each value, computed once for each distinct one."""
    import pandas as pd

    codes, distinct = pd.factorize(identifiers.astype(str))
    hashed = np.array([pseudonym(salt, v) for v in distinct], dtype=object)
    return pd.Series(hashed[codes], index=identifiers.index, dtype="str")


def label_columns(frame: pd.DataFrame) -> list[str]:
    return [c for c in frame.columns if c.startswith(LABEL)]


def as_index(frame: pd.DataFrame) -> pd.DataFrame:
    """Bring an adapter's rows into the contract's columns, order and types; refuse what does not fit."""
    labels = sorted(label_columns(frame))
    unknown = [c for c in frame.columns if c not in COLUMNS and c not in labels]
    if unknown:
        raise ValueError(f"an adapter gave columns that the row contract does not know: {unknown}")
    import pandas as pd

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
    """Raise on the first breach of the row contract."""
    _only(frame, "view", VIEWS)
    _only(frame, "sex", SEXES)
    for column in ("image", "patient", "study"):
        if frame[column].isna().any():
            raise FdamedError(
                f"{int(frame[column].isna().sum())} rows without {column}", "index", "This is a fault of the adapter."
            )
    if frame["image"].duplicated().any():
        raise FdamedError(
            f"{int(frame['image'].duplicated().sum())} images are listed more than once",
            "index",
            "This is a fault of the adapter.",
        )
    for column in label_columns(frame):
        if not frame[column].dropna().isin((1.0, 0.0, -1.0)).all():
            what = f"{column} holds values outside 1, 0, -1 and blank"
            raise FdamedError(what, "index", "Refuse such rows at ingest.")


def _only(frame: pd.DataFrame, column: str, allowed: Sequence[str]) -> None:
    if not frame[column].dropna().isin(allowed).all():
        raise FdamedError(f"{column} holds values outside {', '.join(allowed)}", "index", "Map them in the adapter.")


def content_hash(frame: pd.DataFrame) -> str:
    """Sixteen hex digits of the rows' content, independent of the order of rows, the same on any machine."""
    columns = sorted(frame.columns)
    text = frame[columns].astype(object).where(frame[columns].notna(), "").astype(str)
    rows = sorted("\x1f".join(r) for r in text.itertuples(index=False, name=None))
    h = hashlib.sha256("\x1e".join(columns).encode())
    for row in rows:
        h.update(b"\x1d" + row.encode())
    return h.hexdigest()[:16]
