"""A full disk, too little memory: what is kept, what is reported, and that the run resumes with the same bits."""

from __future__ import annotations

import os
import re
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fdamed.federation.storage import checkpoint as checkpoints
from tests.faults import studies
from tests.faults.interrupted import cut_after, finish, single

RUN = "scaffold"
ROUNDS = 16


def kept(folder: Path) -> dict[str, bytes]:
    """The checkpoint and the memories that it names."""
    files = [*studies.place_of(folder, RUN).rglob("*.bin"), *(folder / "results").rglob("memory/**/*.safetensors")]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_does_not_fit_leaves_the_old_ones_whole(cut: Path, expected, capsys) -> None:
    before = kept(cut)
    with files_up_to(20_000):
        assert studies.fdamed(cut, *single(RUN)) == 2
    error, where, fix = capsys.readouterr().err.splitlines()[-3:]
    assert re.search(r"cannot be written: .* \(about [\d.]+ MB needed, [\d.]+ MB free\)", error)
    assert "results/small" in where and "start again" in fix
    assert {name: content for name, content in kept(cut).items() if name in before} == before
    assert studies.left_over(cut) == []
    assert finish(cut, RUN) == expected


def test_a_disk_that_is_too_small_is_reported_before_the_first_round(
    prepared: Path, tmp_path, monkeypatch, capsys
) -> None:
    folder = studies.copy(prepared, tmp_path / "study")
    monkeypatch.setattr(checkpoints, "free", lambda folder: 1000)
    assert studies.fdamed(folder, *single(RUN)) == 2
    stderr = capsys.readouterr().err
    assert re.search(r"this run needs about [\d.]+ MB for its checkpoints, and 0.0 MB are free", stderr)
    assert "round 1" not in stderr


def test_the_doctor_says_what_all_trainings_need(prepared: Path, monkeypatch, capsys) -> None:
    assert studies.fdamed(prepared, "doctor") == 0
    assert "2 trainings need about" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr("fdamed.pipeline.checks.machine.free", lambda folder: 1000)
    assert studies.fdamed(prepared, "doctor") == 2
    shown = capsys.readouterr()
    assert "for weights and checkpoints, 0.0 MB are free" in " ".join(shown.out.replace("│", " ").split())
    assert "Free space in results" in shown.err


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[Path]:
    """A file system of `size` bytes."""
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=False)
    if os.getuid() or made.returncode:
        pytest.skip("only root can mount a small file system")
    try:
        yield place
    finally:
        # Lazily: caches that this process has mapped into its memory keep the file system busy.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture(scope="module")
def long(tmp_path_factory) -> tuple[Path, dict[str, bytes]]:
    """A study of more rounds, prepared, and what it comes to."""
    train = studies.configuration()["train"] | {"rounds": ROUNDS}
    folder = studies.prepare(tmp_path_factory.mktemp("long") / "study", train=train)
    return folder, finish(studies.copy(folder, folder.parent / "whole"), RUN)


@pytest.mark.faults
@pytest.mark.parametrize("round", [1, 2, 3, 5, 8])
def test_a_disk_that_fills_up_in_the_middle_costs_no_more_than_the_round(tmp_path: Path, long, round: int) -> None:
    prepared, expected = long
    with small_disk(tmp_path / "disk", 60_000_000) as disk:
        folder = studies.copy(prepared, disk / "study")
        with studies.process(folder, *single(RUN)) as job:
            while f"round {round}/{ROUNDS}" not in (line := job.stderr.readline()):
                assert line, "the run ended before"
            with open(disk / "ballast", "wb", buffering=0) as ballast:
                for block in (1 << 20, 1 << 12):
                    try:
                        while ballast.write(b"\0" * block) == block:
                            pass
                    except OSError:
                        continue
            stderr = job.stderr.read()
        assert job.returncode == 2, stderr
        assert "the disk is full" in stderr and "needed" in stderr and "free)" in stderr
        assert studies.left_over(folder) == []
        (disk / "ballast").unlink()
        assert finish(folder, RUN) == expected


@pytest.mark.faults
def test_a_disk_that_is_full_from_the_start_is_reported_before_training(tmp_path: Path, prepared: Path) -> None:
    with small_disk(tmp_path / "disk", 8_000_000) as disk:
        folder = studies.copy(prepared, disk / "study")
        left = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        (disk / "ballast").write_bytes(b"\0" * (left - 300_000))
        with studies.process(folder, *single(RUN)) as job:
            stderr = job.stderr.read()
        assert job.returncode == 2 and "for its checkpoints" in stderr and "round 1" not in stderr, stderr


HUNGRY = """
import resource, sys
from fdamed.cli.main import main
from fdamed.federation.server import Server
begin = Server.begin
def limited(self, *numbers):
    begin(self, *numbers)
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
Server.begin = limited
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.faults
def test_out_of_memory_names_the_batch_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    train = studies.configuration()["train"] | {"source": {"lr": 0.003, "batch": 40, "optimizer": "sgd"}}
    folder = studies.prepare(tmp_path / "study", train=train, runs={RUN: {}})
    cut_after(folder, 1, RUN)
    before = kept(folder)
    (folder / "hungry.py").write_text(HUNGRY)
    with studies.process(folder, *single(RUN), module="hungry", env=studies.environment()) as job:
        stderr = job.stderr.read()
    assert job.returncode == 2, stderr
    error, where, fix = stderr.splitlines()[-3:]
    assert "out of memory in" in error and "batch 40" in error and ("hospital" in where or RUN in where)
    assert "smaller batch, which changes the results" in fix
    assert {name: content for name, content in kept(folder).items() if name in before} == before
    interrupted = finish(folder, RUN)
    assert interrupted == finish(studies.prepare(tmp_path / "whole", train=train, runs={RUN: {}}), RUN)
