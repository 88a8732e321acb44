"""MOON against its paper: the contrastive loss by hand, its gradient in a step, FedAvg where there is none of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from fdamed.config.study import Recipe
from fdamed.federation.client import answer
from fdamed.federation.runner import run
from fdamed.methods.fedavg import FedAvg
from fdamed.methods.moon import LAST, Contrast, Moon, contrast, train_contrastively
from fdamed.training.input import as_input
from tests.support import federation as hospitals

M = 4 * hospitals.model().layout.size


def test_the_contrastive_loss_is_the_number_on_paper() -> None:
    """sim(z, z_glob) = 1 and sim(z, z_prev) = 0 at tau = 1/2: -log(e^2 / (e^2 + e^0)); equal similarities: log 2."""
    z, glob, prev = torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    assert float(contrast(z, glob, prev, 0.5)) == pytest.approx(math.log(1 + math.exp(-2)))
    both = contrast(torch.cat([z, z]), torch.cat([glob, glob]), torch.cat([prev, glob]), 0.5)
    assert float(both) == pytest.approx((math.log(1 + math.exp(-2)) + math.log(2)) / 2)


def test_a_step_goes_down_the_gradient_of_both_losses() -> None:
    """One batch of all images with plain SGD: w - lr (grad l_sup + mu grad l_con)."""
    client = hospitals.hospital("north")
    client.recipe = Recipe(lr=0.1, batch=14, optimizer="sgd")
    w, last = hospitals.theta(), hospitals.theta() + 0.3 * torch.rand(M // 4, generator=torch.manual_seed(0))
    w[: client.model.layout.trainable] += 0.05  # features above zero
    client.memory[LAST] = last
    moved = answer(client, train_contrastively, 2, 0, Contrast(x=w, mu=5.0, tau=0.5)).x
    model, data = hospitals.model(), client.data
    x, y = as_input(torch.from_numpy(data.images)), torch.from_numpy(data.y)
    z_glob, z_prev = (client.frozen(v).features(x) for v in (w, last))
    model.load(w)
    z = model.module.train().features(x)
    sims = torch.stack([F.cosine_similarity(z, other) / 0.5 for other in (z_glob, z_prev)], 1)
    loss = F.cross_entropy(model.module.head(z), y) + 5.0 * F.cross_entropy(sims, torch.zeros(14, dtype=torch.long))
    loss.backward()
    p = model.layout.trainable
    assert torch.allclose(moved[:p], w[:p] - 0.1 * model.grad, atol=1e-6)
    plain = answer(hospitals.hospital("north"), train_contrastively, 2, 0, Contrast(x=w, mu=5.0, tau=0.5)).x
    assert not torch.allclose(moved[:p], plain[:p], atol=1e-4), "without a last model there is no contrast"


def test_a_frozen_model_learns_nothing_and_leaves_the_clients_own_as_it_is() -> None:
    client = hospitals.hospital("north")
    other = client.frozen(client.model.read() + 1.0)
    before = client.model.read()
    assert not other.training and not any(p.requires_grad for p in other.parameters())
    other(as_input(torch.from_numpy(client.data.images)))
    assert torch.equal(client.model.read(), before)
    assert torch.equal(other.head.bias, client.model.module.head.bias + 1.0)


@pytest.mark.parametrize(("method", "rounds"), [(Moon(mu=0.0), 3), (Moon(), 1)], ids=["mu = 0", "first round"])
def test_it_is_fedavg_bit_for_bit_without_contrast(method: Moon, rounds: int) -> None:
    found = run(method, hospitals.in_process(), hospitals.theta(), rounds, hospitals.no_judge)[0]
    assert torch.equal(found, run(FedAvg(), hospitals.in_process(), hospitals.theta(), rounds, hospitals.no_judge)[0])


def test_a_round_costs_the_bytes_of_fedavg_and_two_numbers() -> None:
    server = hospitals.in_process()
    run(Moon(), server, hospitals.theta(), 2, hospitals.no_judge)
    assert server.ledger.total(receiver="north") == 2 * (M + 2 * 8)
    assert server.ledger.total(sender="north") == 2 * (M + 2 * 8) and not server.ledger.total(receiver="target")
