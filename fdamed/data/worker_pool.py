"""Work on files in processes that may die: a crash, a hang or a bomb costs one file, never the run.

Workers are forked from a server process that has imported the heavy libraries once (MONAI alone takes seconds), so that
a dead worker is replaced in milliseconds and this process stays small and free of decoders.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import resource
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Generic, TypeVar

from fdamed.core.errors import FdamedError
from fdamed.data.gray_image import REASONS, Unreadable

T = TypeVar("T")
R = TypeVar("R")
AHEAD = 2
"""Files that a worker has in hand: one more than it works on, so that it never waits for the next one."""
SECONDS = 30.0
MEMORY = 2 << 30
"""Address space that a worker may take beyond what it starts with: fifty megapixels need less than half of it."""
STARTING = 300.0
"""Seconds for the first worker to be there; importing from a slow network disk counts too."""


@dataclass(frozen=True)
class Refusal:
    reason: str
    detail: str


@dataclass(eq=False)
class _Worker(Generic[T]):
    process: ForkServerProcess
    pipe: Connection
    started: float
    ready: bool = False
    in_hand: deque[T] = field(default_factory=deque)


def guarded(
    items: Iterable[T],
    work: Callable[[T], R],
    workers: int,
    seconds: float = SECONDS,
    memory: int = MEMORY,
    preload: tuple[str, ...] = (),
) -> Iterator[tuple[T, R | Refusal]]:
    """Give each item with what `work` made of it, or with why it was refused; in the order in which they are done.

    `work` is a picklable function; it may raise Unreadable (the item is refused) - any other exception ends the run.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*preload, work_module(work)])
    waiting = iter(items)
    again: deque[T] = deque(itertools.islice(waiting, 1))
    if not again:
        return
    crew: list[_Worker[T]] = []
    exhausted = False

    def feed(worker: _Worker[T], ahead: int = AHEAD) -> None:
        nonlocal exhausted
        while len(worker.in_hand) < ahead:
            if again:
                item = again.popleft()
            elif exhausted:
                return
            else:
                try:
                    item = next(waiting)
                except StopIteration:
                    exhausted = True
                    return
            if not worker.in_hand:
                worker.started = time.monotonic()
            worker.in_hand.append(item)
            # A pipe whose reader just died: `wait` will report it, and the item is handed to another worker.
            with suppress(BrokenPipeError):
                worker.pipe.send(item)

    try:
        for _ in range(max(1, workers)):
            crew.append(_hire(context, work, memory))
        for ahead in range(1, AHEAD + 1):
            for worker in crew:
                feed(worker, ahead)
        while any(worker.in_hand for worker in crew) or again:
            now = time.monotonic()
            limits = [w.started + (seconds if w.ready else STARTING) for w in crew if w.in_hand]
            ready = wait([w.pipe for w in crew], timeout=max(0.0, min(limits) - now))
            for place, worker in enumerate(crew):
                if worker.pipe in ready:
                    try:
                        reply = worker.pipe.recv()
                    except (EOFError, ConnectionResetError):
                        reply = None
                    if reply is not None:
                        worker.started = time.monotonic()
                        if not worker.ready:
                            worker.ready = True
                            continue
                        item = worker.in_hand.popleft()
                        feed(worker)
                        if isinstance(reply, Exception):
                            raise reply
                        yield item, reply
                        continue
                    reason = "CRASHED"
                elif worker.in_hand and time.monotonic() > worker.started + (seconds if worker.ready else STARTING):
                    reason = "TIMEOUT"
                else:
                    continue
                _dismiss(worker)
                if not worker.ready:
                    raise FdamedError(
                        "a decoding process did not start",
                        f"{workers} workers",
                        "Is there enough memory? Try fewer --workers.",
                    )
                crew[place] = _hire(context, work, memory)
                if worker.in_hand:
                    culprit = worker.in_hand.popleft()
                    again.extend(worker.in_hand)
                    feed(crew[place])
                    yield culprit, Refusal(reason, REASONS[reason])
    finally:
        for worker in crew:
            _dismiss(worker)


def work_module(work: Any) -> str:
    """Module that defines a function or the function inside a functools.partial."""
    return str(getattr(work, "func", work).__module__)


def _hire(context: Any, work: Callable[[T], R], memory: int) -> _Worker[T]:
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, work, memory), daemon=True)
    process.start()
    there.close()
    return _Worker(process, here, time.monotonic())


def _dismiss(worker: _Worker[T]) -> None:
    worker.pipe.close()
    worker.process.kill()
    worker.process.join()


def _serve(pipe: Connection, work: Callable[[Any], Any], memory: int) -> None:
    """The life of a worker: one file after the other until the pipe closes."""
    _fence(memory)
    pipe.send("ready")
    while True:
        try:
            item = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        reply: Any
        try:
            reply = work(item)
        except Unreadable as refused:
            reply = Refusal(refused.reason, refused.detail)
        except MemoryError:
            reply = Refusal("MEMORY", REASONS["MEMORY"])
        except Exception as error:
            reply = error
        try:
            pipe.send(reply)
        except (BrokenPipeError, ConnectionResetError):
            return


def _fence(memory: int) -> None:
    """Bound this process's memory, keep it to one thread and silence the C decoders, whose messages help nobody."""
    import signal
    import sys

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if Path("/proc/self/statm").exists():
        now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = now + memory if hard == resource.RLIM_INFINITY else min(now + memory, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
