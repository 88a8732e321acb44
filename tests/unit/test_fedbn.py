"""FedBN against its paper: BatchNorm stays, all else is averaged by images, the target predicts with its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fdamed.core.errors import FdamedError
from fdamed.federation.client import answer
from fdamed.federation.method import Model
from fdamed.methods._shared.local_training import train_locally
from fdamed.methods.fedbn import OWN, FedBN, batch_norm
from fdamed.models.flat import layout_of
from tests.support import federation as hospitals
from tests.support.federation import clients_of

LAYOUT = hospitals.model().layout
NORM = batch_norm(LAYOUT)
M = 4 * LAYOUT.size


def test_the_layers_that_stay_are_scale_shift_and_statistics_of_every_batch_norm() -> None:
    """Tiny has one BatchNorm of 8 channels: 4 x 8 numbers."""
    names = {s.name for s in LAYOUT if int(s.start) in NORM.tolist()}
    assert names == {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"} and len(NORM) == 32
    with pytest.raises(FdamedError, match="no BatchNorm"):
        batch_norm(layout_of(nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8))))


def test_two_rounds_are_those_worked_out_step_by_step() -> None:
    """n = 14, 9, 11 and 6 of 40; a client's round starts from the average with the BatchNorm of its last round."""
    server, method = hospitals.in_process(), FedBN()
    state, own = method.start(hospitals.theta()), {}
    for number in (1, 2):
        trained, x = {}, state.x
        for name in hospitals.NAMES:
            start = x.clone()
            start[NORM] = own.get(name, x[NORM])
            trained[name] = answer(hospitals.hospital(name), train_locally, number, 0, Model(x=start)).x
            own[name] = trained[name][NORM]
        server.begin(number, 2)
        state = method.round(state, server)
        expected = sum(hospitals.SIZES[n] / 40 * t.double() for n, t in trained.items()).float()
        expected[NORM] = hospitals.theta()[NORM]  # nobody's leaves its client
        assert torch.allclose(state.x, expected, atol=1e-6)
    assert not torch.equal(own["north"], own["target"])
    kept = clients_of(server)["target"].memory[OWN]
    assert torch.allclose(kept[NORM], own["target"], atol=1e-6) and not torch.equal(kept[NORM], state.x[NORM])
    kept = kept.clone()
    kept[NORM] = state.x[NORM]
    assert torch.equal(kept, state.x)


def test_the_target_predicts_with_its_own_model() -> None:
    kept = {OWN: hospitals.theta() + 1.0}
    network = FedBN().predictor(hospitals.Tiny(), kept)
    assert network is not None and torch.equal(network.norm.running_var, torch.full((8,), 2.0))
    assert FedBN().predictor(hospitals.Tiny(), {}) is None


def test_a_round_costs_the_bytes_of_fedavg_and_the_average_for_the_target() -> None:
    server = hospitals.in_process()
    server.begin(1, 1)
    FedBN().round(Model(x=hospitals.theta()), server)
    for name, more in (("north", (0, 0)), ("target", (M, 8))):
        assert server.ledger.total(receiver=name) == M + more[0]
        assert server.ledger.total(sender=name) == M + 2 * 8 + more[1]
