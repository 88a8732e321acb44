"""Many clients in one process: few are resident at a time, and the results do not depend on it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from fdamed.federation.absences import DroppedOut
from fdamed.federation.client import Client, step
from fdamed.federation.method import Model, OneModel
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.storage.checkpoint import Checkpoints
from fdamed.federation.transport.base import InProcess
from fdamed.federation.transport.on_demand import OnDemand
from fdamed.methods._shared.local_training import Trained
from fdamed.methods.fedavg import FedAvg
from fdamed.methods.finetune_phase import FinetuneHead
from fdamed.methods.gp import GP
from fdamed.methods.kd3a.method import KD3A
from tests.support import federation as hospitals


@step("tests.unit.test_on_demand.count_up")
def count_up(client: Client, ask: Model) -> Trained:
    """Remember how often it was asked, and say so."""
    client.memory["count"] = client.memory.get("count", torch.zeros(1)) + 1
    return Trained(x=ask.x, n=int(client.memory["count"]), loss=0.0)


class Counting(OneModel):
    title = "Counting"
    steps = (count_up,)

    def round(self, state: Model, server) -> Model:
        answers = server.ask_all(server.sources, count_up, state)
        server.notes |= {f"count/{client}": float(r.n) for client, r in answers.items()}
        return Model(x=state.x + 1)


def few_seats(folder: Path, seats: int, labels: bool = True, auxiliary: bool = False) -> Server:
    resident = hospitals.model()
    build = partial(hospitals.hospital, labels=labels, auxiliary=auxiliary, resident=resident)
    builders = {name: partial(build, name) for name in hospitals.NAMES}
    parked = lambda p: folder / p / "aside.safetensors"  # noqa: E731
    return Server(OnDemand(builders, resident.layout, hospitals.RELEASE, parked, seats), "target", "test")


def keep(folder: Path, every: int = 1) -> Checkpoints:
    return Checkpoints(folder, lambda p, r: folder / p / f"{r:05d}.safetensors", {"threads": 1}, every)


@pytest.mark.parametrize("seats", [1, 2, 64])
@pytest.mark.parametrize(
    ("method", "options"),
    [(FedAvg(), {"auxiliary": True}), (GP(), {}), (KD3A(), {"labels": False}), (FinetuneHead(), {})],
    ids=["heads kept", "nothing kept", "models kept", "moments kept"],
)
def test_hospitals_that_come_and_go_give_the_same_bits_and_ledger(tmp_path, seats, method, options) -> None:
    expected, all_there = run(method, hospitals.in_process(**options), hospitals.theta(), 3, hospitals.no_judge)
    server = few_seats(tmp_path, seats, **options)
    theta, record = run(method, server, hospitals.theta(), 3, hospitals.no_judge)
    assert torch.equal(theta, expected)
    assert record.ledger == all_there.ledger and record.metrics == all_there.metrics
    assert len(server.transport.clients) <= seats


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_a_run_with_few_resident_clients_resumes_with_the_same_bits(tmp_path, every, stop) -> None:
    class Stop(Exception):
        pass

    def judge(theta) -> dict[str, float | None]:
        if len(rounds := judged) == stop:
            raise Stop
        rounds.append(theta)
        return {}

    def server(folder: Path) -> Server:
        made = few_seats(folder, 2, auxiliary=True)
        made.invite(0.7, 3)
        return made

    judged: list[torch.Tensor] = []
    expected, whole = run(FedAvg(), server(tmp_path / "a"), hospitals.theta(), 5, hospitals.no_judge)
    with pytest.raises(Stop):
        run(FedAvg(), server(tmp_path / "b"), hospitals.theta(), 5, judge, keep(tmp_path / "b", every))
    theta, record = run(
        FedAvg(), server(tmp_path / "b"), hospitals.theta(), 5, hospitals.no_judge, keep(tmp_path / "b", every)
    )
    assert torch.equal(theta, expected)
    assert record.metrics == whole.metrics and record.ledger == whole.ledger


def test_only_hospitals_that_were_asked_write_their_memory_and_two_generations_stay(tmp_path) -> None:
    server = few_seats(tmp_path, 2)
    server.invite(0.4, 0)  # one of three sources a round
    checkpoints, heard = keep(tmp_path), []

    def judge(theta) -> dict[str, float | None]:
        heard.append(server.participants[0])
        return {}

    run(Counting(), server, hospitals.theta(), 8, judge, checkpoints)
    for client in server.sources:
        asked = [r for r, name in enumerate(heard, 1) if name == client]
        there = sorted(int(p.stem) for p in (tmp_path / client).glob("0*.safetensors"))
        assert there == asked[-len(there) :] and len(there) <= 3
    assert not (tmp_path / "target").exists()
    (tmp_path / "checkpoint.bin").write_bytes(b"cut short")
    again = few_seats(tmp_path, 2)
    again.invite(0.4, 0)
    assert keep(tmp_path).load(Counting(), again)[0] == 7
    again.begin(8, 8)
    source = again.participants[0]
    assert again.ask(source, count_up, Model(x=hospitals.theta())).n == heard[:7].count(source) + 1


def test_a_checkpoint_without_one_of_its_memories_is_passed_over(tmp_path, capsys) -> None:
    run(Counting(), few_seats(tmp_path, 2), hospitals.theta(), 3, hospitals.no_judge, keep(tmp_path))
    (tmp_path / "east" / "00003.safetensors").unlink()
    _, record = run(Counting(), few_seats(tmp_path, 2), hospitals.theta(), 3, hospitals.no_judge, keep(tmp_path))
    assert "a client's state" in capsys.readouterr().err
    assert record.metrics[-1]["count/east"] == 3.0


def test_a_checkpoint_whose_record_was_damaged_is_passed_over(tmp_path, capsys) -> None:
    run(Counting(), few_seats(tmp_path, 2), hospitals.theta(), 3, hospitals.no_judge, keep(tmp_path))
    log = tmp_path / "record.jsonl"
    text = log.read_bytes()
    third = text.splitlines(keepends=True)[2]
    log.write_bytes(text.replace(third, third.replace(b"3", b"4")) + b"half a li")
    _, record = run(Counting(), few_seats(tmp_path, 2), hospitals.theta(), 3, hospitals.no_judge, keep(tmp_path))
    assert "its record" in capsys.readouterr().err
    assert [m["round"] for m in record.metrics] == [1, 2, 3] and record.metrics[-1]["count/east"] == 3.0
    assert len(log.read_bytes().splitlines()) == 3


def test_a_checkpoint_writes_no_more_when_the_run_is_long(tmp_path) -> None:
    sizes: list[int] = []

    def judge(theta) -> dict[str, float | None]:
        newest = tmp_path / "checkpoint.bin"
        sizes.append(newest.stat().st_size if newest.exists() else 0)
        return {}

    run(FedAvg(), few_seats(tmp_path, 2), hospitals.theta(), 40, judge, keep(tmp_path))
    assert max(sizes[1:]) - min(sizes[1:]) < 40, "the record is in the log, not in the checkpoint"


def test_of_many_sources_the_metrics_have_lowest_mean_and_highest() -> None:
    many = {f"s{i:03d}": hospitals.hospital("north") for i in range(60)} | {"target": hospitals.hospital("target")}
    server = Server(InProcess(many), "target", "test")
    _, record = run(Counting(), server, hospitals.theta(), 2, hospitals.no_judge)
    assert set(record.metrics[1]) == {"round", "count/lowest", "count/mean", "count/highest"}
    assert record.metrics[1]["count/mean"] == 2.0
    one = torch.ones(60, len(server.layout.parameters))
    server.log_cosines(list(server.sources), one, one, one[0])
    assert server.layer_notes == []
    with pytest.raises(DroppedOut):
        server.ask("nobody", count_up, Model(x=hospitals.theta()))
