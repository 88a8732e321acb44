"""What every registered method must do on every transport."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fdamed.methods  # noqa: F401
from fdamed.federation.absences import DroppedOut
from fdamed.federation.messages import WHOLE_MODEL, decode, encode, tensors
from fdamed.federation.method import REGISTRY, describe
from fdamed.federation.runner import run
from fdamed.federation.server import Ledger
from fdamed.federation.storage.checkpoint import Checkpoints
from tests.support import federation as hospitals
from tests.support.federation import Altered, clients_of, suited
from tests.support.federation import registered as made

METHODS = sorted(REGISTRY)
ROUNDS = 3


def outcome(name: str, server, rounds: int = ROUNDS, **options):
    start = hospitals.theta(bool(server.layout.heads))
    theta, record = run(made(name), server, start, rounds, hospitals.no_judge, **options)
    server.close()
    return theta, record


@pytest.fixture(scope="module")
def expected():
    return {name: outcome(name, hospitals.in_process(**suited(name))) for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_it_learns_something_finite(name, expected) -> None:
    theta, record = expected[name]
    assert torch.isfinite(theta).all()
    assert not torch.equal(theta, hospitals.theta())
    assert [m["round"] for m in record.metrics] == list(range(1, made(name).length * ROUNDS + 1))


@pytest.mark.parametrize("name", METHODS)
def test_no_answer_of_an_honest_client_is_rejected(name) -> None:
    """With the default validation; tests/workflow/test_honest_studies.py has the shipped studies."""
    server = hospitals.in_process(**suited(name))
    server.validator.images = {name: len(client.data) for name, client in clients_of(server).items()}
    _, record = outcome(name, server)
    assert record.absences == []
    assert not any(key.startswith("clipped/") for line in record.metrics for key in line)


def test_one_process_a_hospital_gives_the_same_bits_and_the_same_ledger() -> None:
    names = ("north", "east", "target")
    for options in {tuple(suited(name).items()): suited(name) for name in METHODS}.values():
        apart = hospitals.processes(names, **options)
        for name in (n for n in METHODS if suited(n) == options):
            for client in names:
                apart.transport.restore(client, b"")
            apart.ledger = Ledger()
            theta, record = run(made(name), apart, hospitals.theta(), ROUNDS, hospitals.no_judge)
            together = outcome(name, hospitals.in_process(names, **options))
            assert torch.equal(theta, together[0]), name
            assert record.ledger == together[1].ledger, name
        apart.close()


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_hospitals_changes_nothing(name, expected) -> None:
    server = hospitals.in_process(tuple(reversed(hospitals.NAMES)), **suited(name))
    theta, record = outcome(name, server)
    assert torch.equal(theta, expected[name][0])
    assert record.ledger == expected[name][1].ledger


@pytest.mark.parametrize("name", METHODS)
def test_a_hospital_rebuilt_at_each_question_gives_the_same_bits(name, expected) -> None:
    theta, _ = outcome(name, hospitals.rebuilt(**suited(name)))
    assert torch.equal(theta, expected[name][0])


@pytest.mark.parametrize("name", METHODS)
def test_a_run_stopped_after_any_round_ends_with_the_same_bits(name, expected, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    for stop in range(1, made(name).length * ROUNDS):
        folder = tmp_path / str(stop)
        keep = Checkpoints(folder, lambda p, r, f=folder: f / p / f"{r:05d}.safetensors", {"threads": 1})

        def judge(theta, count=[0], stop=stop):  # noqa: B006
            count[0] += 1
            if count[0] == stop + 1:
                raise Stop
            return {}

        method = made(name)
        with pytest.raises(Stop):
            run(method, hospitals.in_process(**suited(name)), hospitals.theta(), ROUNDS, judge, keep)
        server = hospitals.in_process(**suited(name))
        theta, record = run(method, server, hospitals.theta(), ROUNDS, hospitals.no_judge, keep)
        assert torch.equal(theta, expected[name][0])
        assert record.ledger == expected[name][1].ledger
        assert record.metrics == expected[name][1].metrics


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("lost", ["east", "target"])
def test_a_hospital_that_drops_out_leaves_a_finite_model(name, lost) -> None:
    server = hospitals.in_process(**suited(name))
    deliver = server.transport.deliver

    def unreliable(client, step, nth, msg):
        if client == lost and server.round == 2:
            raise DroppedOut(client, "gone for a round")
        return deliver(client, step, nth, msg)

    server.transport = Altered(server.transport, unreliable)
    theta, record = outcome(name, server)
    assert torch.isfinite(theta).all()
    assert len(record.metrics) == made(name).length * ROUNDS


@pytest.mark.parametrize("name", METHODS)
def test_an_update_that_is_not_finite_is_named_and_left_out(name) -> None:
    server = hospitals.in_process(**suited(name))
    deliver = server.transport.deliver

    def poisoned(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        if client == "east":
            for sent in tensors(reply, *WHOLE_MODEL, "statistic").values():
                sent.view(-1)[:1] = float("nan")
        return reply

    server.transport = Altered(server.transport, poisoned)
    theta, record = outcome(name, server)
    assert torch.isfinite(theta).all()
    asked = any(line["from"] == "east" for line in record.ledger)
    assert {a["client"] for a in record.absences} == ({"east"} if asked else set())


@pytest.mark.parametrize("name", METHODS)
def test_one_source_is_enough(name) -> None:
    theta, _ = outcome(name, hospitals.in_process(("north", "target"), **suited(name)))
    assert torch.isfinite(theta).all()


def asks_sources(record) -> bool:
    return any(line["to"] in ("north", "east", "south") for line in record.ledger)


@pytest.mark.parametrize("name", METHODS)
def test_private_auxiliary_heads_change_the_sources_training_and_are_never_sent(name, expected) -> None:
    theta, record = outcome(name, hospitals.in_process(auxiliary=True, **suited(name)))
    assert torch.equal(theta, expected[name][0]) != asks_sources(record)
    assert record.ledger == expected[name][1].ledger


def main_part(theta: torch.Tensor, size: int) -> torch.Tensor:
    """`size` numbers: a model without its shared auxiliary heads, with all that a method puts behind the network."""
    layout = hospitals.model(share=True).layout
    if len(theta) == size:  # not a network
        return theta
    return torch.cat([theta[: layout.main], theta[layout.trainable :]])


@pytest.mark.parametrize("name", METHODS)
def test_shared_auxiliary_heads_are_sent_with_every_whole_model(name, expected) -> None:
    theta, record = outcome(name, hospitals.in_process(auxiliary=True, share=True, **suited(name)))
    plain = expected[name][0]
    alike = torch.allclose(main_part(theta, len(plain)), plain, atol=1e-6)  # a longer vector rounds in other places
    assert alike != asks_sources(record)
    bare, heads = hospitals.model().layout.size, 2 * 5
    for line, before in zip(record.ledger, expected[name][1].ledger, strict=True):
        assert {k: v for k, v in line.items() if k != "bytes"} == {k: v for k, v in before.items() if k != "bytes"}
        if line["kind"] in (*WHOLE_MODEL, "individual"):
            assert line["bytes"] * bare == before["bytes"] * (bare + heads)


@pytest.mark.parametrize("name", METHODS)
def test_the_target_never_moves_a_shared_auxiliary_head(name) -> None:
    """Nor by weight decay, with Adam and with SGD."""
    for optimizer in ("adam", "sgd"):
        server = hospitals.in_process(("north", "target"), auxiliary=True, share=True, **suited(name))
        (head,) = server.layout.heads
        target, deliver = clients_of(server)["target"], server.transport.deliver
        for each in clients_of(server).values():
            each.recipe = each.recipe.model_copy(update={"weight_decay": 0.1, "optimizer": optimizer})
        moved = []

        def watched(client, step, nth, msg, deliver=deliver, target=target, head=head, moved=moved):
            reply = deliver(client, step, nth, msg)
            if client == "target" and (starts := list(tensors(msg, "weights").values())):
                moved.extend(x[head] - starts[0][head] for x in tensors(reply, "weights").values())
                moved.extend(g[head] for g in tensors(reply, "update").values())
            return reply

        server.transport = Altered(server.transport, watched)
        outcome(name, server)
        assert target.auxiliary is None and not any(m.any() for m in moved)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("share", [False, True], ids=["private", "shared"])
def test_auxiliary_heads_give_the_same_bits_when_a_hospital_is_rebuilt_at_each_question(name, share) -> None:
    heads = {"auxiliary": True, "share": share}
    theta, record = outcome(name, hospitals.in_process(**heads, **suited(name)), rounds=2)
    again, other = outcome(name, hospitals.rebuilt(**heads, **suited(name)), rounds=2)
    assert torch.equal(theta, again) and record.ledger == other.ledger


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("share", [False, True], ids=["private", "shared"])
def test_a_source_without_any_auxiliary_label_takes_part_all_the_same(name, share) -> None:
    server = hospitals.in_process(auxiliary=True, share=share, **suited(name))
    data = clients_of(server)["east"].data
    data.auxiliary["sex"][:] = -1
    theta, record = outcome(name, server)
    assert torch.isfinite(theta).all() and record.absences == []


@pytest.mark.parametrize("name", METHODS)
def test_clients_do_not_change_the_questions(name) -> None:
    server = hospitals.in_process(**suited(name))
    deliver = server.transport.deliver

    def watched(client, step, nth, msg):
        before = encode(msg)
        reply = deliver(client, step, nth, msg)
        assert encode(msg) == before
        return reply

    server.transport = Altered(server.transport, watched)
    _, record = outcome(name, server)
    assert record.metrics


@pytest.mark.parametrize("name", METHODS)
def test_the_state_survives_its_own_encoding(name) -> None:
    method = made(name)
    theta = hospitals.theta()
    state = decode(method.state, encode(method.start(theta)), len(theta))
    assert torch.equal(method.final(state), theta)


@pytest.mark.parametrize("name", METHODS)
def test_it_asks_only_for_the_steps_it_declares(name, expected) -> None:
    declared = {s.name for s in REGISTRY[name].steps}
    assert {line["step"] for line in expected[name][1].ledger} <= declared


@pytest.mark.parametrize("name", METHODS)
def test_it_asks_those_hospitals_that_it_says_it_asks(name, expected) -> None:
    heard = {line["to"] for line in expected[name][1].ledger} - {"server"}
    assert REGISTRY[name].asks_target or "target" not in heard
    assert REGISTRY[name].asks_sources or heard <= {"target"}


def test_every_method_says_what_it_is() -> None:
    for name, entry in describe().items():
        assert entry["title"] and entry["paper"], name
        assert entry["wire"], name
        assert all(o["help"] for o in entry["options"].values()), name


@pytest.mark.parametrize("name", METHODS)
def test_a_source_that_takes_no_part_in_a_round_hears_nothing_in_it(name) -> None:
    server = hospitals.in_process(**suited(name))
    server.invite(0.4, 3)  # one of three sources a round
    theta, record = run(made(name), server, hospitals.theta(), ROUNDS, hospitals.no_judge)
    assert torch.isfinite(theta).all()
    assert record.absences == []
    for round in range(1, made(name).length * ROUNDS + 1):
        heard = {r["to"] for r in record.ledger if r["round"] == round} - {"server", "target"}
        server.begin(round, ROUNDS)
        assert len(server.participants) == 1
        assert heard <= set(server.participants)
    server.close()
