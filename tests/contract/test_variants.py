"""Published message formats and other variants of the methods without target labels pass the same contract tests."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from fdamed.core.errors import FdamedError
from fdamed.federation.absences import DroppedOut
from fdamed.federation.client import Client
from fdamed.federation.method import REGISTRY, Method
from fdamed.federation.runner import run
from fdamed.federation.server import Ledger, Server
from fdamed.federation.transport.multiprocess import Processes
from fdamed.models.flat import without_heads
from tests.support import federation as hospitals
from tests.support.federation import Altered, clients_of

ROUNDS = 2
OPEN = hospitals.RELEASE | {"features"}
NAMES = ("north", "east", "target")
VARIANTS = {
    "fada": {"wire": "features"},
    "fada-II": {"wire": "features", "model": "II"},
    "kd3a": {"variant": "paper"},
    "kd3a-heads": {"heads": "average"},
}
SENDING = [name for name, options in VARIANTS.items() if options.get("wire") == "features"]


def variant(name: str) -> Method:
    return REGISTRY[name.partition("-")[0]](**VARIANTS[name])


def hospital(name: str, **options: bool) -> Client:
    """One that releases features."""
    client = hospitals.hospital(name, labels=False, **options)
    client.release = OPEN
    return client


def together(names: tuple[str, ...] = NAMES, **options: bool):
    server = hospitals.in_process(names, labels=False, **options)
    for client in clients_of(server).values():
        client.release = OPEN
    return server


@pytest.fixture(scope="module")
def expected():
    return {name: run(variant(name), together(), hospitals.theta(), ROUNDS, hospitals.no_judge) for name in VARIANTS}


@pytest.mark.parametrize("name", VARIANTS)
def test_it_learns_something_finite_and_the_ledger_lists_what_crossed(name, expected) -> None:
    theta, record = expected[name]
    assert torch.isfinite(theta).all() and not torch.equal(theta, hospitals.theta())
    sent = {line["kind"] for line in record.ledger if line["from"] != "server"}
    assert ("features" in sent) == (name in SENDING)
    passed_on = {line["to"] for line in record.ledger if line["kind"] == "individual"}
    assert passed_on == ({"target"} if name.startswith(("kd3a", "fada")) else set())


def test_one_process_a_hospital_gives_the_same_bits_and_the_same_ledger(expected) -> None:
    builders = {n: partial(hospital, n) for n in NAMES}
    layout = hospitals.model().layout
    apart = Server(Processes(builders, layout, "test", dict.fromkeys(NAMES, OPEN)), "target", "test")
    for name in VARIANTS:
        for client in NAMES:
            apart.transport.restore(client, b"")
        apart.ledger = Ledger()
        theta, record = run(variant(name), apart, hospitals.theta(), ROUNDS, hospitals.no_judge)
        assert torch.equal(theta, expected[name][0]), name
        assert record.ledger == expected[name][1].ledger, name
    apart.close()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_hospital_rebuilt_at_each_question_gives_the_same_bits(name, expected) -> None:
    server = together()
    deliver = server.transport.deliver

    def rebuilt(client, step, nth, msg):
        memory = {k: v.clone() for k, v in clients_of(server)[client].memory.items()}
        clients_of(server)[client] = hospital(client)
        clients_of(server)[client].memory = memory
        return deliver(client, step, nth, msg)

    server.transport = Altered(server.transport, rebuilt)
    theta, record = run(variant(name), server, hospitals.theta(), ROUNDS, hospitals.no_judge)
    assert torch.equal(theta, expected[name][0])
    assert record.ledger == expected[name][1].ledger


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("share", [False, True], ids=["private", "shared"])
def test_auxiliary_heads_change_the_training_and_survive_a_rebuilt_hospital(name, share, expected) -> None:
    heads = {"auxiliary": True, "share": share}
    server, again = together(**heads), together(**heads)
    theta, record = run(variant(name), server, hospitals.theta(share), ROUNDS, hospitals.no_judge)
    bare = without_heads({"x": theta}, server.layout)["x"]
    assert torch.isfinite(theta).all() and not torch.allclose(bare, expected[name][0], atol=1e-6)
    assert (record.ledger == expected[name][1].ledger) == (not share)
    deliver = again.transport.deliver

    def rebuilt(client, step, nth, msg):
        memory = {k: v.clone() for k, v in clients_of(again)[client].memory.items()}
        clients_of(again)[client] = hospital(client, auxiliary=client != "target", share=share)
        clients_of(again)[client].memory = memory
        return deliver(client, step, nth, msg)

    again.transport = Altered(again.transport, rebuilt)
    other, _ = run(variant(name), again, hospitals.theta(share), ROUNDS, hospitals.no_judge)
    assert torch.equal(other, theta)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("lost", ["east", "target"])
def test_a_hospital_that_drops_out_leaves_a_finite_model(name, lost) -> None:
    server = together()
    deliver = server.transport.deliver

    def unreliable(client, step, nth, msg):
        if client == lost and server.round == 2:
            raise DroppedOut(client, "gone for a round")
        return deliver(client, step, nth, msg)

    server.transport = Altered(server.transport, unreliable)
    theta, record = run(variant(name), server, hospitals.theta(), ROUNDS, hospitals.no_judge)
    assert torch.isfinite(theta).all()
    assert bool(record.metrics[1].get("lost")) == (lost == "target")


@pytest.mark.parametrize("shut", ["east", "target"])
@pytest.mark.parametrize("name", SENDING)
def test_one_hospital_that_keeps_its_features_stops_the_run_before_a_byte_leaves(name, shut) -> None:
    server = together()
    server.method = name
    clients_of(server)[shut].release = hospitals.RELEASE
    with pytest.raises(FdamedError) as refused:
        run(variant(name), server, hospitals.theta(), ROUNDS, hospitals.no_judge)
    for part in (name, "feature_exchange.", "send_features", "features", shut):
        assert part in refused.value.what
    assert server.ledger.lines() == []
    assert "privacy.release" in refused.value.fix


def test_in_a_process_of_its_own_a_hospital_refuses_just_the_same() -> None:
    builders = {n: partial(hospitals.hospital, n, labels=False) for n in ("north", "target")}
    layout = hospitals.model().layout
    # The server believes that features are released: the hospital's own door holds.
    server = Server(Processes(builders, layout, "fada", dict.fromkeys(builders, OPEN)), "target", "fada")
    with pytest.raises(
        FdamedError, match=r"fada asks \w+ in step feature_exchange.invariant.send_features for features"
    ):
        run(variant("fada"), server, hospitals.theta(), 1, hospitals.no_judge)
    assert server.ledger.total(kind="features", sender="north") == 0
    server.close()
