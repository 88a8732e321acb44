"""Bad input in pre-training: no gradient at all, and clients that drop out between download and upload."""

from __future__ import annotations

import pytest
import torch

from fdamed.config.study import Recipe
from fdamed.config.train import Faults
from fdamed.federation.client import answer
from fdamed.federation.method import REGISTRY
from fdamed.federation.server import Server
from fdamed.methods.fedgtst import Guided, train_guided
from fdamed.methods.fediir import FedIIR
from tests.support import federation as hospitals
from tests.support.federation import clients_of, unreliable_server

METHODS = {
    "fedprox": {"mu": 0.1},
    "scaffold": {},
    "fedsr": {},
    "fediir": {"weight": 0.1},
    "fedgtst": {"xi": 0.1, "phi": 0.0},
}


def federation(names: tuple[str, ...] = hospitals.NAMES) -> Server:
    """Hospitals that train by plain descent, as SCAFFOLD asks for."""
    server = hospitals.in_process(names)
    for client in clients_of(server).values():
        client.recipe = Recipe(lr=0.02, batch=4, optimizer="sgd")
    return server


@pytest.mark.parametrize("name", METHODS)
def test_a_source_that_vanishes_with_the_model_leaves_the_round_to_the_others(name) -> None:
    """In the first round; the state after it is theirs to the last bit, as if it had never been invited."""
    method, others = REGISTRY[name](**METHODS[name]), federation(("east", "south", "target"))
    lost = {"lost": {"every": {"up": 1.0}}, "spare": ["east", "south", "target"]}
    server = unreliable_server(federation(), Faults.model_validate(lost), 0)
    found = []
    for each in (server, others):
        each.begin(1, 2)
        found.append(method.final(method.round(method.start(hospitals.theta()), each)))
    assert torch.equal(*found) and not torch.equal(found[0][: len(hospitals.theta())], hospitals.theta())
    assert {(a["client"], a["why"]) for a in server.absences} == {("north", _why(name))}
    assert ("north", "weights") in {(line["to"], line["kind"]) for line in server.ledger.lines()}, "it had the model"


def _why(name: str) -> str:
    return f"message lost: {'statistic' if name == 'fediir' else 'weights'} up"


def test_a_source_that_vanishes_after_its_head_gradient_is_in_the_mean_and_not_in_the_model() -> None:
    faults = Faults.model_validate({"lost": {"weights": {"up": 1.0}}, "spare": ["east", "south", "target"]})
    server, whole = unreliable_server(federation(), faults, 0), federation()
    states = []
    for each in (server, whole):
        each.begin(1, 2)
        method = FedIIR(weight=0.1)
        states.append(method.round(method.start(hospitals.theta()), each))
    assert torch.equal(states[0].g, states[1].g) and not torch.equal(states[0].x, states[1].x)
    assert [(a["client"], a["step"]) for a in server.absences] == [("north", "fediir.train")]
    assert ("north", "statistic") in {(line["from"], line["kind"]) for line in server.ledger.lines()}


@pytest.mark.parametrize("full", [0, 1])
@pytest.mark.parametrize("exact", [0, 1])
def test_where_no_parameter_has_a_gradient_fedgtst_stays_and_reports_a_norm_of_almost_zero(exact, full) -> None:
    client = hospitals.hospital("north")
    client.recipe = Recipe(lr=0.02, batch=14, optimizer="sgd")  # all images at once, as many of either class
    nothing = torch.zeros_like(hospitals.theta())
    cut = client.model.layout.trainable
    question = Guided(x=nothing, gamma=2.0, xi=0.5, exact=exact, full=full, plain=1)
    reply = answer(client, train_guided, 1, 0, question)
    assert float(reply.x[:cut].abs().max()) < 1e-3 and torch.isfinite(reply.x).all()
    assert 0.0 < reply.gamma < 1e-3 and reply.loss == pytest.approx(0.6931472)
