"""Which questions are the same, what is kept for how long, and what happens to entries that cannot be used."""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fdamed.methods  # noqa: F401
from fdamed.config.runs import Auxiliary
from fdamed.config.study import Decay, Recipe
from fdamed.core.errors import FdamedError
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.client import STEPS, Client, answer
from fdamed.federation.messages import decode, encode, pack, unpack
from fdamed.federation.method import Model
from fdamed.federation.server import Server
from fdamed.federation.storage import answers as remembering
from fdamed.federation.storage.answers import CHECKSUM, Answers, Took, digest_of
from fdamed.federation.transport.endpoint import handle_request
from fdamed.federation.transport.multiprocess import Processes
from fdamed.federation.transport.wire import ByteTransport, Wire
from fdamed.methods._shared.local_training import Trained, compute_update, continue_training, train_locally
from fdamed.models.flat import FlatModel
from fdamed.training.dp_sgd import Mechanism
from tests.support import federation as hospitals

ASK = Model(x=hospitals.theta())


@pytest.fixture(autouse=True)
def everything_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("WORTH", "PER_MEGABYTE"):
        monkeypatch.setattr(remembering, limit, 0.0)


def new_client(folder: Path, name: str = "north", **changes) -> Client:
    """A client that remembers in this folder."""
    answers = Answers(folder, 10**9, "conditions", dict.fromkeys(STEPS, "code"))
    return replace(hospitals.hospital(name), answers=answers, **changes)


def asked(client: Client, step=train_locally, round: int = 1, nth: int = 0, ask=ASK) -> tuple[bytes, bool]:
    """The bytes of an answer, and whether it was remembered."""
    reply = encode(answer(client, step, round, nth, ask))
    return reply, client.remembered is not None


def test_the_same_question_is_computed_once(tmp_path: Path) -> None:
    expected, computed = asked(new_client(tmp_path)), asked(hospitals.hospital("north"))
    assert expected == computed and not expected[1]
    assert asked(new_client(tmp_path)) == (expected[0], True)
    assert asked(hospitals.hospital("north")) == expected, "without a folder it is computed"


def brighter(client: Client) -> Client:
    images = client.data.images.copy()
    images[3, 2, 5] += 1
    return replace(client, data=replace(client.data, images=images))


def relabeled(client: Client) -> Client:
    y = client.data.y.copy()
    y[4] = 1 - y[4]
    return replace(client, data=replace(client.data, y=y))


def conditions(client: Client, **changes) -> Client:
    assert client.answers
    return replace(client, answers=replace(client.answers, **changes))


