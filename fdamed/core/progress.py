"""Progress: a bar where somebody looks, plain lines where only a log file listens."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
EVERY = 10.0
"""Seconds between two plain lines."""


PIPED = 140
"""Columns of a table where standard output is no terminal."""


def console() -> Console:
    """Standard output for tables: colors on a terminal alone, and none where NO_COLOR is set."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPED)


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Pass `items` on and tell how far they are."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    return _bar(items, what, total) if sys.stderr.isatty() else _lines(items, what, total)


def _bar(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield from progress.track(items, total=total, description=what)


def _lines(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    begin = last = time.monotonic()
    done = 0
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last >= EVERY:
            last = now
            left = f", about {(now - begin) / done * (total - done):.0f} s left" if total else ""
            print(f"{what}: {done}{f' of {total}' if total else ''}{left}", file=sys.stderr, flush=True)
    print(f"{what}: {done} done in {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
