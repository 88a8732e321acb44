"""Checkpoints that are damaged, foreign or absent; privacy policies; error messages of clients."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import pytest
import torch

from fdamed.config.study import Recipe
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.federation.absences import DroppedOut
from fdamed.federation.client import Client, answer, step
from fdamed.federation.messages import ROWS, Check, Features, encode, message, pack, unpack
from fdamed.federation.method import Model, OneModel
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.storage.checkpoint import Checkpoints
from fdamed.federation.storage.client_state import unpack_state
from fdamed.federation.transport.endpoint import handle_request
from fdamed.federation.transport.multiprocess import Processes
from fdamed.federation.transport.wire import reply_body
from fdamed.methods._shared.local_training import train_locally
from fdamed.methods.fedavg import FedAvg
from fdamed.methods.finetune import Finetune
from tests.support import federation as hospitals
from tests.support.federation import Altered, clients_of


@message
class Rows:
    f: Annotated[Features, Check(shape=lambda _, __: (ROWS, 4))]


@step("tests.unit.test_runner.leak")
def leak(client: Client, ask: Model) -> Rows:
    return Rows(f=torch.zeros(len(client.data), 4))


class Nosy(OneModel):
    title = "Nosy"
    steps = (leak,)

    def round(self, state, server):
        server.ask_all(server.sources, leak, state)
        return state


def keep(folder: Path, **conditions: object) -> Checkpoints:
    return Checkpoints(folder, lambda p, r: folder / p / f"{r:05d}.safetensors", {"threads": 1, **conditions})


def fedavg(checkpoints: Checkpoints, rounds: int):
    return run(FedAvg(), hospitals.in_process(), hospitals.theta(), rounds, hospitals.no_judge, checkpoints)


def test_features_leave_a_hospital_only_if_its_policy_says_so() -> None:
    server = hospitals.in_process()
    with pytest.raises(FdamedError) as refused:
        run(Nosy(), server, hospitals.theta(), 1, hospitals.no_judge)
    assert "features" in refused.value.what and "leak" in refused.value.what and "east" in refused.value.what
    assert server.ledger.lines() == []


def test_the_client_itself_refuses_what_its_policy_withholds() -> None:
    request = pack({"step": leak.name, "round": 1, "nth": 0}, encode(Model(x=hospitals.theta())))
    reply, body = unpack(handle_request(hospitals.hospital("north"), "nosy", request))
    assert reply["ok"] is False and "features" in reply["error"][0] and len(body) == 0


def test_a_hospital_answers_in_bytes_what_it_answers_in_person() -> None:
    from fdamed.federation.messages import decode
    from fdamed.methods._shared.local_training import Trained, train_locally

    ask = Model(x=hospitals.theta())
    server = hospitals.in_process()
    server.begin(3, 3)
    expected = server.ask("north", train_locally, ask)
    request = pack({"step": train_locally.name, "round": 3, "nth": 0}, encode(ask))
    _, body = unpack(handle_request(hospitals.hospital("north"), "test", request))
    assert torch.equal(decode(Trained, body, len(ask.x)).x, expected.x)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[:80] + b"?" + b[81:]])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path, damage, capsys) -> None:
    expected, _ = fedavg(keep(tmp_path / "whole"), 4)
    fedavg(keep(tmp_path / "hurt"), 3)
    newest = tmp_path / "hurt" / "checkpoint.bin"
    newest.write_bytes(damage(newest.read_bytes()))
    capsys.readouterr()
    theta, record = fedavg(keep(tmp_path / "hurt"), 4)
    stderr = capsys.readouterr().err
    assert "damaged" in stderr and "resumed after round 2" in stderr
    assert torch.equal(theta, expected)
    assert [m["round"] for m in record.metrics] == [1, 2, 3, 4]


def test_a_checkpoint_of_other_conditions_is_refused_with_the_reason(tmp_path: Path) -> None:
    fedavg(keep(tmp_path, torch="2.12"), 1)
    with pytest.raises(FdamedError, match=r"torch: 2\.12 then, 2\.13 now"):
        fedavg(keep(tmp_path, torch="2.13"), 2)


def test_a_loss_that_is_not_finite_stops_with_a_reason_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    fedavg(keep(tmp_path), 1)
    before = (tmp_path / "checkpoint.bin").read_bytes()
    server = hospitals.in_process()
    for client in clients_of(server).values():
        client.recipe = Recipe(lr=1e30, batch=4, optimizer="sgd", epochs=3)
    with pytest.raises(FdamedError, match="not finite"):
        run(FedAvg(), server, hospitals.theta(), 3, hospitals.no_judge, keep(tmp_path))
    assert (tmp_path / "checkpoint.bin").read_bytes() == before


def test_a_hospital_whose_process_dies_is_left_out_and_the_run_continues(tmp_path: Path) -> None:
    server = hospitals.processes(("north", "east", "target"))

    def judge(theta: torch.Tensor) -> dict[str, float | None]:
        if server.round == 1:
            server.transport.processes["east"].kill()
            server.transport.processes["east"].join()
        return {}

    theta, record = run(FedAvg(), server, hospitals.theta(), 3, judge, keep(tmp_path))
    assert server.transport.state("east") is None and server.transport.state("north") is not None
    server.close()
    assert torch.isfinite(theta).all()
    assert [(a["round"], a["client"]) for a in record.absences] == [(2, "east"), (3, "east")]


@pytest.mark.parametrize("method", [Finetune(), FedAvg()])
def test_a_run_that_lost_every_round_is_not_scored(method: OneModel) -> None:
    server = hospitals.in_process()

    def gone(client, step, nth, msg):
        raise DroppedOut(client, "gone")

    server.transport = Altered(server.transport, gone)
    with pytest.raises(FdamedError, match="every round was lost"):
        run(method, server, hospitals.theta(), 2, hospitals.no_judge)


def broken_hospital(name: str) -> Client:
    client = hospitals.hospital(name)
    client.data = None  # type: ignore[assignment]
    return client


def test_a_client_that_fails_in_its_process_is_missing_and_the_text_of_its_error_stays_there() -> None:
    builders = {n: partial(hospitals.hospital, n) for n in ("north", "target")}
    builders["east"] = partial(broken_hospital, "east")
    release = dict.fromkeys(builders, hospitals.RELEASE)
    server = Server(Processes(builders, hospitals.model().layout, "test", release), "target", "test", quorum=1)
    theta, record = run(FedAvg(), server, hospitals.theta(), 2, hospitals.no_judge)
    server.close()
    without, _ = run(FedAvg(), hospitals.in_process(("north", "target")), hospitals.theta(), 2, hospitals.no_judge)
    assert torch.equal(theta, without)
    assert [(a["round"], a["client"], a["reason"]) for a in record.absences] == [
        (1, "east", "failed"),
        (2, "east", "failed"),
    ]
    assert all("unexpected error" in a["why"] and "NoneType" not in a["why"] for a in record.absences)


def deterministic_hospital(name: str) -> Client:
    client = hospitals.hospital(name)
    client.memory["mode"] = torch.tensor(torch.get_deterministic_debug_mode())
    return client


def test_a_client_in_its_process_is_as_deterministic_as_the_server() -> None:
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    try:
        build = {"north": partial(deterministic_hospital, "north")}
        transport = Processes(build, hospitals.model().layout, "test", {"north": hospitals.RELEASE})
        state = transport.state("north")
        transport.close()
    finally:
        torch.set_deterministic_debug_mode(before)
    assert state is not None and int(unpack_state(state, "north")["mode"]) == 1


@pytest.mark.parametrize(("begins", "quorum", "lost"), [(2, 2, set()), (2, 3, {2, 3}), (1, 2, None)])
def test_an_error_ends_the_run_only_in_the_first_answer_to_a_step(begins, quorum, lost) -> None:
    """The study's own mistakes show at once; a client that fails later is missing, whatever its reply claims."""
    server = hospitals.in_process()
    server.quorum = quorum
    deliver = server.transport.deliver

    def failing(client, step, nth, msg):
        if client == "north" and server.round >= begins:
            claimed = pack({"ok": False, "error": ["stop", "here", "now"]}, b"")
            return reply_body(client, claimed)
        return deliver(client, step, nth, msg)

    server.transport = Altered(server.transport, failing)
    if lost is None:
        with pytest.raises(FdamedError, match="stop"):
            run(FedAvg(), server, hospitals.theta(), 3, hospitals.no_judge)
        return
    _, record = run(FedAvg(), server, hospitals.theta(), 3, hospitals.no_judge)
    assert {(a["round"], a["client"], a["reason"], a["why"]) for a in record.absences} == {
        (r, "north", "failed", "stop") for r in (2, 3)
    }
    assert {m["round"] for m in record.metrics if m.get("lost")} == lost


def test_a_client_refuses_what_its_own_policy_does_not_release() -> None:
    client = hospitals.hospital("east")
    client.release = frozenset({"count"})
    with pytest.raises(FdamedError, match="does not release"):
        answer(client, train_locally, 1, 0, Model(x=hospitals.theta()))


def test_streams_are_named_counted_and_independent() -> None:
    assert stream(1, "a", 2).key == stream(1, "a", 2).key
    assert len({stream(s, n, r).key for s in range(3) for n in ("a", "b") for r in range(4)}) == 24
    one = stream(1, "a")
    assert one.numpy.integers(0, 1000) == one.numpy.integers(0, 1000)
    assert stream(1, "x").key == 11964883694390915837  # the same on every machine
