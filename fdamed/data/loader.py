"""Views of a client's cache: `Labeled` with labels, `Unlabeled` without a field for them."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

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
"""What training reads of a client's rows; only `patients` reads pseudonyms, to group images for private training."""


Images = NDArray[Any]
"""(n, S, S) or (n, S, S, 3) uint8, or feature vectors (n, d) float32."""


class _View:
    """Images of a client, a view of the memory map where the selection is one run of rows."""

    images: Images
    noise: float
    """Standard deviation of the noise on pixels in 0..1, drawn anew at each access."""

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: NDArray[Any]) -> Images:
        """The images at `indices`, copied out of the memory map."""
        return np.ascontiguousarray(self.images[indices])


@dataclass(frozen=True, eq=False)
class Unlabeled(_View):
    """Images without a field for labels."""

    images: Images
    noise: float = 0.0


@dataclass(frozen=True, eq=False)
class Labeled(_View):
    """Images, labels (n,) int64, and for each head its classes (n,) int64, -1 = missing."""

    images: Images
    y: NDArray[np.int64]
    auxiliary: dict[str, NDArray[np.int64]]
    noise: float = 0.0

    def without_labels(self) -> Unlabeled:
        return Unlabeled(self.images, self.noise)


def load(
    folder: Path,
    parts: tuple[str, ...],
    heads: tuple[str, ...] = (),
    races: tuple[str, ...] = (),
    limit: int | None = None,
    seed: int = 0,
    noise: float = 0.0,
) -> Labeled:
    """The rows of `parts` in the order of the cache; `limit`: a seeded, class-balanced part of them.

    Runs that share a process share what they read, as long as the files stay the same.
    """
    images, rows = _load(folder, _stamp(folder), parts, limit, seed)
    auxiliary = {head: classes_of(rows, head, races) for head in heads}
    return Labeled(images, rows["y"].astype(np.int64), auxiliary, noise)


def patients(folder: Path, parts: tuple[str, ...]) -> NDArray[np.int64]:
    """The patient of each image of `load(folder, parts)`, as numbers from 0; a public sample is its own patient."""
    _stamp(folder)
    order = _read_order(folder, ("split", "patient"))
    chosen = np.isin(order["split"].astype(str), parts)
    if "patient" not in order:
        return np.arange(chosen.sum(), dtype=np.int64)
    _, whose = np.unique(order["patient"].astype(str)[chosen], return_inverse=True)
    return whose.astype(np.int64)


def known_labels(folder: Path, head: str, races: tuple[str, ...] = ()) -> bool:
    """Whether any image that a source trains on has a label for this auxiliary head."""
    order = _read_order(folder, ("split", head))
    rows = {name: column[np.isin(order["split"].astype(str), ("train", "adapt"))] for name, column in order.items()}
    return head in rows and bool((classes_of(rows, head, races) != MISSING).any())


Stamp = tuple[tuple[int, int, int], ...]
"""Inode, size and time of change of images.npy and order.parquet."""


def _stamp(folder: Path) -> Stamp:
    for name in ("images.npy", "order.parquet"):
        if not (folder / name).is_file():
            raise FdamedError(f"{name} is missing", str(folder), "Run `fdamed cache` for this hospital.")
    found = [(folder / name).stat() for name in ("images.npy", "order.parquet")]
    return tuple((f.st_ino, f.st_size, f.st_mtime_ns) for f in found)


@lru_cache(maxsize=32)
def _load(
    folder: Path, stamp: Stamp, parts: tuple[str, ...], limit: int | None, seed: int
) -> tuple[Images, dict[str, NDArray[Any]]]:
    """The images and the columns of their rows, checked to be what was written."""
    order = _read_order(folder, COLUMNS)
    try:
        # Copy on write: torch wants memory that it could write to, and nothing ever reaches the file.
        images = np.load(folder / "images.npy", mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise _damaged(folder, "images.npy is cut short or not an array", error) from None
    known = (images.dtype == np.uint8 and images.ndim in (3, 4)) or (images.dtype == np.float32 and images.ndim == 2)
    if not known or len(images) != len(order["y"]):
        raise _damaged(folder, "images.npy and order.parquet do not belong together")
    rows = np.flatnonzero(np.isin(order["split"].astype(str), parts))
    if limit is not None:
        rows = rows[balanced_part(order["y"].astype(np.int64)[rows], limit, seed)]
    run = len(rows) > 0 and int(rows[-1]) - int(rows[0]) + 1 == len(rows)
    view = images[rows[0] : rows[-1] + 1] if run else images[rows]
    part = {name: column[rows] for name, column in order.items()}
    sums = zip(view, part.get("crc32", ()), strict="crc32" in part)
    bad = sum(crc32(np.ascontiguousarray(image).data) != checksum for image, checksum in sums)
    if bad:
        raise _damaged(folder, f"{bad} images in the cache are not what was written there")
    return view, part


def _read_order(folder: Path, columns: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """The columns of order.parquet that are there."""
    import pyarrow.parquet as pq  # read_table and to_numpy import pandas: a third of a second for every training job

    try:
        file = pq.ParquetFile(folder / "order.parquet")
        table = file.read(columns=[name for name in columns if name in file.schema_arrow.names], use_threads=False)
        return {name: np.array(table[name].to_pylist(), dtype=object) for name in table.column_names}
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(folder, "order.parquet is not readable", error) from None


def balanced_part(y: NDArray[np.int64], limit: int, seed: int) -> NDArray[np.int64]:
    """Ascending places of `limit` labels, classes in turn, each in a seeded order: a smaller limit gives a subset."""
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
    codes = {name: code for code, name in enumerate({"sex": SEXES, "view": VIEWS, "race": races}[head])}
    return np.array([codes.get(v, MISSING) for v in rows[head].astype(object)], dtype=np.int64)


def _damaged(folder: Path, what: str, error: Exception | None = None) -> FdamedError | MemoryError:
    """The error for a damaged cache; running out of memory is another error."""
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return MemoryError(str(error))
    return FdamedError(what, str(folder), "Run `fdamed cache` for this hospital again; good rows are used again.")
