"""The second phase by hand: which numbers move, how a new head is drawn, what the optimizer remembers."""

from __future__ import annotations

import pytest
import torch

from fdamed.config.study import Recipe
from fdamed.core.rng import stream
from fdamed.federation.absences import DroppedOut
from fdamed.federation.server import Server
from fdamed.methods.finetune_phase import FinetuneHead, FinetuneWhole, Handover, finetune_head, finetune_whole
from fdamed.models.backbone import initialize_head
from fdamed.models.cnn import Cnn
from fdamed.models.flat import head_of, head_place
from fdamed.training.input import as_input
from tests.support import federation as hospitals
from tests.support.federation import Altered, clients_of


def trained() -> torch.Tensor:
    """A model that has seen data: its features are not all zero."""
    from fdamed.federation.runner import run
    from fdamed.methods.fedavg import FedAvg

    return run(FedAvg(), hospitals.in_process(), hospitals.theta(), 6, hospitals.no_judge)[0]


@pytest.fixture(scope="module")
def theta() -> torch.Tensor:
    return trained()


def new_server(**recipe: object) -> Server:
    server = hospitals.in_process()
    clients_of(server)["target"].recipe = Recipe(**{"lr": 0.005, "batch": 4, "weight_decay": 1e-4} | recipe)
    return server


def rounds(method, theta: torch.Tensor, count: int, server: Server | None = None) -> torch.Tensor:
    server, state = server or new_server(), method.start(theta)
    for round in range(1, count + 1):
        server.begin(round, count)
        state = method.round(state, server)
    return method.final(state)


def test_nothing_but_the_head_moves_not_even_by_weight_decay(theta) -> None:
    after = rounds(FinetuneHead(), theta, 3, new_server(weight_decay=0.5, epochs=2))
    place = head_place(hospitals.model().layout)
    moved = theta != after
    assert moved[place].all() and not moved[: place.start].any() and not moved[place.stop :].any()
    assert (rounds(FinetuneWhole(), theta, 1) != theta)[: place.start].any()


def test_one_step_of_plain_descent_on_the_head_is_the_gradient_of_logistic_regression(theta) -> None:
    server = new_server(optimizer="sgd", lr=0.1, batch=6, weight_decay=0.0)
    client = clients_of(server)["target"]
    client.model.load(theta)
    client.model.module.eval()
    with torch.no_grad():
        f = client.model.module.features(as_input(torch.from_numpy(client.data.images)))
        p = torch.softmax(client.model.module.head(f), 1)
    wrong = p - torch.nn.functional.one_hot(torch.from_numpy(client.data.y), 2)
    by_hand = torch.cat([(wrong.T @ f / len(f)).flatten(), wrong.mean(0)])
    layout = client.model.layout
    after = rounds(FinetuneHead(head="kept"), theta, 1, server)
    assert torch.allclose(head_of(after, layout), head_of(theta, layout) - 0.1 * by_hand, atol=1e-7)


def test_a_new_head_is_drawn_once_and_by_the_hospitals_own_stream(theta) -> None:
    server = new_server(lr=1e-12)
    after = rounds(FinetuneHead(), theta, 3, server)
    model = hospitals.model()
    model.load(theta)
    initialize_head(model.module, stream(5, "target", "head").torch)
    assert torch.allclose(head_of(after, model.layout), head_of(model.read(), model.layout), atol=1e-9)
    assert torch.allclose(rounds(FinetuneHead(head="kept"), theta, 3, new_server(lr=1e-12)), theta, atol=1e-9)


def test_a_new_head_is_drawn_as_the_network_draws_its_layers() -> None:
    server = Cnn(1, 28, 10)
    initialize_head(server, stream(0, "x").torch)
    bound = 84**-0.5
    assert 0.9 * bound < server.head.weight.abs().max() <= bound and server.head.bias.abs().max() > 0


def test_the_moments_of_adam_go_on_from_round_to_round_unless_they_are_to_be_fresh(theta) -> None:
    kept = new_server(batch=6)
    rounds(FinetuneHead(), theta, 4, kept)
    memory = clients_of(kept)["target"].memory
    assert memory["tune.count"] == 4 and len(memory["tune.mean"]) == 10
    fresh = new_server(batch=6)
    rounds(FinetuneHead(optimizer="fresh"), theta, 4, fresh)
    assert clients_of(fresh)["target"].memory == {}


@pytest.mark.parametrize("step", [finetune_head, finetune_whole])
def test_an_answer_that_is_lost_begins_again_with_a_new_head(theta, step) -> None:
    method = FinetuneHead() if step is finetune_head else FinetuneWhole(head="new")
    server, expected = new_server(lr=1e-12), rounds(method, theta, 1, new_server(lr=1e-12))
    state = method.start(theta)
    deliver = server.transport.deliver

    def lost(*arguments):
        deliver(*arguments)
        raise DroppedOut("target", "gone")

    server.begin(1, 2)
    server.transport = Altered(server.transport, lost)
    with pytest.raises(DroppedOut):
        method.round(state, server)
    server.transport = Altered(server.transport, deliver)
    server.begin(2, 2)
    cut = server.layout.trainable  # BatchNorm has seen other batches
    assert torch.allclose(method.final(method.round(state, server))[:cut], expected[:cut], atol=1e-9)
    assert clients_of(server)["target"].memory["tune.count"] == 2, "two batches, of the second round alone"


def test_a_hospital_without_labels_cannot_be_asked_to_fine_tune(theta) -> None:
    server = hospitals.in_process(labels=False)
    with pytest.raises(TypeError, match="without labels"):
        server.ask("target", finetune_head, Handover(x=theta, fresh=1, afresh=0))
