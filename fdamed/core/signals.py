"""A polite end: SIGTERM, as SLURM sends it before a time limit or a preemption, stops a run where it can go on.

While the last finished round is on disk a run stops at once, in the middle of whatever it does: that round is begun
again, with the same bits. Otherwise it ends the round and writes it down first.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT = 75
"""What the process ends with (EX_TEMPFAIL): nothing is wrong, start it again."""


class Stopped(BaseException):
    """The run was asked to stop and did; not an Exception, so that nothing on the way takes it for a fault."""


class Stop:
    """Whether this process was asked to stop, and whether it may do so at once."""

    def __init__(self) -> None:
        self.asked = False
        self._at_once = True

    def heard(self, signal_number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._at_once:
            raise Stopped

    def at_once(self, allowed: bool) -> None:
        """From here on a signal stops the run where it stands, or waits for the end of the round."""
        self._at_once = allowed
        if allowed and self.asked:
            raise Stopped

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGTERM as a question, not as an order; signals reach the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self.heard)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
            self.asked, self._at_once = False, True


stop = Stop()
"""Signals come to a process, not to a run: this is the one state that is the process's own."""
