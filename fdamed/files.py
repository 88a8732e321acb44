"""Files that are either whole or absent, and folders that one run holds at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fdamed.errors import FdamedError


def private(folder: Path | str) -> Path:
    """A folder that only its owner can enter; one that is there keeps the rights that its owner gave it."""
    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextmanager
def atomic(path: Path | str) -> Iterator[Path]:
    """Give a temporary name beside `path`; move it there, synced, only if the block ends well."""
    path = Path(path)
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


def write_text(path: Path | str, text: str) -> None:
    with atomic(path) as draft:
        draft.write_text(text, encoding="utf-8")


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


@contextmanager
def held(folder: Path | str) -> Iterator[None]:
    """Hold `folder` for this process; a second holder gets an error at once. The lock dies with the process."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FdamedError(
                "another run is writing to this folder",
                str(folder),
                "Wait until it ends, or stop it; the lock goes away with its process.",
            ) from None
        yield
