"""SIGTERM, which SLURM sends before a time limit or a preemption, stops a run so that it can resume.

If the last finished round is on disk, the run stops at once and later repeats the current round with the same bits.
Otherwise it first finishes the round and writes its checkpoint.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

WATCH = 1.0
"""Seconds between two looks whether the parent is still there."""
EXIT = 75
"""Exit code (EX_TEMPFAIL): nothing is wrong, start it again."""


class Stopped(BaseException):
    """The run was asked to stop and did; not an Exception, so that no handler takes it for an error."""


class Stop:
    """Whether this process was asked to stop, and whether it may do so at once."""

    def __init__(self) -> None:
        self.asked = False
        self._at_once = True

    def handle(self, signal_number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._at_once:
            raise Stopped

    def at_once(self, allowed: bool) -> None:
        """From now on a signal stops the run at once, or at the end of the round."""
        self._at_once = allowed
        if allowed and self.asked:
            raise Stopped

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle SIGTERM here; signals reach only the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self.handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
            self.asked, self._at_once = False, True


stop = Stop()
"""One per process, because signals are sent to processes."""


def end_with_parent() -> None:
    """End this process when its parent is gone; without it, it would run on for ever."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
