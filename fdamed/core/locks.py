"""Folders that one process at a time may write to."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from fdamed.core.errors import FdamedError
from fdamed.core.files import room_for

FILE = ".lock"


@contextmanager
def locked(folder: Path | str, wait: float = 0.0) -> Iterator[None]:
    """Lock `folder` for this process; a second process gets an error after `wait` seconds.

    The lock ends with the process.
    """
    folder, end = Path(folder), time.monotonic() + wait
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / FILE, "a+", encoding="utf-8") as lock:
        while not _flock(lock):
            if time.monotonic() < end:
                time.sleep(0.5)
                continue
            lock.seek(0)
            holder = lock.read().strip() or "the other process"
            fix = f"Wait until {holder} ends, or stop it; the lock ends with its process."
            raise FdamedError("another run is writing to this folder", str(folder), fix)
        holder = f"process {os.getpid()} on {socket.gethostname()}, started {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        with room_for(folder / FILE, len(holder)):
            lock.truncate(0)
            lock.write(holder)
            lock.flush()
        try:
            yield
        finally:
            lock.truncate(0)


def _flock(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(folder: Path) -> bool:
    """Whether a process is writing to this folder now."""
    try:
        with open(folder / FILE) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
