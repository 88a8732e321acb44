"""f-DANN against centralized DANN, FedAvg and its byte formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fdamed.config.train import Norms, Validation
from fdamed.data.loader import Unlabeled
from fdamed.federation.runner import run
from fdamed.methods._shared.adversarial_training import Game, discriminator, progress
from fdamed.methods.fdann import DEPTH, WIDTH, FDann
from fdamed.methods.fedavg import FedAvg
from fdamed.models.adversarial import Discriminator, domain_loss, frozen
from fdamed.models.flat import FlatModel
from tests.support import federation as hospitals
from tests.support.federation import clients_of
from tests.unit.test_fada import after_one_round, federation, normal, spoiling

EMPTY = torch.empty(0)


def test_the_ramp_is_danns() -> None:
    assert progress(0, 50) == 0.0
    assert progress(5, 50) == pytest.approx(2 / (1 + math.exp(-1)) - 1)
    assert progress(50, 50) == pytest.approx(0.9999092)


def test_the_reversed_gradient_is_minus_lambda_times_the_gradient() -> None:
    di = FlatModel(Discriminator(4, 8, 2, slope=0.0))
    seen = normal(6, 4).requires_grad_()
    with frozen(di.module):
        (plain,) = torch.autograd.grad(domain_loss(di.module(seen), 1.0), seen)
    (turned,) = torch.autograd.grad(Game(di, label=1.0, toward=1.0, pull=-0.3).play(seen), seen)
    assert torch.allclose(turned, -0.3 * plain, atol=1e-6) and plain.any()


def centralized(lam: float, lr_s: float, lr_t: float) -> tuple[Tensor, Tensor]:
    """One DANN step on both full batches: trainable change of the network, and the discriminator after it."""
    client = hospitals.hospital("north")
    north, target = hospitals.images("north"), hospitals.images("target")
    server = client.model.module
    server.train()
    di = discriminator(client, Discriminator(4, WIDTH, DEPTH, slope=0.0), EMPTY)
    x_s, x_t = (torch.from_numpy(v.images).unsqueeze(1).float() / 255 for v in (north, target))
    f_s, f_t = server.features(x_s), server.features(x_t)
    s, t = domain_loss(di.module(f_s), 1.0) / 2, domain_loss(di.module(f_t), 0.0) / 2
    parameters = list(server.parameters())

    def flat(loss: Tensor) -> Tensor:
        g = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        return torch.cat(
            [
                (torch.zeros_like(p) if v is None else v).permute(0, 2, 3, 1).flatten()
                if p.ndim == 4
                else (torch.zeros_like(p) if v is None else v).flatten()
                for p, v in zip(parameters, g, strict=True)
            ]
        )

    task = F.cross_entropy(server.head(f_s), torch.from_numpy(north.y))
    change = -lr_s * flat(task - lam * s) - lr_t * flat(-lam * t)
    own = torch.autograd.grad(s + t, list(di.module.parameters()))
    return change, di.read()[: di.layout.trainable] - lr_s * torch.cat([g.flatten() for g in own])


def test_one_source_and_one_step_are_a_centralized_dann_step() -> None:
    server = federation(("north", "target"), batch=16)
    for client in clients_of(server).values():
        client.recipe = client.recipe.model_copy(update={"lr": 0.02})
    method = FDann()
    server.begin(1, 1)
    state = method.round(method.start(hospitals.theta()), server)
    change, di = centralized(progress(1, 1), 0.02, 0.02)
    p = server.layout.trainable
    assert torch.allclose(state.x[:p] - hospitals.theta()[:p], change, atol=1e-6)
    assert torch.allclose(state.di, di, atol=1e-6)


def test_without_a_weight_it_is_fedavg() -> None:
    expected = after_one_round(FedAvg(), federation()).x
    assert torch.equal(after_one_round(FDann(weight=0.0), federation()).x, expected)
    assert not torch.equal(after_one_round(FDann(), federation()).x, expected)


def test_a_saturated_discriminator_does_not_pull() -> None:
    di = FlatModel(Discriminator(4, 8, 2))
    with torch.no_grad():
        di.module.out.bias.fill_(-20.0)
    seen = normal(3, 4).requires_grad_()
    (g,) = torch.autograd.grad(Game(di, label=1.0, toward=1.0, pull=-1.0, saturation=10.0).play(seen), seen)
    assert not g.any() and di.grad.any()


def test_bytes_of_a_round_are_those_of_the_formula() -> None:
    server = federation()
    method = FDann()
    state = after_one_round(method, server)
    first = {kind: server.ledger.total(kind=kind) for kind in ("weights", "update", "statistic")}
    server.begin(2, 2)
    method.round(state, server)
    second = {kind: server.ledger.total(kind=kind) - v for kind, v in first.items()}
    k, m = 3, 4 * server.layout.size
    p_di = sum(p.numel() for p in Discriminator(4, WIDTH, DEPTH).parameters())
    assert second == {"weights": (k + 1) * m, "update": (k + 1) * m, "statistic": 2 * (k + 1) * 4 * p_di}
    assert server.ledger.total(kind="features") == 0


def test_a_source_that_diverged_is_rejected_by_name() -> None:
    server = federation()
    server.validator.settings = Validation(norms=Norms())
    spoiling(server, "east", lambda g: g * 1e6)
    theta, record = run(FDann(), server, hospitals.theta(), 1, hospitals.no_judge)
    assert [a["client"] for a in record.absences] == ["east"] and float(theta.abs().max()) < 10.0


def test_without_an_image_at_the_target_the_sources_learn_their_task() -> None:
    server = federation(batch=16)
    clients_of(server)["target"].data = Unlabeled(clients_of(server)["target"].data.images[:0])
    got = after_one_round(FDann(), server).x
    assert torch.allclose(got, after_one_round(FedAvg(), federation(batch=16)).x, atol=1e-6)


def test_with_adam_the_targets_pace_carries_the_weight_that_adam_forgets() -> None:
    """The target's only loss is the pull, and Adam's first step is as long as the learning rate for any loss."""

    def moved(**options: float) -> float:
        server = federation(("north", "target"), batch=16)
        target = clients_of(server)["target"]
        target.recipe = target.recipe.model_copy(update={"optimizer": "adam"})
        still = after_one_round(FDann(**options | {"target_pace": 0.0}), server).x
        server = federation(("north", "target"), batch=16)
        clients_of(server)["target"].recipe = target.recipe
        p = server.layout.trainable
        return float((after_one_round(FDann(**options), server).x - still)[:p].abs().max())

    lr = 0.01 * progress(1, 1)
    assert moved(target_pace=1.0) == pytest.approx(lr, rel=0.02)
    assert moved(target_pace=0.1) == pytest.approx(0.1 * lr, rel=0.02)
    assert moved(target_pace=0.1, weight=0.01) == pytest.approx(0.1 * lr, rel=0.02)


def test_a_discriminator_for_each_source_is_counted() -> None:
    assert FDann().extra_parameters(4, 128, 2) == 4 * (129 * 256 + 257 * 256 + 257)
