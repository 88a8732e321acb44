"""How often the host waits for the device in a step: never in the plain methods, and no more than the catalog says."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

from fdamed.config.study import Model, Recipe
from fdamed.core.rng import Stream
from fdamed.data.loader import Labeled
from fdamed.federation.method import REGISTRY, description
from fdamed.federation.runner import run
from fdamed.models.backbone import build
from fdamed.models.flat import FlatModel
from fdamed.training.local import fit
from tests.support import federation as hospitals
from tests.support.federation import Altered, clients_of, registered, suited

pytestmark = pytest.mark.gpu
METHODS = sorted(REGISTRY)
NAMES = ("north", "east", "target")
ROUNDS, BATCH = 3, 4
PLAIN = ("fedavg", "finetune", "gp", "fedgp", "scaffold", "fedprox")


def waits(name: str, batches: int, gpu, heads: dict[str, bool], **recipe: Any) -> dict[str, Counter[tuple[str, str]]]:
    """Where each client waited, with so many batches of images each."""
    found: dict[str, Counter[tuple[str, str]]] = {client: Counter() for client in NAMES}
    with gpu() as counts:
        server = hospitals.in_process(NAMES, device="cuda", **suited(name), **heads)
        for client in clients_of(server).values():
            y = np.arange(batches * BATCH) % 2
            x = np.tile(client.data.images[:BATCH], (batches, 1, 1))
            data = Labeled(x, y, {"sex": np.arange(len(y)) % 3 - 1})
            client.data = data if isinstance(client.data, Labeled) else data.without_labels()
            client.recipe = client.recipe.model_copy(update=recipe)
        deliver = server.transport.deliver

        def counted(client: str, step: Any, nth: int, msg: Any) -> Any:
            before = Counter(counts.waits)
            reply = deliver(client, step, nth, msg)
            found[client] += counts.waits - before
            return reply

        server.transport = Altered(server.transport, counted)
        steps = {"local_steps": 0} if "local_steps" in description(REGISTRY[name])["options"] else {}
        method = REGISTRY[name](**(asdict(registered(name)) | steps))
        run(method, server, hospitals.theta("share" in heads), ROUNDS, hospitals.no_judge)
        server.close()
    return found


def waits_per_step(
    name: str, gpu, heads: dict[str, bool] | None = None, **recipe: Any
) -> tuple[float, list[tuple[str, str]]]:
    """What one more batch a round costs the client that waits most, and where it waits."""
    short, long = (waits(name, batches, gpu, heads or {}, **recipe) for batches in (2, 4))
    more = {client: long[client] - short[client] for client in NAMES}
    worst = max(more.values(), key=lambda found: found.total())
    return worst.total() / (2 * ROUNDS), sorted(worst)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_waits_no_more_than_the_catalog_says(name: str, gpu) -> None:
    found, places = waits_per_step(name, gpu)
    allowed = REGISTRY[name].synchronizations
    assert found <= allowed, f"{found} synchronizations in a step, at {places}; the method declares {allowed}"
    assert found > allowed - 1, f"only {found} synchronizations in a step: declare fewer than {allowed}"


@pytest.mark.parametrize("recipe", [{}, {"augment": True}, {"optimizer": "sgd"}], ids=["plain", "augmented", "sgd"])
@pytest.mark.parametrize("name", PLAIN)
def test_the_plain_methods_never_wait_in_a_step(name: str, recipe: dict[str, Any], gpu) -> None:
    assert waits_per_step(name, gpu, **recipe) == (0.0, [])


@pytest.mark.parametrize("heads", [{"auxiliary": True}, {"auxiliary": True, "share": True}], ids=["private", "shared"])
@pytest.mark.parametrize("name", ("fedavg", "gp"))
def test_auxiliary_heads_add_no_wait_to_a_step(name: str, heads: dict[str, bool], gpu) -> None:
    assert waits_per_step(name, gpu, heads) == (0.0, [])


def test_normalization_for_pretrained_weights_adds_no_wait_to_a_step(gpu) -> None:
    found = {}
    for batches in (2, 4):
        x = np.zeros((batches * BATCH, 32, 32), np.uint8)
        with gpu() as counts:
            network = FlatModel(build(Model(width=0.0625, weights="x")), "cuda")
            fit(network, Labeled(x, np.arange(len(x)) % 2, {}), Recipe(lr=0.01, batch=BATCH), Stream(0))
            found[batches] = Counter(counts.waits)
    assert found[4] == found[2]


@pytest.mark.parametrize("room", [10**9, 0], ids=["images on the device", "images from the host"])
def test_an_epochs_order_is_sent_once_and_images_from_the_host_are_sent_ahead(room: int, gpu) -> None:
    sent = {}
    for batches in (2, 4):
        x = np.zeros((batches * BATCH, 8, 8), np.uint8)
        with gpu(free=room) as counts:
            model = hospitals.model(device="cuda")
            fit(model, Labeled(x, np.arange(len(x)) % 2, {}, noise=0.1), Recipe(lr=0.01, batch=BATCH), Stream(0))
        sent[batches] = sum(counts.queued.values())
    assert sent[4] - sent[2] == (2 if room == 0 else 0)  # the images of a batch, where they do not fit


def test_every_epoch_copies_on_the_same_stream(gpu, monkeypatch) -> None:
    made = []
    x = np.zeros((2 * BATCH, 8, 8), np.uint8)
    with gpu(free=0):
        pretended = torch.cuda.Stream
        monkeypatch.setattr("torch.cuda.Stream", lambda device: made.append(device) or pretended(device))
        recipe = Recipe(lr=0.01, batch=BATCH, epochs=3)
        for _ in range(2):
            fit(hospitals.model(device="cuda"), Labeled(x, np.arange(len(x)) % 2, {}), recipe, Stream(0))
        monkeypatch.undo()
    assert len(made) <= 1  # none, if an earlier test has made it


def test_images_of_all_clients_share_one_budget_and_resting_clients_make_room(gpu) -> None:
    from fdamed.training.input import budget, held, share_device
    from tests.support.pretended_gpu import OnDevice

    sets = [Labeled(np.zeros((10, 8, 8), np.uint8), np.zeros(10, np.int64), {}) for _ in range(3)]
    device = torch.device("cuda", 0)
    with gpu(free=2 * 1300) as counts:  # half of it is the budget: two sets of 640 bytes
        for number in (0, 1, 0, 2, 0, 1):
            assert isinstance(held(sets[number], device), OnDevice)
        assert sum(counts.waits.values()) == 4  # the first two, the third in place of the second, and the second again
        share_device(2)
        budget.cache_clear()
        assert budget(device) == 650
        share_device(1)
        budget.cache_clear()
        large = Labeled(np.zeros((30, 8, 8), np.uint8), np.zeros(30, np.int64), {})
        assert not isinstance(held(large, device), OnDevice)
