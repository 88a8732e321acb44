"""A data set becomes an index: its tables through its own `rows`, then a look at every file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fdamed.config.datasets import DataSet
from fdamed.core.errors import FdamedError
from fdamed.core.progress import track
from fdamed.data.gray_image import Unreadable
from fdamed.data.row_reader import Rejects, RowReader
from fdamed.data.safe_paths import Roots

FROM_HEADER = ("view", "projection", "sex", "age", "scanner", "burned_in")
"""Columns that a DICOM header fills where the tables say nothing."""
CHUNK = 256
FEW_CHUNKS = 4
"""Up to this number of chunks a pool of processes costs more than it saves."""
Chunk = tuple[Roots, int, list[str]]
"""Roots, position of the first image, paths below the first root."""
Finding = tuple[int, str, str, tuple[Any, ...] | None]
"""Position, reason of rejection or "", its detail, values from the DICOM header."""


def read_rows(data: DataSet, salt: str, tables_only: bool, rejects: Rejects) -> pd.DataFrame:
    """The index by the tables alone."""
    return data.rows(RowReader(salt, tables_only, rejects))


def read_index(data: DataSet, salt: str, tables_only: bool, rejects: Rejects) -> pd.DataFrame:
    """The index of a data set; unless `tables_only`, every file was opened."""
    frame = read_rows(data, salt, tables_only, rejects)
    return frame if tables_only else check_files(frame, data, rejects)


def check_share(data: DataSet, kept: int, rejects: Rejects, listed: str) -> None:
    """Raise if nothing is left or more was rejected than the configuration allows."""
    faults = rejects.faults()
    reasons = ", ".join(f"{reason} {n}" for reason, n in rejects.counts().items())
    fix = f"{listed} lists each with its reason; data.reject_share (now {data.reject_share:g}) is the limit."
    if kept == 0:
        raise FdamedError(f"no usable image is left ({reasons or 'the tables are empty'})", data.root, fix)
    if faults > data.reject_share * (kept + faults):
        share = faults / (kept + faults)
        raise FdamedError(f"{share:.1%} of the rows and files were rejected: {reasons}", data.root, fix)


def check_files(frame: pd.DataFrame, data: DataSet, rejects: Rejects) -> pd.DataFrame:
    """Keep the rows whose file is there, below an allowed root and readable; fill gaps from DICOM headers."""
    images, roots = frame["image"].tolist(), Roots.of(data.root, data.allowed_roots)
    chunks = [(roots, start, images[start : start + CHUNK]) for start in range(0, len(images), CHUNK)]
    findings = [f for found in track(_examined(chunks), "checking files", len(chunks)) for f in found]
    bad = np.zeros(len(frame), dtype=bool)
    filled = {c: frame[c].astype(object).to_numpy(copy=True) for c in FROM_HEADER}
    for position, reason, detail, header in findings:
        if reason:
            bad[position] = True
            rejects.add(images[position], None, reason, detail)
        for column, value in zip(FROM_HEADER, header or (), strict=header is not None):
            if value is not None and pd.isna(filled[column][position]):
                filled[column][position] = value
    columns = {c: pd.Series(v, index=frame.index).astype(frame[c].dtype) for c, v in filled.items()}
    return frame.assign(**columns)[~bad].reset_index(drop=True)


def _examined(chunks: list[Chunk]) -> Iterator[list[Finding]]:
    if len(chunks) <= FEW_CHUNKS:
        yield from map(_examine, chunks)
        return
    # A fork would copy Arrow's threads in whatever state they are.
    context = get_context("forkserver")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(chunks)), mp_context=context) as pool:
        yield from pool.map(_examine, chunks)


def _examine(chunk: Chunk) -> list[Finding]:
    """The findings of one chunk's files; a good file without a DICOM header gives none."""
    roots, start, images = chunk
    out: list[Finding] = []
    for position, image in enumerate(images, start=start):
        try:
            header = _header(roots.locate(image))
        except Unreadable as refused:
            out.append((position, refused.reason, refused.detail, None))
        else:
            if header:
                out.append((position, "", "", header))
    return out


def _header(path: Path) -> tuple[Any, ...] | None:
    """FROM_HEADER of a DICOM file; of a JPEG or PNG, that its header is good."""
    from fdamed.data.image import kind, sniff

    if kind(path) != "dicom":
        sniff(path)
        return None
    from fdamed.data.dicom.header import read_header

    header = read_header(path)
    scanner = " ".join(word for word in (header.manufacturer, header.model) if word) or None
    return header.view, header.projection, header.sex, header.age, scanner, header.burned_in
