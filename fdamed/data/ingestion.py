"""A data set becomes an index: its tables through its own `rows`, then a look at every file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pandas as pd

from fdamed.config.datasets import DataSet
from fdamed.core.errors import FdamedError
from fdamed.core.progress import track
from fdamed.data.gray_image import Unreadable
from fdamed.data.image import read_header
from fdamed.data.row_reader import Rejects, RowReader
from fdamed.data.safe_paths import Roots

FROM_HEADER = ("view", "projection", "sex", "age", "scanner", "burned_in")
"""Columns that a DICOM header fills where the tables say nothing."""
CHUNK = 256
FEW_CHUNKS = 4
"""Up to this number of chunks a pool of processes costs more than it saves."""
Chunk = tuple[Roots, list[str]]
"""Roots, paths below the first root."""


def read_rows(data: DataSet, salt: str, rejects: Rejects) -> pd.DataFrame:
    """The index by the tables alone."""
    return data.rows(RowReader(salt, rejects))


def read_index(data: DataSet, salt: str, rejects: Rejects) -> pd.DataFrame:
    """The index of a data set, every file opened."""
    return check_files(read_rows(data, salt, rejects), data, rejects)


def check_share(data: DataSet, kept: int, rejects: Rejects, listed: str) -> None:
    """Raise if nothing is left or more was rejected than the configuration allows."""
    faults = rejects.faults()
    reasons = ", ".join(f"{reason} {n}" for reason, n in rejects.counts().items())
    fix = f"{listed} lists each with its reason; data.reject_share (now {data.reject_share:g}) is the limit."
    if kept == 0:
        raise FdamedError(f"no usable image is left ({reasons or 'the tables are empty'})", data.root, fix)
    share = faults / (kept + faults)
    if share > data.reject_share:
        raise FdamedError(f"{share:.1%} of the rows and files were rejected: {reasons}", data.root, fix)


def check_files(frame: pd.DataFrame, data: DataSet, rejects: Rejects) -> pd.DataFrame:
    """Keep the rows whose file is there, below an allowed root and readable; fill gaps from DICOM headers."""
    images, roots = frame["image"].tolist(), Roots.of(data.root, data.allowed_roots)
    chunks = [(roots, images[start : start + CHUNK]) for start in range(0, len(images), CHUNK)]
    found = [one for chunk in track(_examined(chunks), "checking files", len(chunks)) for one in chunk]
    for image, header in zip(images, found, strict=True):
        if isinstance(header, Unreadable):
            rejects.add(image, None, header.reason, header.detail)
    headers = pd.DataFrame(
        [{} if isinstance(h, Unreadable) else h for h in found], index=frame.index, columns=list(FROM_HEADER)
    )
    filled = {c: frame[c].fillna(headers[c].astype(frame[c].dtype)) for c in FROM_HEADER}
    good = np.array([not isinstance(header, Unreadable) for header in found], dtype=bool)
    return frame.assign(**filled)[good].reset_index(drop=True)


def _examined(chunks: list[Chunk]) -> Iterator[list[dict[str, Any] | Unreadable]]:
    if len(chunks) <= FEW_CHUNKS:
        yield from map(_examine, chunks)
        return
    # A fork would copy Arrow's threads in whatever state they are.
    context = get_context("forkserver")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(chunks)), mp_context=context) as pool:
        yield from pool.map(_examine, chunks)


def _examine(chunk: Chunk) -> list[dict[str, Any] | Unreadable]:
    """For each file the columns from its header, or why it is rejected."""
    roots, images = chunk
    out: list[dict[str, Any] | Unreadable] = []
    for image in images:
        try:
            out.append(read_header(roots.locate(image)))
        except Unreadable as rejected:
            out.append(rejected)
    return out
