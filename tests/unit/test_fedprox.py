"""FedProx against its paper: FedAvg at mu = 0, and the proximal minimizer of a quadratic."""

from __future__ import annotations

import pytest
import torch

from fdamed.core.rng import stream
from fdamed.federation.client import answer
from fdamed.federation.runner import run
from fdamed.methods._shared.local_training import train_from, train_locally
from fdamed.methods.fedavg import FedAvg
from fdamed.methods.fedprox import FedProx, Near, epochs, proximal, train_near
from tests.support import federation as hospitals
from tests.support import quadratics
from tests.support.federation import clients_of


@pytest.mark.parametrize("auxiliary", [False, True])
def test_without_mu_it_is_fedavg_bit_for_bit(auxiliary: bool) -> None:
    def learned(method):
        return run(method, hospitals.in_process(auxiliary=auxiliary), hospitals.theta(), 3, hospitals.no_judge)

    prox, record = learned(FedProx(mu=0.0))
    plain, other = learned(FedAvg())
    assert torch.equal(prox, plain)
    assert record.metrics == other.metrics
    assert not torch.equal(learned(FedProx(mu=1.0))[0], plain)


def test_the_local_minimizer_is_that_of_the_held_back_parabola() -> None:
    client = clients_of(quadratics.in_process())["two"]  # a = 10, b = 1
    client.recipe = client.recipe.model_copy(update={"epochs": 300})
    reply = answer(client, train_near, 2, 0, Near(x=torch.tensor([5.0]), mu=2.0, stragglers=0.0))
    assert float(reply.x) == pytest.approx((10 * 1 + 2 * 5) / (10 + 2), abs=1e-6) == pytest.approx(1.6666667, abs=1e-6)


def test_the_more_mu_the_nearer_a_hospital_stays() -> None:
    client, x = hospitals.hospital("north"), hospitals.theta()
    cut = client.model.layout.trainable
    apart = []
    for mu in (0.0, 0.1, 1.0, 10.0):
        y = answer(client, train_near, 1, 0, Near(x=x, mu=mu, stragglers=0.0)).x
        apart.append(float(torch.linalg.vector_norm((y - x)[:cut])))
    assert apart == sorted(apart, reverse=True) and apart[-1] < apart[0]


def test_the_pull_is_mu_times_the_way_from_the_start_and_no_buffer_is_in_it() -> None:
    model, x = hospitals.model(), hospitals.theta()
    grad = torch.zeros(model.layout.trainable)
    correct = proximal(model, x, 0.5)
    correct(grad)
    assert torch.equal(grad, torch.zeros_like(grad))
    model.theta.add_(1.0)
    correct(grad)
    assert torch.allclose(grad, torch.full_like(grad, 0.5), atol=1e-6)
    assert len(grad) < len(x)


def test_stragglers_train_for_a_part_of_their_epochs_and_others_for_all() -> None:
    client = hospitals.hospital("north")
    client.recipe = client.recipe.model_copy(update={"epochs": 4})
    drawn = []
    for round in range(60):
        client.rng = stream(5, round)
        assert epochs(client, 0.0) == 4
        drawn.append(epochs(client, 1.0))
    assert set(drawn) == {1, 2, 3, 4}
    reply = answer(client, train_near, 2, 0, Near(x=hospitals.theta(), mu=0.0, stragglers=1.0))
    own, client.recipe = epochs(client, 1.0), client.recipe.model_copy(update={"epochs": epochs(client, 1.0)})
    assert own < 4
    client.rng = stream(client.seed, client.name, 2, train_locally.name, 0)
    train_from(client, hospitals.theta())
    assert torch.equal(client.model.read(), reply.x)
