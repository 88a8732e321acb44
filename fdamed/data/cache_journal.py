"""Decoded images of earlier runs, for reuse: an .npy file and a journal of its rows.

The store is a hidden folder beside the outputs because a workflow deletes declared outputs before it writes them
again. `store.*` is the last finished cache (the same bytes on disk as images.npy, by a hard link), `draft.*` the one
being written; the next run reuses the rows of a killed run's draft whose checksums match.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fdamed.core.errors import FdamedError
from fdamed.core.files import write_text

HEADER = 128
TRANSIENT = ("CRASHED", "TIMEOUT", "MEMORY", "MISSING", "UNREADABLE", "PATH_OUTSIDE_ROOT")
"""Reasons that may no longer hold in the next run: such files are tried again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file as it was when it was decoded; row -1 and a reason: it was rejected."""

    image: str
    bytes: int
    modified: int
    row: int
    checksum: int
    reason: str = ""
    detail: str = ""

    def line(self) -> str:
        fields = [self.image, self.bytes, self.modified, self.row, self.checksum, self.reason, self.detail]
        return json.dumps(fields, ensure_ascii=True) + "\n"

    def same_file(self, other: Entry) -> bool:
        return (self.image, self.bytes, self.modified) == (other.image, other.bytes, other.modified)


def npy_header(count: int, size: int) -> bytes:
    """The first bytes of an .npy file of uint8 (count, size, size): always HEADER of them, whatever the count."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": (count, size, size)})
    if buffer.tell() != HEADER:
        raise ValueError("NumPy changed the length of its header")
    return buffer.getvalue()


@dataclass(frozen=True)
class Earlier:
    """Rows of an earlier cache, checked one by one when they are taken."""

    file: Path
    entries: dict[str, Entry]

    @contextmanager
    def rows(self, row_bytes: int) -> Iterator[Rows]:
        if not self.file.is_file():
            yield Rows(None, row_bytes)
            return
        with open(self.file, "rb") as file:
            yield Rows(file, row_bytes)


@dataclass(frozen=True)
class Rows:
    file: BinaryIO | None
    row_bytes: int

    def take(self, entry: Entry) -> bytes | None:
        """The bytes of a row, or None if they are not what was written there."""
        if self.file is None or entry.row < 0:
            return None
        content = os.pread(self.file.fileno(), self.row_bytes, HEADER + entry.row * self.row_bytes)
        return content if len(content) == self.row_bytes and zlib.crc32(content) == entry.checksum else None


def read_earlier(folder: Path, name: str, settings: str) -> Earlier:
    """The journal `name` if it was made with the same settings; an incomplete last line of a killed run is skipped."""
    entries: dict[str, Entry] = {}
    journal = folder / f"{name}.jsonl"
    if journal.is_file():
        lines = iter(journal.read_text(encoding="utf-8", errors="replace").splitlines())
        if next(lines, "") == json.dumps(settings):
            for line in lines:
                entry = _entry(line)
                if entry is not None:
                    entries[entry.image] = entry
    return Earlier(folder / f"{name}.npy", entries)


def _entry(line: str) -> Entry | None:
    try:
        image, size, modified, row, checksum, reason, detail = json.loads(line)
        return Entry(str(image), int(size), int(modified), int(row), int(checksum), str(reason), str(detail))
    except (ValueError, TypeError):
        return None


def reserve(path: Path, count: int, size: int) -> None:
    """Make the draft at its full length, so that a full disk is noticed before the first image is decoded."""
    total = HEADER + count * size * size
    try:
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, total)
            file.write(npy_header(count, size))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        path.unlink(missing_ok=True)
        raise FdamedError(
            f"the disk has no space for the image cache ({total / 1e6:.0f} MB)",
            str(path.parent.parent),
            "Free some space, or choose a smaller image.size.",
        ) from None


def close_gaps(path: Path, kept: list[int], size: int) -> None:
    """Move the rows `kept` (ascending) to the front, truncate the rest and write the new count."""
    row_bytes = size * size
    with open(path, "rb+") as file:
        handle = file.fileno()
        for place, row in enumerate(kept):
            if place != row:
                os.pwrite(handle, os.pread(handle, row_bytes, HEADER + row * row_bytes), HEADER + place * row_bytes)
        os.ftruncate(handle, HEADER + len(kept) * row_bytes)
        os.pwrite(handle, npy_header(len(kept), size), 0)
        os.fsync(handle)


def publish(folder: Path, draft: Path, out: Path, settings: str, entries: list[Entry]) -> None:
    """Give the finished draft its public name and keep it as the store; without hard links, as a copy."""
    public = out.with_name(f".{out.name}.part")
    public.unlink(missing_ok=True)
    try:
        os.link(draft, public)
    except OSError:
        shutil.copyfile(draft, public)
    os.utime(public)
    public.replace(out)
    (folder / "store.jsonl").unlink(missing_ok=True)
    draft.replace(folder / "store.npy")
    write_text(folder / "store.jsonl", json.dumps(settings) + "\n" + "".join(e.line() for e in entries))
    for name in ("draft.jsonl", "left.npy", "left.jsonl"):
        (folder / name).unlink(missing_ok=True)
