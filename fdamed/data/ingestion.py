"""A data set becomes an index: its tables through its own `rows`, then a look at every file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fdamed.config.datasets import DataSet
from fdamed.core.errors import FdamedError, no_folder
from fdamed.core.progress import track
from fdamed.data.image import Unreadable, read_header
from fdamed.data.row_reader import Rejects, RowReader
from fdamed.data.safe_paths import Roots

FROM_HEADER = ("view", "projection", "sex", "age", "scanner", "burned_in")
"""Columns that a DICOM header fills where the tables say nothing."""
CHUNK = 256
SAMPLE = 20
"""Missing files to look for elsewhere."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".dcm")
FOLDERS = 1000
"""Folders below the root in which they are looked for, at most."""
FEW = 10_000
"""Up to this number of files a pool of processes costs more than it saves."""
Header = dict[str, Any] | Unreadable
"""The columns from a file's header, or why it is rejected."""


def read_rows(data: DataSet, salt: str, rejects: Rejects) -> pd.DataFrame:
    """The index by the tables alone."""
    if not Path(data.root).is_dir():
        fix = "Set data.root to the folder of the images; a relative path begins where the command runs."
        raise FdamedError(no_folder(Path(data.root)), data.root, fix)
    return data.rows(RowReader(salt, rejects))


def read_index(data: DataSet, salt: str, rejects: Rejects) -> pd.DataFrame:
    """The index of a data set, every file opened."""
    return check_files(read_rows(data, salt, rejects), data, rejects)


def check_share(data: DataSet, kept: int, rejects: Rejects, listed: str) -> None:
    """Raise if nothing is left or more was rejected than the configuration allows."""
    faults = rejects.faults()
    reasons = ", ".join(f"{reason} {n}" for reason, n in rejects.counts().items())
    fix = (
        " ".join([*rejects.hints, ""])
        + f"{listed} lists each with its reason; data.reject_share (now {data.reject_share:g}) is the limit."
    )
    if kept == 0:
        raise FdamedError(f"no usable image is left ({reasons or 'the tables are empty'})", data.root, fix)
    share = faults / (kept + faults)
    if share > data.reject_share:
        raise FdamedError(f"{share:.1%} of the rows and files were rejected: {reasons}", data.root, fix)


def check_files(frame: pd.DataFrame, data: DataSet, rejects: Rejects) -> pd.DataFrame:
    """Keep the rows whose file is there, below an allowed root and readable; fill gaps from DICOM headers."""
    images, roots = frame["image"].tolist(), Roots.of(data.root, data.allowed_roots)
    good, headers = [], []
    for image, header in zip(images, track(_headers(images, roots), "checking files", len(images)), strict=True):
        good.append(not isinstance(header, Unreadable))
        headers.append({} if isinstance(header, Unreadable) else header)
        if isinstance(header, Unreadable):
            rejects.add(image, None, header.reason, header.detail)
    missing = [file for file, _, reason, _ in rejects.lines if reason == "MISSING"]
    if missing and not any(good):
        rejects.hints.append(_elsewhere(missing[:SAMPLE], data.root))
    table = pd.DataFrame(headers, index=frame.index, columns=list(FROM_HEADER))
    filled = {c: frame[c].fillna(table[c].astype(frame[c].dtype)) for c in FROM_HEADER}
    return frame.assign(**filled)[np.array(good, dtype=bool)].reset_index(drop=True)


def _elsewhere(missing: list[str], root: str) -> str:
    """Where files that are not below the root are looked for, and the folder below or above it that has them.

    Names of files and of their folders may be those of patients: they are shown as stars.
    """
    above = Path(root).resolve()
    below = (Path(folder) for folder, _, _ in os.walk(above))
    for folder in chain(islice(below, 1, FOLDERS), islice(above.parents, 2)):
        if sum(os.access(folder / image, os.R_OK) for image in missing) > len(missing) / 2:
            return f"The table's paths begin in another folder: set data.root to {folder}."
    *folders, name = missing[0].split("/")
    suffix = Path(name).suffix
    tried = "/".join([str(above), *("*" for _ in folders), f"*{suffix if suffix.lower() in SUFFIXES else ''}"])
    return f"Images are looked for as {tried}: data.root and the paths of the table together must name a file."


def _headers(images: list[str], roots: Roots) -> Iterator[Header]:
    look = partial(_header, roots=roots)
    if len(images) <= FEW:
        yield from map(look, images)
        return
    # A fork would copy Arrow's threads in whatever state they are.
    with ProcessPoolExecutor(mp_context=get_context("forkserver")) as pool:
        yield from pool.map(look, images, chunksize=CHUNK)


def _header(image: str, roots: Roots) -> Header:
    try:
        return read_header(roots.locate(image))
    except Unreadable as rejected:
        return rejected
