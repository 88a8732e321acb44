"""A training that is killed anywhere ends with the same bits: model, buffers, optimizer, metrics, ledger, MLflow."""

from __future__ import annotations

import itertools
import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.faults import studies

BY_STEP, BY_FILE, BY_CLOCK = 8, 8, 4
GRACE = 30.0
"""Seconds that a run may take to end after SIGTERM."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    return studies.prepare(tmp_path_factory.mktemp("kills") / "study")


@pytest.fixture(scope="module")
def whole(prepared: Path) -> tuple[dict[str, bytes], dict[str, int]]:
    """What the uninterrupted process came to, and how many steps and file operations it took."""
    folder = studies.copy(prepared, prepared.parent / "whole")
    with studies.victim(folder, "never", 0, "SIGKILL", *studies.batch()) as job:
        stderr = job.stderr.read()
    assert job.returncode == 0, stderr
    return studies.outcome(folder), json.loads((folder / "counts.json").read_text())


def resumed(folder: Path) -> str:
    """Start again what was interrupted; what it said."""
    with studies.victim(folder, "never", 0, "SIGKILL", *studies.batch()) as job:
        stderr = job.stderr.read()
    assert job.returncode == 0, stderr
    assert studies.left_over(folder) == []
    return stderr


def killed(folder: Path, what: str, number: int) -> None:
    with studies.victim(folder, what, number, "SIGKILL", *studies.batch()) as job:
        stderr = job.stderr.read()
    assert job.returncode == -signal.SIGKILL, stderr


@pytest.mark.parametrize(
    ("what", "share"), [("step", 0.35), ("file", 0.6), ("file", 1.0)], ids=["training", "a file", "the last file"]
)
def test_three_kills_change_no_bit(prepared: Path, whole, tmp_path: Path, monkeypatch, what: str, share: float) -> None:
    expected, counts = whole
    folder = studies.copy(prepared, tmp_path / "study")
    killed(folder, what, max(1, round(share * counts[what])))
    monkeypatch.setattr("fdamed.cli.commands.federate.clear", lambda *_: None)
    assert studies.fdamed(folder, *studies.batch()) == 0
    assert studies.left_over(folder) == []
    assert studies.outcome(folder) == expected


def moments(counts: dict[str, int], what: str, number: int, seed: int) -> list[int]:
    """So many random moments, one in each equal part of the process; of files the last one too."""
    edges = np.linspace(1, counts[what] + 1, number + 1)
    rng = np.random.default_rng(seed)
    drawn = [int(rng.integers(int(a), max(int(a) + 1, int(b)))) for a, b in itertools.pairwise(edges)]
    return [*drawn[:-1], counts[what]] if what == "file" else drawn


@pytest.mark.faults
@pytest.mark.parametrize("nth", range(BY_STEP + BY_FILE))
def test_kills_at_random_steps_and_files_change_no_bit(prepared: Path, whole, tmp_path: Path, nth: int) -> None:
    expected, counts = whole
    what, place = ("step", nth) if nth < BY_STEP else ("file", nth - BY_STEP)
    moment = moments(counts, what, BY_STEP if what == "step" else BY_FILE, seed=9)[place]
    folder = studies.copy(prepared, tmp_path / "study")
    killed(folder, what, moment)
    resumed(folder)
    assert studies.outcome(folder) == expected, f"killed at {what} {moment} of {counts[what]}"


@pytest.mark.faults
@pytest.mark.parametrize("nth", range(BY_CLOCK))
def test_kills_by_the_clock_change_no_bit(prepared: Path, whole, tmp_path: Path, nth: int) -> None:
    """The bare command, killed from outside, again and again until it comes through."""
    expected, _ = whole
    folder = studies.copy(prepared, tmp_path / "study")
    rng, kills = np.random.default_rng(nth), 0
    for wait in rng.uniform(0.0, 0.6, size=3):
        with studies.process(folder, *studies.batch()) as job:
            line = " "
            while line and "round" not in line:
                line = job.stderr.readline()
            time.sleep(wait)
            job.kill()
        kills += job.returncode == -signal.SIGKILL
    assert kills > 0
    for place in (folder / "results").rglob("state/finished"):
        for file in place.iterdir():  # so that the last start trains what an earlier one had finished
            file.unlink()
    resumed(folder)
    assert studies.outcome(folder) == expected


@pytest.mark.faults
@pytest.mark.parametrize("nth", range(20))
def test_sigterm_ends_with_75_within_the_grace_period_and_changes_no_bit(
    prepared: Path, whole, tmp_path: Path, nth: int
) -> None:
    expected, counts = whole
    what, place = ("step", nth) if nth < 12 else ("file", nth - 12)
    moment = moments(counts, what, 12 if what == "step" else 8, seed=75)[place]
    folder = studies.copy(prepared, tmp_path / "study")
    begin = time.monotonic()
    with studies.victim(folder, what, moment, "SIGTERM", *studies.batch()) as job:
        stderr = job.stderr.read()
    seconds = time.monotonic() - begin
    finished = all((studies.place_of(folder, run) / "done").exists() for run in studies.RUNS)
    assert job.returncode == 75 or finished, stderr
    assert seconds < GRACE + 30, "start and training included"
    if job.returncode == 75:
        assert "stopped by SIGTERM" in stderr.splitlines()[-1]
    assert studies.left_over(folder) == []
    resumed(folder)
    assert studies.outcome(folder) == expected, f"SIGTERM at {what} {moment} of {counts[what]}"
