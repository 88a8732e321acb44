"""f-DAN against its definition, FedAvg and its byte formulas."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fdamed.config.train import Norms, Validation
from fdamed.core.rng import stream
from fdamed.data.loader import Unlabeled
from fdamed.federation.runner import run
from fdamed.methods.fdan import Align, FDan, align, embed, shared_frequencies
from fdamed.methods.fedavg import FedAvg
from fdamed.ops.random_features import KERNELS, bandwidth, fourier, fourier_mmd
from tests.support import federation as hospitals
from tests.support.federation import clients_of
from tests.unit.test_fada import after_one_round, federation, spoiling

FREQUENCIES = 16


def everything(name: str) -> torch.Tensor:
    return torch.from_numpy(hospitals.images(name).images).unsqueeze(1).float() / 255


def features_in_training(name: str) -> torch.Tensor:
    server = hospitals.model().module
    server.train()
    return server.features(everything(name))


def hospital(name: str, **recipe):
    made = hospitals.hospital(name, labels=False)
    made.recipe = made.recipe.model_copy(update={"batch": 16, "optimizer": "sgd", **recipe})
    made.rng = stream(0, "question")
    return made


def test_the_targets_portrait_is_the_mean_of_random_features_that_all_hospitals_share() -> None:
    target = hospital("target")
    reply = embed.run(
        target, Align(x=hospitals.theta(), m=torch.empty(0), h=0.0, pull=1.0, pace=1.0, frequencies=FREQUENCIES)
    )
    f = features_in_training("target").detach()
    assert reply.h == pytest.approx(float(bandwidth(f)), rel=1e-5)
    omega = shared_frequencies(hospital("north"), FREQUENCIES)
    assert torch.allclose(reply.m, fourier(f, omega, reply.h), atol=1e-5)
    assert not reply.g.any()  # nothing to approach yet, and looking leaves the running statistics alone


def test_a_source_steps_on_its_task_and_on_the_way_to_the_target() -> None:
    h, lam = 0.7, 0.4
    omega = shared_frequencies(hospital("north"), FREQUENCIES)
    m = fourier(features_in_training("target").detach(), omega, h)
    own = bandwidth(features_in_training("north").detach())
    assert own != pytest.approx(h, rel=0.1)  # each side is seen in units of its own spread
    north = hospital("north", lr=0.02)
    reply = align.run(north, Align(x=hospitals.theta(), m=m, h=h, pull=lam, pace=1.0, frequencies=FREQUENCIES))
    f = features_in_training("north")
    server = hospitals.model().module
    server.train()
    f = server.features(everything("north"))
    loss = F.cross_entropy(server.head(f), torch.from_numpy(hospitals.images("north").y))
    loss = loss + lam * fourier_mmd(fourier(f, omega, own), m)
    (g,) = torch.autograd.grad(loss, server.hidden.weight)
    place = next(s for s in north.model.layout if s.name == "hidden.weight")
    assert torch.allclose(reply.g[place.start : place.stop], -0.02 * g.flatten(), atol=1e-6)
    assert torch.allclose(reply.m, fourier(f, omega, own).detach(), atol=1e-5)
    assert reply.loss == pytest.approx(float(loss.detach()), abs=1e-5)


def test_without_a_weight_it_is_fedavg() -> None:
    expected = after_one_round(FedAvg(), federation()).x
    assert torch.equal(after_one_round(FDan(weight=0.0), federation()).x, expected)
    assert not torch.equal(after_one_round(FDan(), federation()).x, expected)


def test_the_target_moves_from_the_second_round_on() -> None:
    server = federation()
    method = FDan()
    state = after_one_round(method, server)
    assert state.m.shape == (KERNELS, 2 * method.frequencies) and state.h > 0.0
    reply = embed.run(
        hospital("target"), Align(x=state.x, m=state.m, h=state.h, pull=1.0, pace=1.0, frequencies=method.frequencies)
    )
    assert reply.g[: server.layout.trainable].any() and reply.loss > 0.0


def test_bytes_of_a_round_are_those_of_the_formula() -> None:
    server = federation()
    method = FDan(frequencies=FREQUENCIES)
    state = after_one_round(method, server)
    first = {kind: server.ledger.total(kind=kind) for kind in ("weights", "update", "statistic")}
    server.begin(2, 2)
    method.round(state, server)
    second = {kind: server.ledger.total(kind=kind) - v for kind, v in first.items()}
    k, m = 3, 4 * server.layout.size
    assert second == {"weights": (k + 1) * m, "update": (k + 1) * m, "statistic": 2 * (k + 1) * 40 * FREQUENCIES}
    assert server.ledger.total(kind="features") == 0


@pytest.mark.parametrize("images", [0, 1])
def test_a_target_with_one_image_reveals_nothing_of_it(images) -> None:
    target = hospital("target")
    target.data = Unlabeled(target.data.images[:images])
    reply = embed.run(
        target, Align(x=hospitals.theta(), m=torch.empty(0), h=0.0, pull=1.0, pace=1.0, frequencies=FREQUENCIES)
    )
    assert reply.h == 0.0 and not reply.m.any()
    server = federation(batch=16)
    clients_of(server)["target"].data = target.data
    expected = after_one_round(FedAvg(), federation(batch=16)).x
    assert torch.allclose(after_one_round(FDan(), server).x, expected, atol=1e-6)


def test_a_source_that_diverged_is_rejected_by_name() -> None:
    server = federation()
    server.validator.settings = Validation(norms=Norms())
    spoiling(server, "east", lambda g: g * 1e6)
    theta, record = run(FDan(), server, hospitals.theta(), 1, hospitals.no_judge)
    assert [a["client"] for a in record.absences] == ["east"] and float(theta.abs().max()) < 10.0
