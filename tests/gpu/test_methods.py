"""Every method on a pretended GPU: the CPU's bits, ledger and metrics, and no tensor of another device among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fdamed.config.study import Recipe
from fdamed.core.rng import Stream, stream
from fdamed.data.loader import Labeled
from fdamed.federation.method import REGISTRY, Method
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.storage.checkpoint import Checkpoints
from fdamed.models.flat import FlatModel
from fdamed.training.local import embed, fit, predict
from tests.contract.test_variants import OPEN, VARIANTS, variant
from tests.support import federation as hospitals
from tests.support.federation import clients_of, registered, suited

pytestmark = pytest.mark.gpu
METHODS = sorted(REGISTRY)
NAMES = ("north", "east", "target")
ROUNDS = 2
HEADS = {"no-heads": {}, "private-heads": {"auxiliary": True}, "shared-heads": {"auxiliary": True, "share": True}}


def outcome(method: Method[Any], server: Server, share: bool = False, rounds: int = ROUNDS, **options: Any):
    theta, record = run(method, server, hospitals.theta(share), rounds, hospitals.no_judge, **options)
    states = {client: server.transport.state(client) for client in NAMES}
    server.close()
    return theta, record, states


def check_same(found: Any, expected: Any) -> None:
    """The same model, ledger, metrics and states of the clients, to the bit."""
    assert torch.equal(found[0], expected[0])
    assert found[1].ledger == expected[1].ledger
    assert found[1].metrics == expected[1].metrics
    assert found[2] == expected[2]


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_gives_the_bits_of_the_cpu(name: str, heads: str, gpu) -> None:
    options = suited(name) | HEADS[heads]
    share = "share" in options
    expected = outcome(registered(name), hospitals.in_process(NAMES, **options), share)
    with gpu():
        check_same(outcome(registered(name), hospitals.in_process(NAMES, device="cuda", **options), share), expected)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_published_message_format_gives_the_bits_of_the_cpu(name: str, gpu) -> None:
    def together(device: str) -> Server:
        server = hospitals.in_process(NAMES, device=device, labels=False)
        for client in clients_of(server).values():
            client.release = OPEN
        return server

    expected = outcome(variant(name), together("cpu"))
    with gpu():
        check_same(outcome(variant(name), together("cuda")), expected)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_stopped_resumes_with_the_bits_of_the_cpu(name: str, gpu, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop_in_round_two(theta, count=[0]):  # noqa: B006
        count[0] += 1
        if count[0] == 2:
            raise Stop
        return {}

    expected = outcome(registered(name), hospitals.in_process(NAMES, **suited(name)))
    keep = Checkpoints(tmp_path, lambda p, r: tmp_path / p / f"{r:05d}.safetensors", {})
    with gpu():
        server = hospitals.in_process(NAMES, device="cuda", **suited(name))
        with pytest.raises(Stop):
            run(registered(name), server, hospitals.theta(), ROUNDS, stop_in_round_two, keep)
        server = hospitals.in_process(NAMES, device="cuda", **suited(name))
        found = outcome(registered(name), server, checkpoints=keep)
    assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize("name", METHODS)
def test_what_clients_remember_waits_on_the_host(name: str, gpu) -> None:
    """Adam's moments among it: with 64 clients they would fill a GPU."""
    from tests.support.pretended_gpu import OnDevice

    with gpu():
        server = hospitals.in_process(NAMES, device="cuda", **suited(name))
        run(registered(name), server, hospitals.theta(), 1, hospitals.no_judge)
        kept = {k: v for client in clients_of(server).values() for k, v in client.memory.items()}
    assert [k for k, v in kept.items() if isinstance(v, OnDevice)] == []


def noisy_images() -> Labeled:
    data = hospitals.images("north")
    return Labeled(data.images, data.y, data.auxiliary, noise=0.1)


def trained(device: str, **recipe: Any) -> tuple[torch.Tensor, np.ndarray, torch.Tensor]:
    model, data = hospitals.model(device=device), noisy_images()
    fit(model, data, Recipe(lr=0.01, batch=4, **recipe), Stream(3))
    rng = stream(0, "noise")
    return model.read(), predict(model, data, batch=5, rng=rng), embed(model, data, batch=5, rng=rng)


@pytest.mark.parametrize("room", [10**9, 0], ids=["images on the device", "images from the host"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_augmentation_noise_prediction_and_features_have_the_bits_of_the_cpu(optimizer: str, room: int, gpu) -> None:
    options = {"augment": True, "optimizer": optimizer, "epochs": 2, "weight_decay": 0.01}
    expected = trained("cpu", **options)
    with gpu(free=room):
        found = trained("cuda", **options)
    assert torch.equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])
    assert torch.equal(found[2], expected[2])


def test_a_resnet_gives_the_bits_of_the_cpu(gpu) -> None:
    from fdamed.config.study import Model
    from fdamed.models.backbone import build, initialize

    def result(device: str) -> torch.Tensor:
        network = build(Model(width=0.0625))
        initialize(network, stream(0, "test").torch)
        model = FlatModel(network, device)
        x = stream(1).numpy.integers(0, 256, (6, 32, 32)).astype(np.uint8)
        fit(model, Labeled(x, np.arange(6) % 2, {}), Recipe(lr=0.01, batch=3), Stream(0))
        return model.read()

    expected = result("cpu")
    with gpu():
        assert torch.equal(result("cuda"), expected)
