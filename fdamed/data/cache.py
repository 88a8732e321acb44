"""A client's images as one memory-mapped uint8 array, decoded once and in parallel.

Memory does not depend on the number of files: workers write into the file, this process only keeps the journal. Decoded
images are kept in a hidden folder beside the outputs, because a workflow deletes declared outputs before it writes them
again: `store.*` is the last cache (the same bytes on disk as images.npy, by a hard link), `draft.*` the one being
written; a killed run's draft becomes the store of the next run. A row counts only if its bytes have the checksum of
the journal, so that a kill at any moment costs a few rows at most.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections import Counter
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fdamed.config.datasets import DataSet
from fdamed.config.model import Image
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, digest, room_for, sweep, write_text
from fdamed.core.locks import locked
from fdamed.core.progress import track
from fdamed.data.image import VERSION, Unreadable, read_gray
from fdamed.data.manifest import PARTS
from fdamed.data.row_reader import Rejects
from fdamed.data.safe_paths import Roots
from fdamed.data.worker_pool import run_isolated

Task = tuple[int, str]
"""Row, and the file to decode into it."""
HEADER = 128
"""Bytes before the first row."""
TRANSIENT = ("CRASHED", "TIMEOUT", "MEMORY", "MISSING", "UNREADABLE", "PATH_OUTSIDE_ROOT")
"""Reasons that may no longer hold in the next run: such files are tried again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file as it was when it was decoded into `row`; row -1: rejected, or not decoded yet."""

    image: str
    bytes: int
    modified: int
    row: int = -1
    checksum: int = 0
    reason: str = ""
    detail: str = ""

    def line(self) -> str:
        return json.dumps(astuple(self)) + "\n"


@dataclass(frozen=True)
class Report:
    """What a build did: images in the cache, how many of them were decoded now, and rejects by reason."""

    images: int
    decoded: int
    rejected: dict[str, int]


def build(rows: pd.DataFrame, folder: Path, data: DataSet, image: Image, workers: int, what: str = "cache") -> Report:
    """Decode the images of a manifest's rows into the folder's images.npy.

    The order is by part, so that a part is one slice; order.parquet has the rows, rejects.csv the rejected files.
    """
    if not len(rows):
        fix = "Check the `split` section of the configuration."
        raise FdamedError("the manifest has no rows", str(folder), fix)
    rows, roots = in_order(rows), Roots.of(data.root, data.allowed_roots)
    hidden = folder / ".cache"
    draft = hidden / "draft.npy"
    settings = digest({"version": VERSION, "size": image.size, "equalize": image.equalize})
    with locked(hidden):
        promote_draft(hidden)
        reserve(draft, len(rows), image.size)
        entries = [entry_of(path, roots) for path in rows["image"].tolist()]
        reuse(hidden, settings, entries)
        tasks = [(row, str(roots.locate(e.image))) for row, e in enumerate(entries) if e.row < 0 and not e.reason]
        results = run_isolated(tasks, partial(place, draft=str(draft), image=image), workers)
        with open(hidden / "draft.jsonl", "a", encoding="utf-8", buffering=1) as journal:
            for (row, _), result in track(results, what, len(tasks)) if tasks else ():
                if isinstance(result, Unreadable):
                    entries[row] = replace(entries[row], reason=result.reason, detail=result.detail)
                else:
                    entries[row] = replace(entries[row], row=row, checksum=result)
                journal.write(entries[row].line())
        rejected = list_rejects(entries)
        write_text(hidden / "rejects.csv", rejected.as_csv())
        _check(rows, entries, rejected, data.reject_share, str(hidden / "rejects.csv"))
        kept = [row for row, e in enumerate(entries) if not e.reason]
        if len(kept) < len(rows):
            close_gaps(draft, kept, image.size)
        final = [replace(entries[row], row=place) for place, row in enumerate(kept)]
        write_journal(hidden, settings, final + [e for e in entries if e.reason])
        order = rows.iloc[kept].reset_index(drop=True)
        with atomic(folder / "order.parquet") as part:
            order.assign(crc32=np.array([e.checksum for e in final], dtype=np.int64)).to_parquet(part, index=False)
        write_text(folder / "rejects.csv", rejected.as_csv())
        publish(draft, folder / "images.npy")
        promote_draft(hidden)
    return Report(len(kept), len(tasks), rejected.counts())


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """The manifest's rows by part and, within a part, as they came."""
    return rows.sort_values("split", key=lambda part: part.map(PARTS.index), kind="stable", ignore_index=True)


def entry_of(image: str, roots: Roots) -> Entry:
    """The file as it is now, not yet decoded, or its reason of rejection."""
    try:
        found = roots.locate(image).stat()
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError
        return Entry(image, found.st_size, found.st_mtime_ns)
    except Unreadable as error:
        rejected = error
    except OSError as error:
        gone = isinstance(error, FileNotFoundError | NotADirectoryError)
        rejected = Unreadable("MISSING" if gone else "UNREADABLE")
    return Entry(image, -1, -1, reason=rejected.reason, detail=rejected.detail)


