"""SIGTERM in the middle of a run: where it stops, what is on disk then, and that the bits stay the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from fdamed.core.signals import Stop, Stopped, stop
from fdamed.federation.runner import run
from fdamed.federation.storage.checkpoint import Checkpoints
from fdamed.methods.gp import GP
from tests.support import federation as hospitals
from tests.support.federation import Altered

ROUNDS = 5


def keep(folder: Path, every: int) -> Checkpoints:
    return Checkpoints(folder, lambda p, r: folder / p / f"{r:05d}.safetensors", {"threads": 1}, every)


def rounds(folder: Path, every: int = 1, server=None):
    server = server or hospitals.in_process()
    return run(GP(), server, hospitals.theta(), ROUNDS, hospitals.no_judge, keep(folder, every))


def interrupted(round: int, question: int, server=None):
    """A network on which SIGTERM comes while a hospital works on the given question of the given round."""
    server = server or hospitals.in_process()
    asked, deliver = [0], server.transport.deliver

    def delivered(*words):
        asked[0] = asked[0] + 1 if server.round == round else 0
        if server.round == round and asked[0] == question:
            os.kill(os.getpid(), signal.SIGTERM)
        return deliver(*words)

    server.transport = Altered(server.transport, delivered)
    return server


@pytest.mark.parametrize(("round", "question"), [(1, 1), (2, 1), (3, 2), (5, 4)])
def test_in_the_middle_of_a_round_it_stops_at_once_and_ends_later_with_the_same_bits(
    tmp_path: Path, round: int, question: int, capsys
) -> None:
    expected, whole = rounds(tmp_path / "whole")
    with stop.listening(), pytest.raises(Stopped):
        rounds(tmp_path / "split", server=interrupted(round, question))
    capsys.readouterr()
    theta, record = rounds(tmp_path / "split")
    stderr = capsys.readouterr().err
    assert (f"resumed after round {round - 1} of {ROUNDS}" in stderr) == (round > 1)
    assert torch.equal(theta, expected)
    assert record.metrics == whole.metrics and record.ledger == whole.ledger


def test_a_round_that_is_not_on_disk_is_written_down_first(tmp_path: Path, capsys) -> None:
    expected, whole = rounds(tmp_path / "whole", every=3)
    with stop.listening(), pytest.raises(Stopped):
        rounds(tmp_path / "split", every=3, server=interrupted(round=2, question=1))
    capsys.readouterr()
    theta, record = rounds(tmp_path / "split", every=3)
    assert f"resumed after round 2 of {ROUNDS}" in capsys.readouterr().err
    assert torch.equal(theta, expected)
    assert record.metrics == whole.metrics


def test_a_hospital_in_a_process_of_its_own_leaves_the_decision_to_the_server(tmp_path: Path) -> None:
    names = ("north", "east", "target")
    server = hospitals.processes(names)
    expected, whole = run(GP(), server, hospitals.theta(), 2, hospitals.no_judge, keep(tmp_path / "whole", 1))
    for worker in server.transport.processes.values():
        os.kill(worker.pid, signal.SIGTERM)
    server.close()
    server = hospitals.processes(names)
    run(GP(), server, hospitals.theta(), 1, hospitals.no_judge, keep(tmp_path / "split", 1))
    for worker in server.transport.processes.values():
        os.kill(worker.pid, signal.SIGTERM)  # as SLURM signals every process of the job
    theta, record = run(GP(), server, hospitals.theta(), 2, hospitals.no_judge, keep(tmp_path / "split", 1))
    server.close()
    assert torch.equal(theta, expected)
    assert record.absences == whole.absences == []


def test_afterwards_sigterm_means_what_it_meant_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    own = Stop()
    with own.listening():
        assert signal.getsignal(signal.SIGTERM) == own.handle
        own.at_once(False)
        os.kill(os.getpid(), signal.SIGTERM)
        assert own.asked
        with pytest.raises(Stopped):
            own.at_once(True)
    assert signal.getsignal(signal.SIGTERM) == before
