"""A method written like the README's example is protected by construction: it never mentions validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fdamed.config.train import Directions, Norms, Validation
from fdamed.federation.client import Client, Step, step
from fdamed.federation.messages import Images, Update, message
from fdamed.federation.method import REGISTRY, Model, OneModel, method
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess
from tests.support import attackers
from tests.support import federation as hospitals
from tests.support.attackers import ATTACKER, SOURCES, TARGET
from tests.support.federation import Altered

ROBUST = Validation(norms=Norms(), directions=Directions())


@message
class Sent:
    g: Update
    n: Images


@step("test.plain_update")
def train(client: Client, ask: Model) -> Sent:
    """A few steps of SGD, as anybody would write them."""
    from fdamed.training.local import fit

    client.model.load(ask.x)
    fit(client.model, client.data, client.recipe, client.rng)
    return Sent(g=client.model.read().sub_(ask.x), n=len(client.data))


@pytest.fixture(scope="module", autouse=True)
def plain() -> Iterator[type[OneModel]]:
    @method("plain", "Plain", "README", (train,), target_labels=True)
    class Plain(OneModel):
        def round(self, state: Model, server: Server) -> Model:
            sent = server.ask_all(server.sources, train, state)
            if not sent:
                return state
            total = sum(r.n for r in sent.values())
            return Model(x=state.x + sum(r.g * (r.n / total) for r in sent.values()))

    yield REGISTRY["plain"]
    del REGISTRY["plain"]


def negative_variance(r: Sent) -> Sent:
    g = r.g.clone()
    g[attackers.model().layout.variances] = -9.0
    return dataclasses.replace(r, g=g)


def times(r: Sent, factor: float) -> Sent:
    """The parameters' part of the update times a factor; the running statistics stay as they were."""
    return dataclasses.replace(r, g=r.g * factor * (torch.arange(len(r.g)) < attackers.model().layout.trainable))


ALWAYS: dict[str, tuple[str, Callable[[Sent], Any]]] = {
    "nan": ("not finite", lambda r: dataclasses.replace(r, g=r.g * float("nan"))),
    "wrong shape": ("shape", lambda r: dataclasses.replace(r, g=r.g[:-1])),
    "wrong dtype": ("shape", lambda r: dataclasses.replace(r, g=r.g.double())),
    "more images than it has": ("count", lambda r: dataclasses.replace(r, n=10**6)),
    "negative count": ("count", lambda r: dataclasses.replace(r, n=-1)),
    "negative variance": ("negative variance", negative_variance),
}
ROBUSTLY: dict[str, tuple[str, Callable[[Sent], Any]]] = {
    "huge norm": ("norm", lambda r: times(r, 1e4)),
    "sign flip": ("direction", lambda r: times(r, -1.0)),
}


def attacked(change: Callable[[Sent], Any] | None, validation: Validation, rounds: int = 3) -> Any:
    resident = attackers.model()
    clients = {p: attackers.hospital(p, 0, resident) for p in (*SOURCES, TARGET)}
    server = Server(InProcess(clients), TARGET, "test", validation)
    server.validator.images = {p: len(c.data) for p, c in clients.items()}
    server.validator.class_shares = dict.fromkeys(SOURCES, (0.5, 0.5))
    deliver, first = server.transport.deliver, {}

    def answer(client: str, step: Step, nth: int, msg: Any) -> Any:
        reply = deliver(client, step, nth, msg)
        if client != ATTACKER:
            return reply
        return change(reply) if change else first.setdefault(client, times(reply, 1.0))

    server.transport = Altered(server.transport, answer)
    theta, record = run(REGISTRY["plain"](), server, attackers.model().read(), rounds, hospitals.no_judge)
    assert torch.isfinite(theta).all()
    return record


@pytest.mark.parametrize("name", ALWAYS)
def test_what_no_honest_client_sends_is_always_rejected(name: str) -> None:
    reason, change = ALWAYS[name]
    found = attacked(change, Validation()).absences
    assert [(a["client"], a["reason"]) for a in found] == [(ATTACKER, reason)] * 3


def test_a_replayed_update_is_always_rejected() -> None:
    found = attacked(None, Validation()).absences
    assert [(a["round"], a["client"], a["reason"]) for a in found] == [(2, ATTACKER, "replay"), (3, ATTACKER, "replay")]


@pytest.mark.parametrize("name", ROBUSTLY)
def test_norms_and_directions_are_checked_where_a_study_asks_for_it(name: str) -> None:
    reason, change = ROBUSTLY[name]
    assert attacked(change, Validation(), rounds=1).absences == []
    found = attacked(change, ROBUST).absences
    assert {(a["client"], a["reason"]) for a in found} == {(ATTACKER, reason)} and found[0]["round"] == 1
