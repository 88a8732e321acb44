"""Every method with clients that remember their answers: the bits, the ledger and the states are those without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fdamed.methods  # noqa: F401
from fdamed.config.train import Faults
from fdamed.federation.client import STEPS
from fdamed.federation.method import REGISTRY
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.storage import answers as remembering
from fdamed.federation.storage.answers import Answers
from fdamed.federation.storage.checkpoint import Checkpoints, Record
from fdamed.federation.storage.client_state import pack_state
from fdamed.federation.transport.base import Wrapper
from tests.support import federation as hospitals
from tests.support.federation import clients_of

METHODS = sorted(REGISTRY)
ROUNDS = 3
WITH_ADAM = {"scaffold": {"variate": "I"}}


@pytest.fixture(autouse=True)
def everything_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("WORTH", "PER_MEGABYTE"):
        monkeypatch.setattr(remembering, limit, 0.0)


def answers(folder: Path) -> Answers:
    return Answers(folder, 10**9, "conditions", dict.fromkeys(STEPS, "code"))


def federation(name: str, folder: Path | None, auxiliary: bool = False) -> Server:
    """Clients of a method; with a folder they remember their answers."""
    server = hospitals.in_process(labels=REGISTRY[name].target_labels, auxiliary=auxiliary)
    for name, client in clients_of(server).items():
        client.answers = answers(folder / name) if folder else None
    return server


def trained(name: str, server: Server, keep: Checkpoints | None = None, judge=hospitals.no_judge):
    """What a run comes to: its weights, its record and every client's state."""
    method = REGISTRY[name](**WITH_ADAM.get(name, {}))
    theta, record = run(method, server, hospitals.theta(), ROUNDS, judge, keep)
    return theta, record, {name: pack_state(client.memory) for name, client in clients_of(server).items()}


def assert_same(found, expected) -> None:
    (theta, record, states), (wanted, before, kept) = found, expected
    assert torch.equal(theta, wanted)
    for part in ("metrics", "layers", "absences", "ledger", "validation"):
        assert getattr(record, part) == getattr(before, part), part
    assert states == kept


def count(record: Record) -> int:
    return sum(line.get("remembered", 0) for line in record.timing)


class Counted(Wrapper):
    """A transport that counts questions."""

    asked = 0

    def deliver(self, client, step, nth, msg):
        self.asked += 1
        return super().deliver(client, step, nth, msg)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("auxiliary", [False, True])
def test_a_second_run_reads_every_answer_and_ends_with_the_same_bits(name, auxiliary, tmp_path: Path) -> None:
    plain = federation(name, None, auxiliary)
    plain.transport = counted = Counted(plain.transport)
    expected = trained(name, plain)
    first = trained(name, federation(name, tmp_path, auxiliary))
    assert_same(first, expected)
    second = trained(name, federation(name, tmp_path, auxiliary))
    assert_same(second, expected)
    assert count(expected[1]) == 0
    assert count(second[1]) == counted.asked > 0


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_resumes_with_half_of_the_answers_ends_with_the_same_bits(name, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def judge(theta):
        judge.calls += 1
        if judge.calls == 2:
            raise Stop
        return {}

    expected = trained(name, federation(name, None))
    trained(name, federation(name, tmp_path / "answers"))
    for number, entry in enumerate(sorted((tmp_path / "answers").rglob("*"))):
        if entry.is_file() and number % 2:
            entry.unlink()
    keep = Checkpoints(tmp_path / "run", lambda p, r: tmp_path / p / f"{r:05d}.safetensors", {"threads": 1})
    judge.calls = 0
    with pytest.raises(Stop):
        trained(name, federation(name, tmp_path / "answers"), keep, judge)
    assert_same(trained(name, federation(name, tmp_path / "answers"), keep), expected)


@pytest.mark.parametrize("name", ["fedavg", "gp", "scaffold"])
def test_simulated_faults_are_the_same_with_remembered_answers(name, tmp_path: Path) -> None:
    faults = Faults(absent=0.2, lost={"every": {"down": 0.1, "up": 0.2}})

    def outcome(folder: Path | None):
        return trained(name, hospitals.unreliable_server(federation(name, folder), faults, 3))

    expected = outcome(None)
    assert expected[1].absences
    assert_same(outcome(tmp_path), expected)
    again = outcome(tmp_path)
    assert_same(again, expected)
    assert count(again[1]) > 0
