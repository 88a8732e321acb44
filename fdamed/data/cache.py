"""A client's images as one memory-mapped uint8 array, decoded once and in parallel.

Memory does not depend on the number of files: workers write into the file, this process only keeps the journal.
"""

from __future__ import annotations

import csv
import json
import os
import stat
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np
import pandas as pd

from fdamed.core.disclosure import cell_safe
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, digest
from fdamed.core.locks import locked
from fdamed.core.progress import track
from fdamed.data.cache_journal import (
    HEADER,
    TRANSIENT,
    Earlier,
    Entry,
    close_gaps,
    publish,
    read_earlier,
    reserve,
)
from fdamed.data.gray_image import Unreadable
from fdamed.data.image import VERSION, read_gray
from fdamed.data.manifest import SPLITS
from fdamed.data.safe_paths import Roots
from fdamed.data.worker_pool import Refusal, run_isolated

NOTED = 32
"""Files between two flushes of the journal."""
PRELOAD = (
    "fdamed.data.transforms",
    "fdamed.data.dicom.reader",
    "pydicom.pixels",
    "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin",
)


@dataclass(frozen=True)
class Task:
    """One file to decode into one row."""

    row: int
    path: str


@dataclass(frozen=True)
class Report:
    """What a build did: images in the cache, how many of them were decoded now, and rejects by reason."""

    images: int
    decoded: int
    refused: dict[str, int]


def build(
    rows: pd.DataFrame,
    root: Path,
    size: int,
    equalize: bool,
    out_images: Path,
    out_order: Path,
    rejects: Path,
    workers: int,
    reject_share: float,
    seconds: float = 30.0,
    what: str = "cache",
    allowed: Sequence[str] = (),
) -> Report:
    """Decode the images of a manifest's rows into `out_images`; the order is by split, so that a split is one slice."""
    rows = in_order(rows)
    folder = out_images.parent / ".cache"
    settings = digest({"version": VERSION, "size": size, "equalize": equalize})
    with locked(folder):
        if (folder / "draft.jsonl").exists():
            for suffix in ("npy", "jsonl"):
                (folder / f"draft.{suffix}").replace(folder / f"left.{suffix}")
        earlier = [read_earlier(folder, name, settings) for name in ("left", "store")]
        draft = folder / "draft.npy"
        reserve(draft, len(rows), size)
        with open(folder / "draft.jsonl", "w", encoding="utf-8") as journal:
            journal.write(json.dumps(settings) + "\n")
            roots = Roots.of(root, allowed)
            entries = [_look(str(image), roots) for image in rows["image"].to_numpy(dtype=object)]
            _reuse(entries, earlier, draft, size, journal)
            fresh = [row for row, e in enumerate(entries) if e.row < 0 and not e.reason]
            _decode(entries, fresh, roots, draft, size, equalize, workers, seconds, journal, what)
        _write_rejects(folder / "rejects.csv", rows, entries)
        _check(rows, entries, reject_share, folder / "rejects.csv")
        kept = [row for row, e in enumerate(entries) if not e.reason]
        close_gaps(draft, kept, size)
        final = [replace(entries[row], row=place) for place, row in enumerate(kept)]
        order = rows.iloc[kept].drop(columns="manifest_row").reset_index(drop=True)
        order["crc32"] = np.array([e.checksum for e in final], dtype=np.int64)
        with atomic(out_order) as part:
            order.to_parquet(part, index=False)
        _write_rejects(rejects, rows, entries)
        refused = [e for e in entries if e.reason]
        publish(folder, draft, out_images, settings, final + refused)
    return Report(len(kept), len(fresh), dict(Counter(e.reason for e in refused)))


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """The manifest's rows by split and, within a split, as they came; `manifest_row` is their old place."""
    rank = rows["split"].map({s: i for i, s in enumerate(SPLITS)}).to_numpy()
    out = rows.assign(manifest_row=np.arange(len(rows)))
    return out.iloc[np.argsort(rank, kind="stable")].reset_index(drop=True)


