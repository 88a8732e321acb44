"""Files that are either whole or absent, and folders that one run holds at a time."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fdamed.core.errors import FdamedError

NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "it is larger than a file may be here",
}
"""Numbers of the errors by which a file system says that there is no room."""


def private(folder: Path | str) -> Path:
    """A folder that only its owner can enter; one that is there keeps the rights that its owner gave it."""
    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextmanager
def atomic(path: Path | str, needed: int | None = None) -> Iterator[Path]:
    """Give a temporary name beside `path`; move it there, synced, only if the block ends well.

    `needed`: how many bytes the file will have, for the message when there is no room for them.
    """
    path = Path(path)
    with room_for(path, needed):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
        draft = Path(name)
        try:
            yield draft
            with open(draft, "rb+") as f:
                os.fsync(f.fileno())
            umask = os.umask(0)
            os.umask(umask)
            draft.chmod(0o666 & ~umask)
            draft.replace(path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        finally:
            draft.unlink(missing_ok=True)


def sweep(folder: Path, name: str = "*") -> None:
    """Remove the drafts that a killed process has left of `name`; only who holds the folder may."""
    for draft in folder.glob(f".{name}.*.part"):
        draft.unlink(missing_ok=True)


# --- room ------------------------------------------------------------------------------------------------------------


@contextmanager
def room_for(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn a write that fails for want of room into an error that says how much is needed and free."""
    try:
        yield
    except Exception as error:
        number = _no_room(error)
        if number is None:
            raise
        wanted = f"about {megabytes(needed)} needed" if needed is not None else "not known how much is needed"
        raise FdamedError(
            f"{path.name} cannot be written: {NO_ROOM[number]} ({wanted}, {megabytes(free(path.parent))} free)",
            str(path.parent),
            "Make room and start again: what was written before is whole and kept, and the work goes on from there.",
        ) from None


def _no_room(error: Exception) -> int | None:
    """Which of NO_ROOM it was; safetensors tells the number in its text only."""
    if isinstance(error, OSError):
        return error.errno if error.errno in NO_ROOM else None
    return next((n for n in NO_ROOM if f"(os error {n})" in str(error)), None)


def free(folder: Path) -> int:
    """Bytes that may still be written there."""
    return shutil.disk_usage(nearest(folder)).free


def nearest(folder: Path) -> Path:
    """The folder itself, or the one above it that exists."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


# --- content ---------------------------------------------------------------------------------------------------------


def write_text(path: Path | str, text: str) -> None:
    content = text.encode()
    with atomic(path, len(content)) as draft:
        draft.write_bytes(content)


def write_json(path: Path | str, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_lines(path: Path | str, records: list[dict[str, Any]]) -> None:
    """One JSON object a line."""
    write_text(path, "".join(json.dumps(r, ensure_ascii=False, allow_nan=False) + "\n" for r in records))


def read_json(path: Path | str) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def read_lines(path: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line]


def digest(content: Any) -> str:
    """Twelve hex digits of a JSON-able value, the same on every machine."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def digest_file(path: Path | str) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()[:12]
