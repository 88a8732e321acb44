"""FedProx, SCAFFOLD and FedSR with small, one-class, few or absent clients, with and without auxiliary heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fdamed.config.study import Recipe
from fdamed.config.train import Faults
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled
from fdamed.federation.method import REGISTRY
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess
from fdamed.models.backbone import build, initialize
from fdamed.models.flat import FlatModel
from tests.support import federation as hospitals
from tests.support.federation import clients_of, unreliable_server

SGD, ADAM = (Recipe(lr=0.02, batch=4, optimizer=o) for o in ("sgd", "adam"))
METHODS = {
    "fedprox": ("fedprox", {"mu": 0.1, "stragglers": 0.5}, ADAM),
    "scaffold-I": ("scaffold", {"variate": "I"}, ADAM),
    "scaffold-II": ("scaffold", {}, SGD),
    "fedsr": ("fedsr", {}, ADAM),
    "fedsr-steps": ("fedsr", {"local_steps": 3, "l2r": "squared", "scale": False}, SGD),
}


def learned(name: str, server, rounds: int = 3):
    kind, options, _ = METHODS[name]
    return run(REGISTRY[kind](**options), server, hospitals.theta(), rounds, hospitals.no_judge)


def federation(name: str, names: tuple[str, ...] = hospitals.NAMES, auxiliary: bool = False) -> Server:
    server = hospitals.in_process(names, auxiliary=auxiliary)
    for client in clients_of(server).values():
        client.recipe = METHODS[name][2]
    return server


def first(data: Labeled, rows: slice) -> Labeled:
    return Labeled(data.images[rows], data.y[rows], {k: v[rows] for k, v in data.auxiliary.items()})


@pytest.mark.parametrize("auxiliary", [False, True])
@pytest.mark.parametrize("names", [hospitals.NAMES, ("north", "target")], ids=["three sources", "one source"])
@pytest.mark.parametrize("name", METHODS)
def test_one_image_and_one_class_are_enough_for_a_finite_model(name, names, auxiliary) -> None:
    for rows in (slice(0, 1), slice(0, None, 2)):  # a single image; all of class 0
        server = federation(name, names, auxiliary)
        clients_of(server)["north"].data = first(clients_of(server)["north"].data, rows)
        theta, record = learned(name, server)
        assert torch.isfinite(theta).all() and not torch.equal(theta[: len(hospitals.theta())], hospitals.theta())
        assert record.absences == []


@pytest.mark.parametrize("name", ["fedprox", "scaffold-I", "scaffold-II", "fedsr"])
def test_one_image_trains_a_network_that_ends_in_one_pixel(name) -> None:
    from fdamed.config.study import Model

    network = build(Model(width=0.125))
    initialize(network, stream(0, "one").torch)
    resident = FlatModel(network)
    clients = {n: hospitals.hospital(n, resident=resident) for n in ("north", "east", "target")}
    for client in clients.values():
        client.recipe = METHODS[name][2]
        client.data = Labeled(np.full((1, 32, 32), 99, np.uint8), client.data.y[:1], {})
    kind, options, _ = METHODS[name]
    method = REGISTRY[kind](**options)
    theta, _ = run(method, Server(InProcess(clients), "target", "test"), resident.read(), 1, hospitals.no_judge)
    assert torch.isfinite(theta).all()


@pytest.mark.parametrize("auxiliary", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_a_share_of_the_sources_on_bad_lines_learns_the_same_twice(name, auxiliary) -> None:
    faults = Faults.model_validate({"absent": 0.2, "lost": {"every": {"up": 0.2, "down": 0.1}}})
    found = []
    for _ in range(2):
        server = unreliable_server(federation(name, auxiliary=auxiliary), faults, 3)
        server.invite(0.7, 1)
        found.append(learned(name, server, 8))
    (theta, record), (again, other) = found
    assert torch.equal(theta, again) and record.ledger == other.ledger
    assert torch.isfinite(theta).all() and record.absences
    assert {"up", "down"} <= {a["why"].split()[-1] for a in record.absences}


@pytest.mark.parametrize("name", METHODS)
def test_auxiliary_heads_train_and_are_remembered_at_the_sources_alone(name) -> None:
    server = federation(name, auxiliary=True)
    theta, _ = learned(name, server)
    plain, _ = learned(name, federation(name))
    assert not torch.equal(theta, plain)
    before = FlatModel(torch.nn.ModuleDict({"sex": torch.nn.Linear(4, 2)}))
    for client in server.sources:
        initialize(before.module, stream(5, client, "heads").torch)
        assert not torch.equal(clients_of(server)[client].memory["heads"], before.read())
    assert "heads" not in clients_of(server)["target"].memory
