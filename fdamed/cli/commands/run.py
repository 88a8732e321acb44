"""Run the workflow of a study: one line per stage with its progress, the full output in a log file.

It starts Snakemake in the current folder; what follows `--` is passed to it.

Examples:
    fdamed run --cores 2
    fdamed run --config config/config.yaml --cores 8 -- --forcerun report_page
    fdamed run -- -n
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fdamed.cli.options import BEFORE, LEFT_OUT, read_config
from fdamed.core.files import private
from fdamed.core.gpus import usable
from fdamed.core.progress import EVERY, console
from fdamed.core.signals import EXIT
from fdamed.pipeline.paths import Places

GROUP = "run", 0
OPTIONS = {
    "--config": "",
    "--cores": {"default": "all", "metavar": "N", "help": "cores to use (default: all)"},
    "arguments": {"nargs": "...", "metavar": "-- SNAKEMAKE ARGUMENTS"},
}
STAGES = {
    "data": ("phantom", "ingest", "split", "leakage", "partition", "prepare"),
    "images": ("cache",),
    "initial weights": ("init",),
    "advice": ("advise",),
    "training": ("federate", "lead", "features", "fit_classical"),
    "choice of candidates": ("choose",),
    "evaluation": ("evaluate", "analyze"),
    "audits": ("audit", "attributes", "membership"),
    "report": ("report_page", "track"),
}
"""Stage -> its rules, in the order of the work."""
STARTED = re.compile(r"(?:local)?rule (\w+):$")
FINISHED = re.compile(r"Finished jobid: \d+ \(Rule: (\w+)\)")
FAILED = re.compile(r"Error in rule (\w+):$")
LOG = re.compile(r"    log: (.+?)(?: \(check log file.*)?$")
EXCERPT, WIDTH = 12, 30
PLAIN = {"-n", "--dry-run", "--dryrun", "-S", "--summary", "-D", "--detailed-summary", "-l", "--list-rules", "--dag"}
"""Arguments with which Snakemake runs nothing: its output is what was asked for."""


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    more = arguments.arguments[1:] if arguments.arguments[:1] == ["--"] else arguments.arguments
    command = ["snakemake", "--configfile", *arguments.config]
    command += ["--config", f"variant={arguments.variant}"] if arguments.variant else []
    if (count := usable(config.train.device)) and "--resources" not in more:
        command += ["--resources", f"gpu={count * config.train.jobs_per_gpu}"]
    command += ["--cores", arguments.cores]  # takes one value: a target that follows is none of the lists above
    places = Places.of(config)
    root, log = places.root, private(places.clients) / "logs" / "snakemake.log"  # it has paths, host and login name
    log.parent.mkdir(exist_ok=True)
    print(f"{config.study}: full output in {log}", flush=True)
    with open(log, "a", encoding="utf-8", buffering=1) as full:
        code = follow([*command, *more], full, plain=bool(PLAIN.intersection(more)))
    if code == 0 and not more:
        print(f"report: {root / 'report' / 'index.html'}")
    sys.exit(code)


@dataclass
class Stage:
    """How many jobs a stage has and has finished, and when."""

    name: str
    total: int = 0
    done: int = 0
    begin: float | None = None
    end: float = 0.0

    def text(self, now: float) -> str:
        """For example `7 of 33, about 4 min left`."""
        if self.begin is None:
            return f"{self.done} of {self.total}"
        if self.done >= self.total:
            return f"{self.done} of {self.total}, {duration(self.end - self.begin)}"
        if not self.done:
            return f"0 of {self.total}, running"
        left = (self.end - self.begin) / self.done * (self.total - self.done) - (now - self.end)
        return f"{self.done} of {self.total}, about {duration(max(left, 1))} left"


def duration(seconds: float) -> str:
    unit, length = next((u, n) for u, n, most in (("s", 1, 100), ("min", 60, 6000), ("h", 3600, 1e9)) if seconds < most)
    return f"{seconds / length:.0f} {unit}"


@dataclass
class Progress:
    """What Snakemake's output says about the stages."""

    stages: dict[str, Stage] = field(default_factory=lambda: {name: Stage(name) for name in STAGES})
    failed: int = 0
    stopped: int = 0
    """The signal that stops the study: jobs that end now have not failed."""
    _counting: bool = False
    _failing: str = ""
    _reasons: set[str] = field(default_factory=set)

    def read(self, line: str, now: float) -> str:
        """Take in one line; returns what a person must see at once, or nothing."""
        if line == "Job stats:":
            self._counting = True
        elif self._counting:
            word, _, count = line.partition(" ")
            if count.strip().isdigit() and (stage := self._of(word)):
                stage.total += int(count)
            self._counting = bool(line)
        elif (found := STARTED.match(line)) and (stage := self._of(found[1])):
            stage.begin = stage.begin or now
        elif (found := FINISHED.match(line)) and (stage := self._of(found[1])):
            stage.done, stage.end = stage.done + 1, now
        elif (found := FAILED.match(line)) and not self.stopped:
            self.failed, self._failing = self.failed + 1, found[1]
        elif self._failing and ((found := LOG.match(line)) or not line):
            rule, self._failing = self._failing, ""
            place, reason = excerpt(found[1]) if found else ("", "")
            known = reason and reason in self._reasons
            self._reasons.add(reason)
            return f"failed: {rule}{place}" + ("\n    for the same reason as above" if known else reason)
        elif line.startswith((LEFT_OUT, BEFORE)):
            return line
        elif line.startswith("Nothing to be done"):
            return "everything is up to date"
        return ""

    def _of(self, rule: str) -> Stage | None:
        """The stage of a rule; the batches of `federate` are numbered."""
        bare = re.sub(r"_\d+$", "", rule)
        return next((self.stages[name] for name, rules in STAGES.items() if bare in rules), None)

    def active(self) -> list[Stage]:
        return [stage for stage in self.stages.values() if stage.total]


