"""FedNova against numbers worked out by hand, and its bytes."""

from __future__ import annotations

import pytest
import torch

from fdamed.methods.fednova import Answer, FedNova, train_counted
from tests.support import federation as hospitals
from tests.unit.test_methods_by_hand import scripted

SAMPLES = {"T": 100, "S1": 3, "S2": 1}
MOVED = {"S1": 4.0, "S2": -4.0}


@pytest.mark.parametrize(
    ("tau", "x"),
    [
        ({"S1": 2, "S2": 4}, 3.125),  # d = 4/2 and -4/4, tau = 3/4 * 2 + 1/4 * 4 = 2.5: 2.5 (3/4 * 2 - 1/4 * 1)
        ({"S1": 8, "S2": 8}, 2.0),  # FedAvg: 3/4 * 4 - 1/4 * 4
    ],
)
def test_steps_are_normalized_and_cost_the_bytes_of_fedavg_and_a_number(tau: dict[str, int], x: float) -> None:
    def answer(client: str, ask) -> Answer:
        return Answer(x=ask.x + MOVED[client], tau=tau[client], n=SAMPLES[client], loss=0.5)

    server = scripted(lambda client, x: x, SAMPLES, {}, buffer=True, own={train_counted: answer})
    server.begin(1, 1)
    size, p = server.layout.size, server.layout.trainable
    found = FedNova().round(FedNova().start(torch.full((size,), 8.0)), server).x
    assert found[:p].tolist() == [8.0 + x] * p
    assert found[p:].tolist() == [8.0 + 2.0] * (size - p) != []  # running statistics: averaged by images
    assert server.ledger.total(receiver="S1") == 4 * size
    assert server.ledger.total(sender="S1") == 4 * size + 3 * 8  # a model, its steps, images and loss


def test_a_source_counts_the_steps_of_all_its_epochs() -> None:
    client = hospitals.hospital("north", sgd=True).with_recipe(epochs=2)  # 14 images in batches of 4
    assert train_counted.run(client, FedNova().start(hospitals.theta())).tau == 8
