"""Views of a client's cache: `Labeled` with labels, `Unlabeled` without a field for them."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.data.vocabulary import SEXES, VIEWS

MISSING = -1
"""Class of a missing auxiliary label: masked in the loss, never imputed."""
DECADES = 10
COLUMNS = ("y", "split", "crc32", "sex", "age", "view", "race")
"""What training reads of a client's rows; the patients' pseudonyms are not among them."""
PATIENT = "patient"
"""Read only by differentially private training (`patients`), and only to group images."""


Images = NDArray[Any]
"""(n, S, S) or (n, S, S, 3) uint8, or feature vectors (n, d) float32."""


@dataclass(frozen=True, eq=False)
class Unlabeled:
    """Images, a view of the memory map where the selection is one run of rows."""

    images: Images
    noise: float = 0.0
    """Standard deviation of the noise on pixels in 0..1, drawn anew at each access."""

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: NDArray[Any]) -> Images:
        """The images at `indices`, copied out of the memory map."""
        return np.ascontiguousarray(self.images[indices])


@dataclass(frozen=True, eq=False)
class Labeled:
    """Images, labels (n,) int64, and for each head its classes (n,) int64, -1 = missing."""

    images: Images
    y: NDArray[np.int64]
    auxiliary: dict[str, NDArray[np.int64]]
    noise: float = 0.0
    """Standard deviation of the noise on pixels in 0..1, drawn anew at each access."""

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: NDArray[Any]) -> Images:
        """The images at `indices`, copied out of the memory map."""
        return np.ascontiguousarray(self.images[indices])

    def without_labels(self) -> Unlabeled:
        return Unlabeled(self.images, self.noise)


def load(
    folder: Path,
    splits: tuple[str, ...],
    heads: tuple[str, ...] = (),
    races: tuple[str, ...] = (),
    limit: int | None = None,
    seed: int = 0,
    noise: float = 0.0,
) -> Labeled:
    """The rows of `splits` in the order of the cache; `limit`: a seeded, class-balanced part of them.

    Runs that share a process share what they read, as long as the files stay the same.
    """
    return _load(folder, _stamp(folder), splits, heads, races, limit, seed, noise)


def patients(folder: Path, splits: tuple[str, ...]) -> NDArray[np.int64]:
    """The patient of each image of `load(folder, splits)`, as numbers from 0; a public sample is its own patient."""
    import pyarrow.parquet as pq

    _stamp(folder)
    try:
        file = pq.ParquetFile(folder / "order.parquet")
        names = [name for name in ("split", PATIENT) if name in file.schema_arrow.names]
        order = file.read(columns=names, use_threads=False).to_pydict()
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(folder, "order.parquet is not readable", error) from None
    rows = np.flatnonzero(np.isin(np.array(order["split"], dtype=str), splits))
    if PATIENT not in order:
        return np.arange(len(rows), dtype=np.int64)
    _, whose = np.unique(np.array(order[PATIENT], dtype=str)[rows], return_inverse=True)
    return whose.astype(np.int64)


Stamp = tuple[tuple[int, int, int], ...]
"""Inode, size and time of change of images.npy and order.parquet."""


@lru_cache(maxsize=32)
def _load(
    folder: Path,
    stamp: Stamp,
    splits: tuple[str, ...],
    heads: tuple[str, ...],
    races: tuple[str, ...],
    limit: int | None,
    seed: int,
    noise: float,
) -> Labeled:
    images, order = _open(folder)
    rows = np.flatnonzero(np.isin(order["split"].astype(str), splits))
    y = order["y"].astype(np.int64)
    if limit is not None:
        rows = rows[balanced_part(y[rows], limit, seed)]
    run = len(rows) > 0 and int(rows[-1]) - int(rows[0]) + 1 == len(rows)
    view = images[rows[0] : rows[-1] + 1] if run else images[rows]
    if "crc32" in order:
        _verify(view, order["crc32"].astype(np.int64)[rows], folder)
    part = {name: column[rows] for name, column in order.items()}
    return Labeled(view, y[rows], {head: classes_of(part, head, races) for head in heads}, noise)


def balanced_part(y: NDArray[np.int64], limit: int, seed: int) -> NDArray[np.int64]:
    """Ascending places of `limit` labels, classes in turn, each in a seeded order: a smaller limit gives a subset."""
    if limit < 1:
        raise FdamedError("fewer than one image was asked for", "loader", "Ask for at least one.")
    turn = np.empty(len(y), dtype=np.int64)
    for label in np.unique(y):
        places = np.flatnonzero(y == label)
        turn[stream(seed, "part", int(label)).numpy.permutation(places)] = np.arange(len(places))
    return np.sort(np.lexsort((y, turn))[:limit])


def classes_of(rows: Mapping[str, NDArray[Any]], head: str, races: tuple[str, ...] = ()) -> NDArray[np.int64]:
    """Class of each row for an auxiliary head: sex F 0, M 1; age in decades 0..9; view frontal 0, lateral 1; race."""
    if head == "age":
        age = rows["age"].astype(np.float64)
        known = np.isfinite(age)
        decade = np.minimum(np.where(known, age, 0) // 10, DECADES - 1)
        return np.where(known, decade, MISSING).astype(np.int64)
    names = {"sex": SEXES, "view": VIEWS, "race": races}
    if head not in names:
        raise FdamedError(f"there is no auxiliary head {head!r}", "model.heads", "Choose among sex, age, view, race.")
    codes = {name: code for code, name in enumerate(names[head])}
    return np.array([codes.get(v, MISSING) for v in rows[head].astype(object)], dtype=np.int64)


def _stamp(folder: Path) -> Stamp:
    for name in ("images.npy", "order.parquet"):
        if not (folder / name).is_file():
            raise FdamedError(f"{name} is missing", str(folder), "Run `fdamed cache` for this hospital.")
    found = [(folder / name).stat() for name in ("images.npy", "order.parquet")]
    return tuple((f.st_ino, f.st_size, f.st_mtime_ns) for f in found)


def _open(folder: Path) -> tuple[Images, dict[str, NDArray[Any]]]:
    """The memory map and the columns of its rows, checked to belong together."""
    import pyarrow.parquet as pq  # read_table and to_numpy import pandas: a third of a second for every training job

    try:
        file = pq.ParquetFile(folder / "order.parquet")
        table = file.read(columns=[name for name in COLUMNS if name in file.schema_arrow.names], use_threads=False)
        order = {name: np.array(table[name].to_pylist(), dtype=object) for name in table.column_names}
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(folder, "order.parquet is not readable", error) from None
    try:
        # Copy on write: torch wants memory that it could write to, and nothing ever reaches the file.
        images = np.load(folder / "images.npy", mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise _damaged(folder, "images.npy is cut short or not an array", error) from None
    known = (images.dtype == np.uint8 and images.ndim in (3, 4)) or (images.dtype == np.float32 and images.ndim == 2)
    if not known or len(images) != table.num_rows:
        raise _damaged(folder, "images.npy and order.parquet do not belong together")
    return images, order


def _verify(images: Images, checksums: NDArray[np.int64], folder: Path) -> None:
    bad = sum(zlib.crc32(np.ascontiguousarray(i).data) != int(c) for i, c in zip(images, checksums, strict=True))
    if bad:
        raise _damaged(folder, f"{bad} images in the cache are not what was written there")


def _damaged(folder: Path, what: str, error: Exception | None = None) -> FdamedError | MemoryError:
    """The error for a damaged cache; running out of memory is another error."""
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return MemoryError(str(error))
    return FdamedError(what, str(folder), "Run `fdamed cache` for this hospital again; good rows are used again.")