def excerpt(path: str) -> tuple[str, str]:
    """The path of a job's log, and its last lines; of a client's log, which may quote patients' data, the path only."""
    lines: list[str] = []
    with suppress(OSError):
        if "clients" not in Path(path).parts:
            lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()[-EXCERPT:]
    return f"\n    log: {path}", "".join(f"\n    {line}" for line in lines)


def follow(command: list[str], full: IO[str], plain: bool = False) -> int:
    """Run the command, write its output to `full` and show the progress, or the output as it is; the exit code."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env=os.environ | {"PATH": path},
        process_group=0,
    )
    progress, last = Progress(), deque[str](maxlen=25)

    def lines() -> Iterator[str]:
        for line in child.stdout or ():
            full.write(line)
            last.append(line.rstrip("\n"))
            yield last[-1]

    with _forwarding(child, progress):
        (_as_it_is if plain else _bars if sys.stdout.isatty() else _messages)(lines(), progress)
        code = child.wait()
    if progress.stopped:
        print("stopped; finished work is kept, the same command resumes")
        return code and (130 if progress.stopped == signal.SIGINT else EXIT)
    if code and not progress.failed and not plain:
        print(*last, sep="\n")
    return code if code >= 0 else 128 - code


@contextmanager
def _forwarding(child: subprocess.Popen[str], progress: Progress) -> Iterator[None]:
    """Pass on SIGINT to Snakemake and its jobs, as a terminal does, and SIGTERM to Snakemake, which awaits them."""

    def forward(number: int, _: object) -> None:
        progress.stopped = number
        (os.killpg if number == signal.SIGINT else os.kill)(child.pid, number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _as_it_is(lines: Iterable[str], _: Progress) -> None:
    for line in lines:
        print(line, flush=True)


def _bars(lines: Iterable[str], progress: Progress) -> None:
    """On a terminal: a bar for each stage."""
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    def table() -> Table:
        grid = Table.grid(padding=(0, 2))
        for stage in progress.active():
            bar = ProgressBar(stage.total, stage.done, width=WIDTH)
            grid.add_row(stage.name, bar, Text(stage.text(time.monotonic())))
        return grid

    with Live(get_renderable=table, console=console(), refresh_per_second=2) as live:
        for line in lines:
            if text := progress.read(line, time.monotonic()):
                live.console.print(Text(text))


def _messages(lines: Iterable[str], progress: Progress) -> None:
    """In a pipe: a line when a stage is done, and every few seconds one about the stage that works."""
    shown = time.monotonic()
    for line in lines:
        now = time.monotonic()
        done = [stage.done for stage in progress.stages.values()]
        if text := progress.read(line, now):
            print(text, flush=True)
        for stage, before in zip(progress.stages.values(), done, strict=True):
            if stage.done > before and (stage.done == stage.total or now - shown > EVERY):
                print(f"{stage.name}: {stage.text(now)}", flush=True)
                shown = now
