"""Decoded images of earlier runs, for reuse: an .npy file and a journal of its rows.

The store is a hidden folder beside the outputs because a workflow deletes declared outputs before it writes them
again. `store.*` is the last cache (the same bytes on disk as images.npy, by a hard link), `draft.*` the one being
written; a killed run's draft becomes the store of the next run. A row counts only if its bytes have the checksum of
the journal, so that a kill at any moment costs a few rows at most.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, room_for, sweep, write_text

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
    if file.tell() != HEADER:
        raise ValueError("NumPy changed the length of its header")


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
