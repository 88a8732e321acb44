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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fdamed.core.errors import FdamedError

log = logging.getLogger(__name__)
GROUP = "run", 1
OPTIONS = {
    "--silence": {"type": "float", "default": 400, "metavar": "SECONDS", "help": "silence that counts as a hang (400)"},
    "--every": {"type": "float", "default": 15, "metavar": "SECONDS", "help": "time between two checks (15)"},
    "--restarts": {"type": "int", "default": 20, "metavar": "N", "help": "maximum number of restarts (20)"},
    "--recover": {"action": "store_true", "help": "first cancel the jobs of a dead Snakemake, and unlock"},
    "arguments": {"nargs": "...", "metavar": "-- SNAKEMAKE ARGUMENTS"},
}
RUN_ID = "SLURM run ID: "
"""Prefix of the run id in the plug-in's log; it is the name of every SLURM job of the run."""
PATIENCE = 60
"""Timeout for SLURM, in seconds."""


def run(arguments: argparse.Namespace) -> None:
    given = arguments.arguments[1:] if arguments.arguments[:1] == ["--"] else arguments.arguments
    watch = Watch(given, arguments.silence, arguments.every)
    if arguments.recover:
        watch.clean_up(watch.run_id())
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


@dataclass
class Watch:
    """Runs Snakemake for one study, repeatedly if needed."""

    arguments: list[str]
    silence: float
    every: float
    outage: float | None = None
    """When SLURM stopped answering; None: it answers."""

    @property
    def logs(self) -> Path:
        """Where this Snakemake writes its logs."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("-d", "--directory", type=Path, default=Path())
        folder: Path = parser.parse_known_args(self.arguments)[0].directory
        return folder / ".snakemake" / "log"

    def run_id(self, earlier: frozenset[Path] = frozenset()) -> str | None:
        """The name of the newest Snakemake's SLURM jobs; `earlier`: logs of those before it (clocks may jump)."""
        for newest in sorted(set(self.logs.glob("*.log")) - earlier)[-1:]:
            for line in newest.read_text(encoding="utf-8", errors="replace").splitlines():
                if RUN_ID in line:
                    return line.split(RUN_ID)[1].strip()
        return None

    def jobs(self, run_id: str) -> int | None:
        """The number of jobs that SLURM still has of a run; None: it does not answer. Logs when that changes."""
        question = ["squeue", "--noheader", "--format=%i", f"--name={run_id}"]
        left = None
        try:
            answer = subprocess.run(question, capture_output=True, text=True, timeout=PATIENCE, check=False)
            left = len(answer.stdout.split()) if answer.returncode == 0 else None
        except subprocess.TimeoutExpired:
            pass
        except FileNotFoundError:
            fix = "Start `fdamed watch` where sbatch and squeue work."
            raise FdamedError("there is no squeue", "PATH", fix) from None
        if left is None and self.outage is None:
            self.outage = time.monotonic()
            say("SLURM does not answer; waiting (its jobs keep running)")
        elif left is not None and self.outage is not None:
            say(f"SLURM answers again after {time.monotonic() - self.outage:.0f} s; it has {left} jobs")
            self.outage = None
        return left

    def once(self) -> int | None:
        """Run Snakemake; its exit code, or None if it must be started again."""
        earlier = frozenset(self.logs.glob("*.log"))
        # In its own process group: Ctrl-C reaches it once, through us, and lets it cancel its jobs in peace.
        child = subprocess.Popen(["snakemake", *self.arguments], process_group=0)
        before = {
            s: signal.signal(s, lambda number, _: child.send_signal(number)) for s in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            hung, outage = self._wait(child, earlier)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        run_id = self.run_id(earlier)
        if hung or child.returncode == -signal.SIGKILL:
            lost = f"silent for {self.silence:.0f} s and without a job in SLURM: Snakemake has lost track"
            say(lost if hung else "Snakemake was killed")
            self.clean_up(run_id)
            return None
        if child.returncode and outage:
            say(f"Snakemake ended with {child.returncode} after an outage of SLURM")
            self._wait_for_slurm(run_id)
            return None
        return child.returncode

    def _wait(self, child: subprocess.Popen[bytes], earlier: frozenset[Path]) -> tuple[bool, bool]:
        """Wait for the end of Snakemake, or kill it if it hangs; whether it hung, and whether SLURM had an outage."""
        active, size, outage = time.monotonic(), -1, False
        while True:
            with suppress(subprocess.TimeoutExpired):
                child.wait(self.every)
                return False, outage
            run_id = self.run_id(earlier)
            left = self.jobs(run_id) if run_id else None
            outage = outage or (run_id is not None and left is None)
            written = sum(p.stat().st_size for p in self.logs.glob("*.log"))
            if written != size or left != 0 or _busy(child.pid):
                active, size = time.monotonic(), written
            elif time.monotonic() - active > self.silence:
                child.kill()
                child.wait()
                return True, outage

    def clean_up(self, run_id: str | None) -> None:
        """Cancel the SLURM jobs of a dead Snakemake (no job may run twice at a time), and unlock the folder."""
        self._wait_for_slurm(run_id)
        if run_id and (left := self.jobs(run_id)):
            say(f"{left} jobs of the dead Snakemake are canceled; trainings keep their checkpoints")
            subprocess.run(["scancel", f"--name={run_id}"], check=False, timeout=PATIENCE)
            while self.jobs(run_id):
                time.sleep(1)
        unlocked = subprocess.run(["snakemake", *self.arguments, "--unlock"], capture_output=True, check=False)
        if unlocked.returncode:
            sys.stderr.write(unlocked.stderr.decode(errors="replace"))
            raise FdamedError("the folder could not be unlocked", str(self.logs.parent), "See its message above.")

    def _wait_for_slurm(self, run_id: str | None) -> None:
        while run_id and self.jobs(run_id) is None:
            time.sleep(self.every)


def _busy(pid: int) -> bool:
    """Whether a process has children: Snakemake runs a local job, or calls SLURM."""
    return any(p.read_text().split() for p in Path(f"/proc/{pid}/task").glob("*/children"))