def place(task: Task, draft: str, image: Image) -> int:
    """In a worker: decode one file, write it into its row of the draft, and return the checksum of the row."""
    from fdamed.data.transforms import transform

    row, path = task
    pixels = transform(read_gray(path), image.size, image.equalize)
    np.memmap(draft, np.uint8, "r+", HEADER + row * pixels.size, pixels.shape)[:] = pixels
    return crc32(pixels.data)


def list_rejects(entries: list[Entry]) -> Rejects:
    """The rejected files."""
    return Rejects([(entry.image, "", entry.reason, entry.detail) for entry in entries if entry.reason])


def _check(rows: pd.DataFrame, entries: list[Entry], rejects: Rejects, reject_share: float, listed: str) -> None:
    """Raise if too many images were rejected, or if a class of a part is empty."""
    rejected = np.array([bool(e.reason) for e in entries])
    reasons = ", ".join(f"{r} {n}" for r, n in Counter(rejects.counts()).most_common())
    if rejected.mean() > reject_share or rejected.all():
        raise FdamedError(
            f"{rejected.sum()} of {len(entries)} images were rejected ({reasons})",
            listed,
            f"Fix or remove these files, or raise data.reject_share (now {reject_share:g}).",
        )
    for (part, y), group in rows.groupby(["split", "y"], observed=True):
        if rejected[group.index].all():
            what = f"all {len(group)} images with y = {y} in part {part} were rejected ({reasons})"
            raise FdamedError(what, listed, "Fix these files, or change the `split` settings.")


def reserve(path: Path, count: int, size: int) -> None:
    """Make an .npy file at its full length, so that a full disk is noticed before the first image is decoded."""
    total = HEADER + count * size * size
    try:
        with room_for(path, total), open(path, "wb") as file:
            _write_header(file, count, size)
            os.posix_fallocate(file.fileno(), 0, total)
    except FdamedError:
        path.unlink(missing_ok=True)
        raise


def _write_header(file: BinaryIO, count: int, size: int) -> None:
    shape = (count, size, size)
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})


def close_gaps(path: Path, kept: list[int], size: int) -> None:
    """Move the rows `kept` (ascending) to the front and truncate the rest."""
    images = np.load(path, mmap_mode="r+", allow_pickle=False)
    for place, row in enumerate(kept):
        images[place] = images[row]
    images.flush()
    with open(path, "rb+") as file:
        _write_header(file, len(kept), size)
        file.truncate(HEADER + len(kept) * size * size)


def reuse(folder: Path, settings: str, entries: list[Entry]) -> None:
    """Copy the store's rows of unchanged files into the draft, repeat its lasting rejections, begin the journal."""
    known, stored = _read_store(folder, settings)
    images = np.load(folder / "draft.npy", mmap_mode="r+", allow_pickle=False)
    for row, entry in enumerate(entries):
        old = known.get(entry.image)
        if entry.reason or old is None or (old.bytes, old.modified) != (entry.bytes, entry.modified):
            continue
        if old.reason and old.reason not in TRANSIENT:
            entries[row] = old
        elif 0 <= old.row < len(stored) and crc32(stored[old.row]) == old.checksum:
            images[row] = stored[old.row]
            entries[row] = replace(old, row=row)
    write_journal(folder, settings, [e for e in entries if e.row >= 0 or e.reason])


def _read_store(folder: Path, settings: str) -> tuple[dict[str, Entry], NDArray[Any]]:
    """Path -> entry, and the rows; nothing if the store is damaged or was made with other settings."""
    entries: dict[str, Entry] = {}
    try:
        lines = (folder / "store.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
        images = np.load(folder / "store.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return {}, np.empty(0)
    for line in lines[1:] if lines[:1] == [json.dumps(settings)] else ():
        with suppress(ValueError, TypeError):  # the last line of a killed run may be incomplete
            entry = Entry(*json.loads(line))
            entries[entry.image] = entry
    return entries, images


def write_journal(folder: Path, settings: str, entries: list[Entry]) -> None:
    """Write the draft's journal; with it the draft is worth being kept."""
    write_text(folder / "draft.jsonl", json.dumps(settings) + "\n" + "".join(e.line() for e in entries))


def promote_draft(folder: Path) -> None:
    """Let a draft that has a journal take the place of the store."""
    if (folder / "draft.jsonl").exists():
        for suffix in ("npy", "jsonl"):
            with suppress(FileNotFoundError):
                (folder / f"draft.{suffix}").replace(folder / f"store.{suffix}")


def publish(draft: Path, out: Path) -> None:
    """Give the finished draft its public name too; without hard links, as a copy."""
    sweep(out.parent, out.name)
    with atomic(out) as part:
        try:
            os.link(draft, part)
        except OSError:
            shutil.copyfile(draft, part)
