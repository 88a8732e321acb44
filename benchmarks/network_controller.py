"""FLARE's side of `benchmarks.network_wire`: a controller that times round trips over fdamed's own wire."""

from __future__ import annotations

import resource
import secrets
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller, Task
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fdamed.core.files import write_json
from fdamed.federation.transport.flare.forwarder import TASK
from fdamed.federation.transport.flare.wire import Messages, question

HOSPITALS = tuple(f"h{i}" for i in range(5))
SIZES = {"tiny": 100, "model_3mb": 2_900_000, "model_45mb": 45_000_000}
REPEATS = {"tiny": 15, "model_3mb": 9, "model_45mb": 5}


def timed(exchange: Callable[[Mapping[str, bytes]], Any]) -> dict[str, float]:
    """Name of a size -> the median of the seconds until all hospitals have answered."""
    out = {}
    for name, size in SIZES.items():
        seconds = []
        for _ in range(REPEATS[name] + 1):  # the first one warms up
            request = secrets.token_bytes(size)
            begin = time.perf_counter()
            replies = exchange(dict.fromkeys(HOSPITALS, request))
            seconds.append(time.perf_counter() - begin)
            if any(replies.pop(h) != request for h in HOSPITALS):  # one by one, as they are decoded
                raise SystemExit("an echo differs")
            del replies, request
        out[name] = round(statistics.median(seconds[1:]), 4)
    return out


class Timer(Controller):  # type: ignore[misc]
    """Greets the hospitals, times the messages and writes what was found."""

    def __init__(self, found: str) -> None:
        super().__init__(task_check_period=0.05)
        self._found = Path(found)

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to end."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        task = Task(TASK, question(b"hello", 60.0), timeout=120)
        self.broadcast_and_wait(task, fl_ctx, list(HOSPITALS), len(HOSPITALS), abort_signal=abort_signal)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        found: dict[str, Any] = timed(Messages(fl_ctx, 300.0, abort_signal).exchange)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        write_json(self._found, found | {"server_mb": round(after), "server_mb_before": round(before)})

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Nothing waits for it."""
