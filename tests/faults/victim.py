"""`fdamed` that gets a signal from itself: `python -m tests.faults.victim WHAT NUMBER SIGNAL -- ARGUMENTS`.

WHAT is `step` (before the optimizer's NUMBER-th step) or `file` (before the NUMBER-th file is opened for writing,
renamed, linked or removed below the working directory), or `never`: then the last line has how many of each there
were. Checkpoints stay when a run is finished, so that a test can compare them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from fdamed.cli.commands import federate
from fdamed.cli.main import main

EVENTS = ("os.rename", "os.remove", "os.link", "os.mkdir", "os.truncate")


class Counter:
    """Counts what happens, and sends the signal when it is time."""

    def __init__(self, what: str, number: int, signal_number: int) -> None:
        self.what, self.number, self.signal_number = what, number, signal_number
        self.counts = {"step": 0, "file": 0}

    def note(self, what: str) -> None:
        self.counts[what] += 1
        if what == self.what and self.counts[what] == self.number:
            os.kill(os.getpid(), self.signal_number)

    def heard(self, event: str, arguments: tuple[object, ...]) -> None:
        written = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (written or event in EVENTS) and isinstance(arguments[0], str | os.PathLike):
            path = os.fspath(arguments[0])
            if "results" in path and ".lock" not in path:
                self.note("file")


def counted(counter: Counter) -> None:
    """Let every step of the optimizer be counted."""
    from fdamed.training.optimizer import Optimizer

    step = Optimizer.step

    def noted(self: Optimizer, *given: object) -> None:
        counter.note("step")
        step(self, *given)

    Optimizer.step = noted


if __name__ == "__main__":
    what, number, name, _, *arguments = sys.argv[1:]
    counter = Counter(what, int(number), getattr(signal, name))
    federate.clear = lambda *_: None
    counted(counter)
    sys.addaudithook(counter.heard)
    code = main(arguments)
    if what == "never":
        Path("counts.json").write_text(json.dumps(counter.counts))
    sys.exit(code)
