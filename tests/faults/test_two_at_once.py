"""Two trainings of one run at the same time, and clocks that jump: one wins, and no bit depends on the time."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from fdamed.core.locks import locked
from fdamed.core.run_record import read
from fdamed.tracking.payload import span
from tests.faults import studies
from tests.faults.interrupted import single

RUN = "scaffold"
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


def test_the_second_process_learns_who_holds_the_folder(prepared: Path, tmp_path: Path, capfd) -> None:
    folder = studies.copy(prepared, tmp_path / "study")
    with locked(studies.place_of(folder, RUN)):
        assert studies.fdamed(folder, *single(RUN)) == 2
    stderr = capfd.readouterr().err
    assert "another run is writing to this folder" in stderr
    assert f"Wait until process {os.getpid()} on " in stderr and " UTC ends" in stderr
    assert (studies.place_of(folder, RUN) / ".lock").read_text() == "", "nothing of the machine stays behind"


@pytest.mark.faults
def test_of_two_trainings_started_together_one_wins_with_the_usual_bits(prepared: Path, expected, tmp_path) -> None:
    folder = studies.copy(prepared, tmp_path / "study")
    both = [studies.victim(folder, "never", 0, "SIGKILL", *single(RUN)) for _ in range(2)]
    errors = [job.communicate()[1] for job in both]
    codes = [job.returncode for job in both]
    # The loser may also come after the winner's end, and then finds all done.
    assert 0 in codes and set(codes) <= {0, 2}, errors
    if 2 in codes:
        assert "another run is writing to this folder" in errors[codes.index(2)]
    assert studies.outcome(folder, RUN) == expected


@pytest.mark.faults
@pytest.mark.skipif(not Path(FAKETIME).exists(), reason="libfaketime is not installed")
@pytest.mark.parametrize("jump", ["-1d", "+400d"])
def test_a_clock_that_jumps_changes_no_bit_and_no_run_ends_before_it_began(cut: Path, expected, jump: str) -> None:
    env = studies.environment(LD_PRELOAD=FAKETIME, FAKETIME=jump, FAKETIME_DONT_FAKE_MONOTONIC="1")
    with studies.process(
        cut, "never", "0", "SIGKILL", "--", *single(RUN), module="tests.faults.victim", env=env
    ) as job:
        stderr = job.stderr.read()
    assert job.returncode == 0 and "resumed after round 3 of 5" in stderr, stderr
    assert studies.outcome(cut, RUN) == expected
    record = read(studies.place_of(cut, RUN), 1)
    assert record is not None
    begin, end = span(record)
    assert begin <= end
    assert abs(record_time(record.timing[3]["started"]) - time.time()) > 80_000, "the clock did jump"


def record_time(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


@pytest.mark.faults
def test_a_hundred_runs_of_one_second_have_a_hundred_names(tmp_path: Path) -> None:
    import sqlite3

    from fdamed.cli.main import main
    from tests.support.run_folders import write_study

    config = write_study(tmp_path, runs={"fedavg": {}}, seeds=list(range(100)), tracking={"models": False})
    assert main(["track", "--config", str(config)]) == 0
    with sqlite3.connect(tmp_path / "results/mlflow/mlflow.db") as db:
        ids, names = zip(*db.execute("select run_uuid, name from runs").fetchall(), strict=True)
    assert len(set(ids)) == len(set(names)) == 101  # and the report
    shutil.rmtree(tmp_path / "results")
