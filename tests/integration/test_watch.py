"""`fdamed watch` with Snakemake and SLURM replaced by shell scripts; tests/slurm uses the real ones."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from fdamed.cli.main import main

SNAKEMAKE = """#!/bin/sh
case "$*" in *--unlock*) echo unlock >> calls; exit 0;; esac
echo start >> calls
mkdir -p .snakemake/log
echo "SLURM run ID: abc" > .snakemake/log/$(date +%s%N).log
n=$(grep -c start calls)
"""


class Stage:
    """A folder in which `snakemake`, `squeue` and `scancel` do what a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.play("scancel", "#!/bin/sh\necho scancel $* >> calls; rm -f jobs")
        self.play("squeue", "#!/bin/sh\n[ -e outage ] && exit 1\ncat jobs 2> /dev/null\nexit 0")

    def play(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text + "\n")
        (self.folder / name).chmod(0o755)

    def snakemake(self, behavior: str) -> None:
        self.play("snakemake", SNAKEMAKE + behavior)

    def watch(self, *options: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["watch", "--silence", "0.6", "--every", "0.2", *options, "--", "--workflow-profile", "slurm"])
        return int(ended.value.code or 0)

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return Stage(tmp_path)


def test_a_snakemake_that_ends_by_itself_is_left_alone(stage: Stage) -> None:
    stage.snakemake("exit 0")
    assert stage.watch() == 0
    stage.snakemake("exit 1")
    assert stage.watch() == 1, "a failure without an outage is a failure"
    assert stage.calls == ["start", "start"]


def test_one_that_waits_for_jobs_that_slurm_does_not_have_is_started_again(stage: Stage, capfd) -> None:
    stage.snakemake("[ $n = 1 ] && exec sleep 60; exit 0")
    assert stage.watch() == 0
    assert stage.calls == ["start", "unlock", "start"]
    assert "lost track" in capfd.readouterr().err


def test_one_that_waits_for_jobs_that_slurm_has_is_not_touched(stage: Stage) -> None:
    (stage.folder / "jobs").write_text("17\n")
    stage.snakemake("exec sleep 3")
    assert stage.watch() == 0
    assert stage.calls == ["start"]


def test_one_that_was_killed_leaves_no_jobs_behind_before_the_next(stage: Stage, capfd) -> None:
    (stage.folder / "jobs").write_text("17\n18\n")
    stage.snakemake("[ $n = 1 ] && kill -9 $$; exit 0")
    assert stage.watch() == 0
    assert stage.calls == ["start", "scancel --name=abc", "unlock", "start"]
    assert "2 jobs of the dead Snakemake are canceled" in capfd.readouterr().err


def test_after_an_outage_a_failure_is_tried_again_when_slurm_answers(stage: Stage, capfd) -> None:
    outage = "touch outage; sleep 1; (sleep 1; rm outage) > /dev/null 2>&1 & exit 1"
    stage.snakemake(f"if [ $n = 1 ]; then {outage}; fi; exit 0")
    assert stage.watch() == 0
    stderr = capfd.readouterr().err
    assert "SLURM does not answer" in stderr and "SLURM answers again" in stderr
    assert stage.calls == ["start", "start"]


def test_recovery_cancels_what_a_dead_snakemake_has_left(stage: Stage) -> None:
    stage.snakemake("exit 0")
    assert stage.watch() == 0
    (stage.folder / "jobs").write_text("17\n")
    assert stage.watch("--recover") == 0
    assert stage.calls == ["start", "scancel --name=abc", "unlock", "start"]


def test_it_gives_up_at_last_with_a_reason(stage: Stage, capfd) -> None:
    stage.snakemake("exec sleep 60")
    assert main(["watch", "--silence", "0.3", "--every", "0.1", "--restarts", "1", "--", "-n"]) == 2
    assert "was started 2 times and never ended" in capfd.readouterr().err


def test_an_interrupt_reaches_snakemake_once_and_its_word_is_the_last(stage: Stage) -> None:
    stage.snakemake("trap 'echo interrupted >> calls; exit 1' INT; kill -INT $PPID; sleep 1; sleep 1; exit 0")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background jobs ignore it
    try:
        assert stage.watch() == 1
    finally:
        signal.signal(signal.SIGINT, before)
    assert stage.calls == ["start", "interrupted"]
