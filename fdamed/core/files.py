"""Atomic writes, JSON files, digests, and errors that say how much disk space is missing."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fdamed.core.errors import FdamedError

NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "it exceeds the file size limit",
}
"""Error numbers of a file system without space."""


def private(folder: Path | str) -> Path:
    """Create a folder that only its owner can enter; an existing one keeps its permissions."""
    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextmanager
def atomic(path: Path | str, needed: int | None = None, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`; sync and rename it to `path` only if the block succeeds.

    `needed`: the size of the file, for the message if the disk is full. `sync`: False for a file that may get lost.
    """
    path = Path(path)
    with room_for(path, needed):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            yield draft
            if draft.exists():
                draft.chmod(0o666 & ~umask())  # safetensors makes files that only their owner can read
            if sync:
                _sync(draft, os.O_RDWR)
            draft.replace(path)
            if sync:
                _sync(path.parent, os.O_RDONLY)
        finally:
            draft.unlink(missing_ok=True)


def umask() -> int:
    """The permissions that this process's files do not get; only setting it returns it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path, name: str = "*") -> None:
    """Remove temporary files of `name` that a killed process left; call it only with the folder locked."""
    for draft in folder.glob(f".{name}.*.part"):
        draft.unlink(missing_ok=True)


# --- room ------------------------------------------------------------------------------------------------------------


@contextmanager
def room_for(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn a write that fails on a full disk into an error that says how much space is needed and free."""
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
            "Free some space and start again: finished files are complete and kept, and the work resumes from there.",
        ) from None


def _no_room(error: Exception) -> int | None:
    """The error number, if it is one of NO_ROOM; safetensors gives it only in its text."""
    if isinstance(error, OSError):
        return error.errno if error.errno in NO_ROOM else None
    return next((n for n in NO_ROOM if f"(os error {n})" in str(error)), None)


def free(folder: Path) -> int:
    """Free bytes in the folder's file system."""
    return shutil.disk_usage(nearest(folder)).free


def nearest(folder: Path) -> Path:
    """The folder itself, or its nearest existing parent."""
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
    """One JSON object per line."""
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