def _look(image: str, roots: Roots) -> Entry:
    """The file as it is now, not yet decoded (row -1), or its reason of rejection."""
    try:
        try:
            found = roots.locate(image).stat()
        except OSError as error:
            gone = isinstance(error, (FileNotFoundError, NotADirectoryError))
            raise Unreadable("MISSING" if gone else "UNREADABLE") from None
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("MISSING")
    except Unreadable as refused:
        return Entry(image, -1, -1, -1, 0, refused.reason, refused.detail)
    return Entry(image, found.st_size, found.st_mtime_ns, -1, 0)


def _reuse(entries: list[Entry], earlier: list[Earlier], draft: Path, size: int, journal: TextIO) -> None:
    """Copy an earlier run's rows of unchanged files if their checksums match, and repeat its lasting rejections."""
    with open(draft, "rb+", buffering=0) as out:
        for source in earlier:
            with source.rows(size * size) as rows:
                for row, entry in enumerate(entries):
                    old = source.entries.get(entry.image)
                    if entry.row >= 0 or entry.reason or old is None or not old.same_file(entry):
                        continue
                    if old.reason:
                        if old.reason not in TRANSIENT:
                            entries[row] = replace(entry, reason=old.reason, detail=old.detail)
                            journal.write(entries[row].line())
                        continue
                    content = rows.take(old)
                    if content is not None:
                        os.pwrite(out.fileno(), content, HEADER + row * size * size)
                        entries[row] = replace(entry, row=row, checksum=old.checksum)
                        journal.write(entries[row].line())
    journal.flush()


def _decode(
    entries: list[Entry],
    fresh: list[int],
    roots: Roots,
    draft: Path,
    size: int,
    equalize: bool,
    workers: int,
    seconds: float,
    journal: TextIO,
    what: str,
) -> None:
    """Decode the rows `fresh` into the draft and write each to the journal, so that a killed run loses little."""
    tasks = (Task(row, str(roots.locate(entries[row].image))) for row in fresh)
    work = partial(place, draft=str(draft), size=size, equalize=equalize)
    results = run_isolated(tasks, work, workers, seconds, preload=PRELOAD)
    for done, (task, result) in enumerate(track(results, what, len(fresh)) if fresh else ()):
        entry = entries[task.row]
        if isinstance(result, Refusal):
            entries[task.row] = replace(entry, reason=result.reason, detail=result.detail)
        else:
            entries[task.row] = replace(entry, row=task.row, checksum=result)
        journal.write(entries[task.row].line())
        if done % NOTED == 0:
            journal.flush()


def place(task: Task, draft: str, size: int, equalize: bool) -> int:
    """In a worker: decode one file, write it into its row of the draft, and give the checksum of the row."""
    from fdamed.data.transforms import transform

    row = transform(read_gray(task.path), size, equalize).tobytes()
    handle = os.open(draft, os.O_WRONLY)
    try:
        os.pwrite(handle, row, HEADER + task.row * len(row))
    finally:
        os.close(handle)
    return zlib.crc32(row)


def _write_rejects(path: Path, rows: pd.DataFrame, entries: list[Entry]) -> None:
    numbers = rows["manifest_row"].to_numpy()
    with atomic(path) as part, open(part, "w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("file", "row", "reason", "detail"))
        refused = ((e, n) for n, e in zip(numbers, entries, strict=True) if e.reason)
        writer.writerows((cell_safe(e.image), n, e.reason, cell_safe(e.detail)) for e, n in refused)


def _check(rows: pd.DataFrame, entries: list[Entry], reject_share: float, listed: Path) -> None:
    """Raise if too many images were rejected, or if a class of a part is empty."""
    refused = np.array([bool(e.reason) for e in entries])
    counts = Counter(e.reason for e in entries if e.reason)
    reasons = ", ".join(f"{r} {n}" for r, n in counts.most_common())
    if not len(entries):
        raise FdamedError(
            "the manifest has no rows", str(listed.parent.parent), "Check the `split` section of the configuration."
        )
    if refused.mean() > reject_share or refused.all():
        raise FdamedError(
            f"{int(refused.sum())} of {len(entries)} images were rejected ({reasons})",
            str(listed),
            f"Fix or remove these files, or raise data.reject_share (now {reject_share:g}).",
        )
    for (split, y), group in rows.groupby(["split", "y"], observed=True):
        if refused[group.index.to_numpy()].all():
            raise FdamedError(
                f"all {len(group)} images with y = {y} in split {split} were rejected ({reasons})",
                str(listed),
                "Fix these files, or change the `split` settings.",
            )
