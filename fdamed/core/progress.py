"""Progress of long loops: a bar on a terminal, plain log messages elsewhere; and the console for tables."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
log = logging.getLogger(__name__)
EVERY = 10.0
"""Seconds between two messages."""
PIPED = 140
"""Columns of a table if standard output is not a terminal."""


def console() -> Console:
    """Standard output for tables: colors only on a terminal, and none if NO_COLOR is set."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPED)


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Pass `items` on and report the progress."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    if not sys.stderr.isatty() or not log.isEnabledFor(logging.INFO):
        return _messages(items, what, total)
    from rich.console import Console
    from rich.progress import track as bar

    return iter(bar(items, what, total, console=Console(stderr=True)))


def _messages(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    begin = last = time.monotonic()
    done = 0
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last >= EVERY:
            last = now
            left = f" of {total}, about {(now - begin) / done * (total - done):.0f} s left" if total else ""
            log.info(f"{what}: {done}{left}")
    log.info(f"{what}: {done} done in {time.monotonic() - begin:.1f} s")
