"""A client's images as one memory-mapped uint8 array, decoded once and in parallel.

Memory does not depend on the number of files: workers write into the file, this process only keeps the journal.
"""

from __future__ import annotations

import stat
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from zlib import crc32

import numpy as np
import pandas as pd

from fdamed.config.datasets import DataSet
from fdamed.config.model import Image
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, digest, write_text
from fdamed.core.locks import locked
from fdamed.core.progress import track
from fdamed.data.cache_store import HEADER, Entry, close_gaps, promote_draft, publish, reserve, reuse, write_journal
from fdamed.data.gray_image import Unreadable
from fdamed.data.image import VERSION, read_gray
from fdamed.data.manifest import SPLITS
from fdamed.data.row_reader import Rejects
from fdamed.data.safe_paths import Roots
from fdamed.data.worker_pool import run_isolated

Task = tuple[int, str]
"""Row, and the file to decode into it."""


@dataclass(frozen=True)
class Report:
    """What a build did: images in the cache, how many of them were decoded now, and rejects by reason."""

    images: int
    decoded: int
    rejected: dict[str, int]


def build(rows: pd.DataFrame, folder: Path, data: DataSet, image: Image, workers: int, what: str = "cache") -> Report:
    """Decode the images of a manifest's rows into the folder's images.npy.

    The order is by split, so that a split is one slice; order.parquet has the rows, rejects.csv the rejected files.
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
        entries = [_look(path, roots) for path in rows["image"].tolist()]
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
        rejected = list_rejects(rows, entries)
        write_text(hidden / "rejects.csv", rejected.as_csv())
        _check(rows, entries, rejected, data.reject_share, str(hidden / "rejects.csv"))
        kept = [row for row, e in enumerate(entries) if not e.reason]
        if len(kept) < len(rows):
            close_gaps(draft, kept, image.size)
        final = [replace(entries[row], row=place) for place, row in enumerate(kept)]
        write_journal(hidden, settings, final + [e for e in entries if e.reason])
        order = rows.iloc[kept].drop(columns="manifest_row").reset_index(drop=True)
        with atomic(folder / "order.parquet") as part:
            order.assign(crc32=np.array([e.checksum for e in final], dtype=np.int64)).to_parquet(part, index=False)
        write_text(folder / "rejects.csv", rejected.as_csv())
        publish(draft, folder / "images.npy")
        promote_draft(hidden)
    return Report(len(kept), len(tasks), rejected.counts())


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """The manifest's rows by split and, within a split, as they came; `manifest_row` is their old place."""
    rank = rows["split"].map({s: i for i, s in enumerate(SPLITS)}).to_numpy()
    out = rows.assign(manifest_row=np.arange(len(rows)))
    return out.iloc[np.argsort(rank, kind="stable")].reset_index(drop=True)


def _look(image: str, roots: Roots) -> Entry:
    """The file as it is now, not yet decoded, or its reason of rejection."""
    try:
        found = roots.locate(image).stat()
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError
        return Entry(image, found.st_size, found.st_mtime_ns)
    except Unreadable as error:
        rejected = error
    except (FileNotFoundError, NotADirectoryError):
        rejected = Unreadable("MISSING")
    except OSError:
        rejected = Unreadable("UNREADABLE")
    return Entry(image, -1, -1, reason=rejected.reason, detail=rejected.detail)


def place(task: Task, draft: str, image: Image) -> int:
    """In a worker: decode one file, write it into its row of the draft, and return the checksum of the row."""
    from fdamed.data.transforms import transform

    row, path = task
    pixels = transform(read_gray(path), image.size, image.equalize)
    np.memmap(draft, np.uint8, "r+", HEADER + row * pixels.size, pixels.shape)[:] = pixels
    return crc32(pixels.data)


def list_rejects(rows: pd.DataFrame, entries: list[Entry]) -> Rejects:
    """The rejected files, each with its row of the manifest."""
    rejects = Rejects()
    for number, entry in zip(rows["manifest_row"], entries, strict=True):
        if entry.reason:
            rejects.add(entry.image, number, entry.reason, entry.detail)
    return rejects


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
    for (split, y), group in rows.groupby(["split", "y"], observed=True):
        if rejected[group.index].all():
            what = f"all {len(group)} images with y = {y} in split {split} were rejected ({reasons})"
            raise FdamedError(what, listed, "Fix these files, or change the `split` settings.")