RECIPE = Recipe(lr=0.02, batch=4)
AUXILIARY = {"auxiliary": Auxiliary(heads=("sex",), alpha=0.25, share=False)}
CHANGES = {
    "image": brighter,
    "label": relabeled,
    "noise": lambda client: replace(client, data=replace(client.data, noise=0.1)),
    "auxiliary label": lambda client: replace(client, data=replace(client.data, auxiliary={"sex": client.data.y})),
    "seed": partial(replace, seed=6),
    "name": partial(replace, name="east"),
    "role": partial(replace, role="target"),
    "recipe": partial(replace, recipe=RECIPE.model_copy(update={"lr": 0.03})),
    "precision": partial(replace, precision="bfloat16"),
    "auxiliary": lambda client: replace(client, **AUXILIARY, heads=FlatModel(nn.ModuleDict({"sex": nn.Linear(4, 2)}))),
    "state": partial(replace, memory={"heads": torch.ones(3)}),
    "release": partial(replace, release=hospitals.RELEASE | {"features"}),
    "conditions": partial(conditions, conditions="another version of torch"),
    "code": partial(conditions, code=dict.fromkeys(STEPS, "other code")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_could_change_the_answer_is_another_question(change, tmp_path: Path) -> None:
    asked(new_client(tmp_path))
    changed = change(new_client(tmp_path))
    assert not asked(changed)[1]
    assert asked(change(new_client(tmp_path)))[1]


@pytest.mark.parametrize(
    "question",
    [{"round": 2}, {"nth": 1}, {"step": compute_update}, {"ask": Model(x=ASK.x + 1e-6)}],
    ids=["round", "nth", "step", "model"],
)
def test_another_question_is_computed(question, tmp_path: Path) -> None:
    asked(new_client(tmp_path))
    assert not asked(new_client(tmp_path), **question)[1]


def test_the_learning_rate_of_the_round_is_part_of_the_question(tmp_path: Path) -> None:
    """Round 3 at 0.02, and at 0.02 after a decay by half: the same stream, another rate."""
    asked(new_client(tmp_path, recipe=RECIPE), round=3)
    halved = RECIPE.model_copy(update={"decay": Decay(factor=0.5, every=2)})
    assert not asked(new_client(tmp_path, recipe=halved), round=3)[1]


def test_a_model_that_was_changed_in_place_is_another_one() -> None:
    x = torch.zeros(3)
    before = digest_of(x)
    x[1:].add_(1)
    assert digest_of(x) != before and digest_of(x) == digest_of(torch.tensor([0.0, 1.0, 1.0]))
    assert digest_of(torch.zeros(2, 2)) != digest_of(torch.zeros(4)), "the shape counts"
    assert digest_of(torch.zeros(2)) != digest_of(torch.zeros(2, dtype=torch.int32)), "and the type"
    with torch.inference_mode():
        assert digest_of(torch.zeros(4)) == digest_of(np.zeros(4, np.float32))


def test_a_model_that_goes_to_many_clients_is_read_once() -> None:
    x = torch.zeros(3)
    before = digest_of(x)
    x.numpy()[0] = 1.0  # behind torch's back: only reading the numbers again would show it
    assert digest_of(x) == before != digest_of(x.clone())


def test_the_state_after_an_answer_comes_with_it(tmp_path: Path) -> None:
    first, second = new_client(tmp_path), new_client(tmp_path)
    for round in (1, 2, 3):
        assert asked(first, continue_training, round)[0] == asked(second, continue_training, round)[0]
        assert second.remembered
        assert list(first.memory) == list(second.memory)
        assert all(torch.equal(first.memory[name], second.memory[name]) for name in first.memory)


# --- what is kept ----------------------------------------------------------------------------------------------------


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def test_an_answer_that_is_computed_as_fast_as_it_is_stored_is_not_kept(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(remembering, "WORTH", 1000.0)
    asked(new_client(tmp_path))
    assert entries(tmp_path) == []
    monkeypatch.setattr(remembering, "WORTH", 0.0)
    monkeypatch.setattr(remembering, "PER_MEGABYTE", 1e9)
    asked(new_client(tmp_path))
    assert entries(tmp_path) == []


def test_nothing_is_remembered_under_noise(tmp_path: Path) -> None:
    noise = Mechanism(1.0, 1.0, np.arange(14), 1e-3, False)
    private = Mechanism(1.0, 1.0, np.arange(14), 1e-3, True)
    for mechanism in (noise, private):
        client = new_client(tmp_path, noise=mechanism)
        assert client.answers and client.answers.key(client, train_locally, ASK) is None


def test_a_step_without_a_digest_of_its_code_is_not_remembered(tmp_path: Path) -> None:
    client = conditions(new_client(tmp_path), code={"compute_update": "code"})
    asked(client)
    assert entries(tmp_path) == []
    asked(client, compute_update)
    assert len(entries(tmp_path)) == 1


def test_an_error_is_not_remembered(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(FdamedError, match="not finite"):
            asked(new_client(tmp_path, recipe=Recipe(lr=1e30, batch=4, optimizer="sgd", epochs=3)))
    assert entries(tmp_path) == []


def test_the_answers_that_were_not_used_for_the_longest_time_make_room(tmp_path: Path) -> None:
    for round in (1, 2, 3):
        asked(new_client(tmp_path), round=round)
    size = entries(tmp_path)[0].stat().st_size
    for age, entry in enumerate(sorted(entries(tmp_path), key=lambda p: p.stat().st_mtime_ns)):
        os.utime(entry, (1000.0 + age, 1000.0 + age))
    full = partial(conditions, limit=3 * size + 100, began=time.time() - 60)
    assert asked(full(new_client(tmp_path)), round=1)[1], "round 1 is used now, and round 2 is the oldest"
    asked(full(new_client(tmp_path)), round=4)
    assert len(entries(tmp_path)) == 3
    assert [asked(full(new_client(tmp_path)), round=round)[1] for round in (1, 3, 4)] == [True, True, True]
    assert not asked(full(new_client(tmp_path)), round=2)[1]


def test_a_process_does_not_remove_what_it_has_just_kept(tmp_path: Path) -> None:
    """A run longer than the folder is large keeps its first rounds, which other runs ask for first."""
    asked(new_client(tmp_path), round=1)
    size = entries(tmp_path)[0].stat().st_size
    full = partial(conditions, limit=2 * size + 100, began=time.time() - 60)
    for round in (1, 2, 3, 4):
        asked(full(new_client(tmp_path)), round=round)
    assert [asked(full(new_client(tmp_path)), round=round)[1] for round in (1, 2, 3, 4)] == [True, True, False, False]


def test_an_answer_larger_than_the_folder_may_be_removes_nothing(tmp_path: Path) -> None:
    asked(new_client(tmp_path))
    os.utime(entries(tmp_path)[0], (1000.0, 1000.0))
    asked(conditions(new_client(tmp_path), limit=10), round=2)
    assert len(entries(tmp_path)) == 1


def test_only_the_owner_can_read_them(tmp_path: Path) -> None:
    asked(new_client(tmp_path / "answers"))
    assert (tmp_path / "answers").stat().st_mode & 0o777 == 0o700


# --- entries that cannot be used -------------------------------------------------------------------------------------

DAMAGE = {
    "cut": lambda b: b[: len(b) // 2],
    "empty": lambda b: b"",
    "a changed number": lambda b: b[:-9] + bytes([b[-9] ^ 1]) + b[-8:],
    "a changed header": lambda b: b[:70] + b"?" + b[71:],
    "longer": lambda b: b + b"0",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_computed_again_and_replaced(damage, tmp_path: Path, capsys) -> None:
    expected, _ = asked(new_client(tmp_path))
    (entry,) = entries(tmp_path)
    sound = unpack(entry.read_bytes()[CHECKSUM:])
    entry.write_bytes(damage(entry.read_bytes()))
    assert asked(new_client(tmp_path)) == (expected, False)
    assert "damaged" in capsys.readouterr().err
    assert unpack(entry.read_bytes()[CHECKSUM:])[1] == sound[1]
    assert asked(new_client(tmp_path)) == (expected, True)


def test_the_entry_of_another_question_is_not_taken(tmp_path: Path) -> None:
    expected, _ = asked(new_client(tmp_path))
    (entry,) = entries(tmp_path)
    other = tmp_path / "elsewhere"
    asked(new_client(other, "east"))
    shutil.copy(entries(other)[0], entry)
    assert asked(new_client(tmp_path)) == (expected, False)
    assert asked(new_client(tmp_path)) == (expected, True)


def test_a_sound_entry_with_another_message_is_not_taken(tmp_path: Path) -> None:
    """Its checksum and its name are right, its answer is that of another step."""
    expected, _ = asked(new_client(tmp_path))
    (entry,) = entries(tmp_path)
    client = new_client(tmp_path)
    moved = answer(hospitals.hospital("north"), compute_update, 1, 0, ASK)
    assert client.answers
    client.answers.keep(entry.name, moved, {}, {}, Took(1.0, 1.0))
    assert asked(client) == (expected, False)


def test_a_full_disk_costs_no_run_and_one_line(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(remembering, "RESERVE", 0)
    expected = [asked(hospitals.hospital("north"), round=round) for round in (1, 2)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        found = [asked(new_client(tmp_path), round=round) for round in (1, 2)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert found == expected and entries(tmp_path) == []
    assert capsys.readouterr().err.count("answers are not remembered: the disk is full") == 1


def test_the_last_gigabyte_of_a_disk_is_left_to_others(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(remembering, "free", lambda folder: 10**9)
    for round in (1, 2):
        asked(new_client(tmp_path), round=round)
    assert entries(tmp_path) == []
    assert capsys.readouterr().err.count("less than 1 GB of the disk are free") == 1


def test_a_folder_that_cannot_be_written_costs_no_run(tmp_path: Path) -> None:
    (tmp_path / "answers").write_text("a file, not a folder")
    assert asked(new_client(tmp_path / "answers")) == asked(hospitals.hospital("north"))


def test_two_jobs_that_compute_the_same_answer_both_succeed(tmp_path: Path) -> None:
    """The second job begins and ends while the first computes."""
    inner = []

    def slow(client: Client, ask: Model) -> Trained:
        inner.append(asked(new_client(tmp_path)))
        return train_locally.run(client, ask)

    outer = asked(new_client(tmp_path), replace(train_locally, run=slow))
    assert outer == inner[0] and not outer[1]
    assert len(entries(tmp_path)) == 1
    assert asked(new_client(tmp_path)) == (outer[0], True)


# --- what the server learns ------------------------------------------------------------------------------------------


def request(round: int) -> bytes:
    return pack({"step": train_locally.name, "round": round, "nth": 0}, encode(ASK))


def test_a_reply_says_how_long_a_remembered_answer_took(tmp_path: Path) -> None:
    head, body = unpack(handle_request(new_client(tmp_path), "test", request(1)))
    assert head == {"ok": True}
    again, same = unpack(handle_request(new_client(tmp_path), "test", request(1)))
    assert same == body and len(again["remembered"]) == 2 and min(again["remembered"]) > 0


@pytest.mark.parametrize("times", ["1", [1.0], [1.0, -1.0], [1.0, float("inf")], [1.0, float("nan")], [1, 2], {"a": 1}])
def test_a_reply_with_no_such_times_is_malformed(times) -> None:
    class Lying(Wire):
        def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes | DroppedOut]:
            reply = encode(answer(hospitals.hospital("north"), train_locally, 1, 0, ASK))
            return {"north": pack({"ok": True, "remembered": times}, reply)}

        def close(self) -> None:
            raise AssertionError("nothing is open")

    transport = ByteTransport(Lying(), hospitals.model().layout, {})
    with pytest.raises(DroppedOut) as refused:
        transport.deliver("north", train_locally, 0, ASK)
    assert refused.value.reason is Reason.MALFORMED and transport.remembered == []


def test_clients_in_processes_of_their_own_remember_too(tmp_path: Path) -> None:
    names = ("north", "target")
    rounds = []
    for _ in range(2):
        builders = {name: partial(slow_client, tmp_path / name, name) for name in names}
        release = dict.fromkeys(names, hospitals.RELEASE)
        server = Server(Processes(builders, hospitals.model().layout, "test", release), "target", "test")
        server.begin(1, 1)
        replies = server.ask_all(names, train_locally, ASK)
        rounds.append(
            ({n: encode(r) for n, r in replies.items()}, server.ledger.lines(), len(server.transport.remembered))
        )
        server.close()
    (first, counted, none), (second, again, both) = rounds
    assert first == second and counted == again and (none, both) == (0, 2)
    assert decode(Trained, first["north"], len(ASK.x)).n == 14
    assert len(entries(tmp_path / "north")) == len(entries(tmp_path / "target")) == 1


def slow_client(folder: Path, name: str) -> Client:
    """Built in a process of its own, where answers are worth it only if they take long."""
    return new_client(folder, name, recipe=Recipe(lr=0.02, batch=4, epochs=30))
