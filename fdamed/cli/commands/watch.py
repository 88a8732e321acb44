"""Run Snakemake on a SLURM cluster and restart it if an outage left it hanging.

Examples:
    fdamed watch -- --workflow-profile profiles/slurm --configfile config/chexpert.yaml
"""

from __future__ import annotations

import argparse
import logging
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from fdamed.core.errors import FdamedError

log = logging.getLogger(__name__)
GROUP = "run", 1
RUN_ID = "SLURM run ID: "
"""Prefix of the run id in the plug-in's log; it is the name of every SLURM job of the run."""
PATIENCE = 60
"""Timeout for SLURM, in seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--silence", type=float, default=400, metavar="SECONDS", help="silence taken for a hang (400)")
    parser.add_argument("--every", type=float, default=15, metavar="SECONDS", help="how often to look (15)")
    parser.add_argument("--restarts", type=int, default=20, metavar="N", help="starts after the first (20)")
    parser.add_argument("--recover", action="store_true", help="first cancel the jobs of a dead Snakemake, and unlock")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- SNAKEMAKE ARGUMENTS")


def run(arguments: argparse.Namespace) -> None:
    given = arguments.arguments[1:] if arguments.arguments[:1] == ["--"] else arguments.arguments
    watch = Watch(given, arguments.silence, arguments.every)
    if arguments.recover:
        watch.clear_up(newest_run(watch.logs))
    for start in range(arguments.restarts + 1):
        if start:
            say(f"Snakemake is started again ({start} of at most {arguments.restarts})")
        code = watch.once()
        if code is not None:
            sys.exit(code)
    raise FdamedError(
        f"Snakemake was started {arguments.restarts + 1} times and never ended",
        "fdamed watch",
        "Look into the newest file of .snakemake/log and .snakemake/slurm_logs; is the cluster in order?",
    )


def say(text: str) -> None:
    log.info(f"{time.strftime('%H:%M:%S')} watch: {text}")


def newest_run(logs: Path, known: frozenset[Path] = frozenset()) -> str | None:
    """The id under which the newest Snakemake submits its jobs; `known`: logs of earlier ones (clocks may jump)."""
    found = sorted(set(logs.glob("*.log")) - known)
    if not found:
        return None
    lines = found[-1].read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.split(RUN_ID)[1].strip() for line in lines if RUN_ID in line), None)


def jobs_left(run_id: str) -> int | None:
    """How many jobs of this run SLURM still has; None: it does not answer."""
    question = ["squeue", "--noheader", "--format=%i", f"--name={run_id}"]
    try:
        answer = subprocess.run(question, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return None
    except FileNotFoundError:
        raise FdamedError("there is no squeue", "PATH", "Start `fdamed watch` where sbatch and squeue work.") from None
    return len(answer.stdout.split()) if answer.returncode == 0 else None


@dataclass
class Watch:
    """Runs Snakemake for one study, repeatedly if needed."""

    arguments: list[str]
    quiet: float
    every: float
    outage: float | None = field(default=None)
    """When SLURM stopped answering; None: it answers."""

    @property
    def logs(self) -> Path:
        """Where this Snakemake writes its logs."""
        given = {"-d", "--directory"}
        after = [b for a, b in zip(self.arguments, self.arguments[1:], strict=False) if a in given]
        joined = [a.split("=", 1)[1] for a in self.arguments if a.startswith("--directory=")]
        return Path((after + joined or ["."])[-1]) / ".snakemake" / "log"

    def once(self) -> int | None:
        """Run Snakemake; its exit code, or None when it must be started again."""
        earlier = frozenset(self.logs.glob("*.log"))
        hurt = False
        # In a process group of its own: Ctrl-C reaches it once, through us, and lets it cancel its jobs in peace.
        child = subprocess.Popen(["snakemake", *self.arguments], process_group=0)
        before = {
            s: signal.signal(s, lambda number, _: child.send_signal(number)) for s in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            spoke, size = time.monotonic(), -1
            while True:
                try:
                    code = child.wait(self.every)
                    break
                except subprocess.TimeoutExpired:
                    pass
                run_id = newest_run(self.logs, earlier)
                left = jobs_left(run_id) if run_id else None
                if run_id:
                    hurt = self._note_outage(left) or hurt
                now = sum(p.stat().st_size for p in self.logs.glob("*.log"))
                if now != size or left != 0 or _busy(child.pid):
                    spoke, size = time.monotonic(), now
                elif time.monotonic() - spoke > self.quiet:
                    say(f"silent for {self.quiet:.0f} s and no job of it is left in SLURM: Snakemake has lost track")
                    child.kill()
                    child.wait()
                    self.clear_up(run_id)
                    return None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if code == -signal.SIGKILL:
            say("Snakemake was killed")
            self.clear_up(newest_run(self.logs, earlier))
            return None
        if code and hurt:
            say(f"Snakemake ended with {code} after an outage of SLURM")
            self._wait_for_slurm(newest_run(self.logs, earlier))
            return None
        return code

    def clear_up(self, run_id: str | None) -> None:
        """Cancel what a dead Snakemake has left in SLURM (two generations of a job must not meet), and unlock."""
        if run_id:
            self._wait_for_slurm(run_id)
            left = jobs_left(run_id)
            if left:
                say(f"{left} jobs of the dead Snakemake are canceled; trainings keep their checkpoints")
                subprocess.run(["scancel", f"--name={run_id}"], check=False, timeout=PATIENCE)
                while jobs_left(run_id):
                    time.sleep(1)
        unlocked = subprocess.run(["snakemake", *self.arguments, "--unlock"], capture_output=True, check=False)
        if unlocked.returncode:
            sys.stderr.write(unlocked.stderr.decode(errors="replace"))
            raise FdamedError("the folder could not be unlocked", str(self.logs.parent), "See its message above.")

    def _note_outage(self, left: int | None) -> bool:
        """Log when SLURM stops and starts answering; True while it does not."""
        if left is None and self.outage is None:
            self.outage = time.monotonic()
            say("SLURM does not answer; its jobs run on, we wait")
        elif left is not None and self.outage is not None:
            say(f"SLURM answers again after {time.monotonic() - self.outage:.0f} s; {left} jobs are there")
            self.outage = None
        return left is None

    def _wait_for_slurm(self, run_id: str | None) -> None:
        while run_id:
            if not self._note_outage(jobs_left(run_id)):
                return
            time.sleep(self.every)


def _busy(pid: int) -> bool:
    """Whether a process has children: Snakemake that runs a local job, asks or submits."""
    return any(p.read_text().split() for p in Path(f"/proc/{pid}/task").glob("*/children"))
