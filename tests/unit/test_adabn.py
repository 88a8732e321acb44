"""AdaBN against its paper: the target's statistics, computed by hand, and FedAvg's weights as they are."""

from __future__ import annotations

import pytest
import torch

from fdamed.config.study import Recipe
from fdamed.core.errors import FdamedError
from fdamed.data.loader import Unlabeled
from fdamed.federation.client import answer
from fdamed.federation.method import Model
from fdamed.federation.runner import run
from fdamed.methods.adabn import AdaBN, measure
from fdamed.methods.fedavg import FedAvg
from fdamed.models.flat import layout_of
from fdamed.training.input import as_input
from tests.support import federation as hospitals
from tests.support.federation import clients_of

LAYOUT = hospitals.model().layout
M, B = 4 * LAYOUT.size, 4 * (LAYOUT.size - LAYOUT.trainable)


def test_statistics_are_mean_and_variance_of_the_layers_input_on_all_images() -> None:
    """Six images in one batch; the variance is that of 6 x 3 x 3 numbers in each channel, divided by one less."""
    client = hospitals.hospital("target", labels=False)
    client.recipe = Recipe(lr=0.01, batch=8)
    found = answer(client, measure, 1, 0, Model(x=hospitals.theta()))
    with torch.no_grad():
        a = hospitals.model().module.conv(as_input(torch.from_numpy(client.data.images)))
    expected = torch.cat([a.mean((0, 2, 3)), a.transpose(0, 1).flatten(1).var(1)])
    assert found.n == 6 and torch.allclose(found.b, expected, atol=1e-6)
    assert client.model.module.norm.momentum == 0.1, "the network trains as before"


def test_batches_count_alike() -> None:
    client = hospitals.hospital("target", labels=False)
    client.recipe = Recipe(lr=0.01, batch=3)
    found = answer(client, measure, 1, 0, Model(x=hospitals.theta())).b
    with torch.no_grad():
        a = hospitals.model().module.conv(as_input(torch.from_numpy(client.data.images)))
    assert torch.allclose(found[:8], a.mean((0, 2, 3)), atol=1e-6)  # two batches of three


def test_only_the_statistics_differ_from_fedavg_and_training_continues_without_them() -> None:
    server = hospitals.in_process(labels=False)
    adapted, _ = run(AdaBN(), server, hospitals.theta(), 3, hospitals.no_judge)
    average, _ = run(FedAvg(), hospitals.in_process(), hospitals.theta(), 3, hospitals.no_judge)
    p = LAYOUT.trainable
    assert torch.equal(adapted[:p], average[:p]) and not torch.allclose(adapted[p:], average[p:], atol=1e-3)


def test_as_a_second_phase_it_asks_the_target_alone_and_changes_no_weight() -> None:
    server = hospitals.in_process(labels=False)
    adapted, record = run(AdaBN(fedavg=False), server, hospitals.theta(), 1, hospitals.no_judge)
    assert {line["to"] for line in record.ledger} == {"target", "server"}
    assert torch.equal(adapted[: LAYOUT.trainable], hospitals.theta()[: LAYOUT.trainable])


def test_one_image_keeps_the_statistics_and_a_network_without_batch_norm_is_refused() -> None:
    client = hospitals.hospital("target", labels=False)
    client.data = Unlabeled(client.data.images[:1])
    assert torch.equal(
        answer(client, measure, 1, 0, Model(x=hospitals.theta())).b, hospitals.theta()[LAYOUT.trainable :]
    )
    server = hospitals.in_process(labels=False)
    server.layout = layout_of(torch.nn.Linear(2, 2))
    with pytest.raises(FdamedError, match="no BatchNorm"):
        AdaBN().round(AdaBN().start(hospitals.theta()), server)
    assert not server.ledger.total()


def test_a_round_costs_the_bytes_of_fedavg_one_model_and_its_statistics() -> None:
    server = hospitals.in_process(labels=False)
    run(AdaBN(), server, hospitals.theta(), 1, hospitals.no_judge)
    assert (server.ledger.total(receiver="north"), server.ledger.total(sender="north")) == (M, M + 2 * 8)
    assert (server.ledger.total(receiver="target"), server.ledger.total(sender="target")) == (M, B + 8)
    assert clients_of(server)["target"].memory == {}
