"""Work on files in processes that may die: a crash, a hang or a bomb costs one file, never the run.

Workers are forked from a server process that has imported the heavy libraries once (torch takes a second), so that
a dead worker is replaced in milliseconds and this process stays small and free of decoders.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, TimeoutError
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pebble import ProcessExpired, ProcessPool

from fdamed.core.errors import FdamedError
from fdamed.data.image import Unreadable

T = TypeVar("T")
R = TypeVar("R")
PRELOAD = ("fdamed.data.transforms", "fdamed.data.dicom.reader", "pydicom.pixels", "PIL.JpegImagePlugin",
           "PIL.PngImagePlugin")  # fmt: skip
BATCH = 512
"""Files handed to the workers at a time: bounds the memory."""
CHUNK = 16
"""Of which a worker gets so many at once: handing one over takes five times as long as decoding a small image."""
SECONDS = 30.0
MEMORY = 2 << 30
"""Address space that a worker may take beyond what it starts with: fifty megapixels need less than half of it."""
STARTING = 300.0
"""Seconds for the first worker to start; importing from a slow network disk counts too."""


def run_isolated(
    items: Iterable[T], work: Callable[[T], R], workers: int, seconds: float = SECONDS
) -> Iterator[tuple[T, R | Unreadable]]:
    """Yield each item with the result of `work`, or with why it was rejected, in order.

    `work` is a picklable function; it may raise Unreadable (the item is rejected); any other exception ends the run.
    """
    waiting = iter(items)
    batch = list(islice(waiting, BATCH))
    if not batch:
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, str(getattr(work, "func", work).__module__)])
    pool = ProcessPool(workers, initializer=_limit, context=context)
    try:
        _check_start(pool)
        while batch:
            chunks = [batch[k : k + CHUNK] for k in range(0, len(batch), CHUNK)]
            futures = [pool.schedule(_attempt_all, args=(work, chunk), timeout=seconds) for chunk in chunks]
            for chunk, future in zip(chunks, futures, strict=True):
                found = _result(future)
                if isinstance(found, Unreadable):  # one item has cost the worker its life; the others need not suffer
                    alone = [pool.schedule(_attempt, args=(work, item), timeout=seconds) for item in chunk]
                    found = [_result(one) for one in alone]
                yield from zip(chunk, found, strict=True)
            batch = list(islice(waiting, BATCH))
    finally:
        pool.stop()  # type: ignore[no-untyped-call]
        pool.join()


def _check_start(pool: ProcessPool) -> None:
    try:
        pool.schedule(os.getpid, timeout=STARTING).result()
    except (ProcessExpired, TimeoutError, CancelledError, RuntimeError):
        fix = "Is there enough memory? Try fewer --workers."
        raise FdamedError("a decoding process did not start", "worker processes", fix) from None


def _result(future: Future[Any]) -> Any:
    try:
        return future.result()
    except TimeoutError:
        return Unreadable("TIMEOUT")
    except ProcessExpired:
        return Unreadable("CRASHED")


def _attempt_all(work: Callable[[T], R], items: list[T]) -> list[R | Unreadable]:
    return [_attempt(work, item) for item in items]


def _attempt(work: Callable[[T], R], item: T) -> R | Unreadable:
    try:
        return work(item)
    except Unreadable as rejected:
        return rejected
    except MemoryError:
        return Unreadable("MEMORY")


def _limit() -> None:
    """Bound this process's memory, keep it to one thread and silence the C decoders, whose messages help nobody."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if Path("/proc/self/statm").exists():
        now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = now + MEMORY if hard == resource.RLIM_INFINITY else min(now + MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
