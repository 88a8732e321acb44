"""FedIIR: the head's gradient written out, its running mean at the server, and the messages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fdamed.config.train import Faults, Norms, Validation
from fdamed.core.errors import FdamedError
from fdamed.data.loader import Labeled
from fdamed.federation.client import answer
from fdamed.federation.method import Model
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.methods._shared.local_training import Trained
from fdamed.methods.fedavg import FedAvg
from fdamed.methods.fediir import (
    KEPT,
    Alignment,
    FedIIR,
    HeadGradient,
    State,
    aligned_loss,
    head_gradient,
    send_head_gradient,
    train_aligned,
)
from fdamed.training.input import as_input
from tests.support import federation as hospitals
from tests.support.federation import Altered

HEAD = 2 * (4 + 1)
M = 4 * hospitals.model().layout.size


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_the_heads_gradient_by_hand() -> None:
    # One image of class 0 with z = (1, 2) and equal logits: softmax - onehot = (-1/2, 1/2).
    g = head_gradient(torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2), torch.tensor([0]))
    assert g.tolist() == [[-0.5, -1.0, -0.5], [0.5, 1.0, 0.5]]


def case(seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    extractor, head = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 3)
    with torch.no_grad():
        for p in (*extractor.parameters(), *head.parameters()):
            p.copy_(torch.randn(p.shape, generator=rng))
    x, y = torch.randn(9, 6, generator=rng), torch.arange(9) % 3
    return extractor, head, x, y, 0.1 * torch.randn(3 * 6, generator=rng)


def test_written_out_it_equals_the_second_derivative(double) -> None:
    extractor, head, x, y, g = case()
    parameters = [*extractor.parameters(), *head.parameters()]
    z = extractor(x)
    loss = F.cross_entropy(head(z), y)
    weight, bias = torch.autograd.grad(loss, [head.weight, head.bias], create_graph=True)
    by_autograd = torch.cat([weight, bias.unsqueeze(1)], 1)
    assert torch.allclose(head_gradient(z, head(z), y), by_autograd, rtol=0, atol=1e-15)
    twice = torch.autograd.grad(loss + 0.7 * (by_autograd.flatten() - g).square().sum(), parameters)
    once = torch.autograd.grad(aligned_loss(head, g, 0.7, extractor(x), y), parameters)
    for a, b in zip(once, twice, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


def test_the_penaltys_gradient_by_central_differences(double) -> None:
    extractor, head, x, y, g = case(1)
    weight = extractor[0].weight
    (found,) = torch.autograd.grad(aligned_loss(head, g, 2.0, extractor(x), y), weight)
    e = 1e-6
    for i, j in ((0, 0), (2, 3), (4, 5)):
        values = []
        for side in (1.0, -1.0):
            with torch.no_grad():
                weight[i, j] += side * e
                values.append(float(aligned_loss(head, g, 2.0, extractor(x), y)))
                weight[i, j] -= side * e
        assert float(found[i, j]) == pytest.approx((values[0] - values[1]) / (2 * e), abs=1e-7)


def test_where_all_agree_the_penalty_is_nothing(double) -> None:
    extractor, head, x, y, _ = case()
    z = extractor(x)
    own = head_gradient(z, head(z), y).flatten().detach()
    assert torch.equal(aligned_loss(head, own, 5.0, z, y), F.cross_entropy(head(z), y))


def test_a_source_sends_the_gradient_of_all_its_images() -> None:
    client = hospitals.hospital("north")
    x = answer(client, trained_from(client), 1, 0, Alignment(g=torch.zeros(HEAD), weight=0.0)).x
    reply = answer(client, send_head_gradient, 1, 0, Model(x=x))
    model = hospitals.model()
    model.load(x)
    model.module.eval()
    images, y = as_input(torch.from_numpy(client.data.images)), torch.from_numpy(client.data.y)
    F.cross_entropy(model.module(images), y).backward()
    head = model.module.head
    expected = torch.cat([head.weight.grad, head.bias.grad.unsqueeze(1)], 1).flatten()
    assert reply.n == 14 and float(expected.norm()) > 0.01
    assert torch.allclose(reply.g, expected, atol=1e-6)
    assert torch.equal(client.memory[KEPT], x)


def trained_from(client):
    """The second step, with the first model in the hospital's memory."""
    client.memory[KEPT] = hospitals.theta()
    return train_aligned


def scripted(slopes: dict[str, tuple[list[float], int]]) -> tuple[Server, list[Alignment]]:
    server, asked = hospitals.in_process(), []
    server.begin(1, 3)

    def deliver(client, step, nth, msg):
        if step is send_head_gradient:
            g, n = slopes[client]
            return HeadGradient(g=torch.tensor(g), n=n)
        asked.append(msg)
        return Trained(x=hospitals.theta() + 1.0, n=3, loss=0.1)

    server.transport = Altered(server.transport, deliver)
    return server, asked


ONES, THREES = [1.0] * HEAD, [3.0] * HEAD


def test_the_running_mean_by_hand() -> None:
    # mean over images (1 x 10 + 3 x 30) / 40 = 2.5; the first is 0.05 x 2.5, the second 0.95 of it + 0.05 x 2.5.
    server, asked = scripted({"east": (ONES, 10), "north": (THREES, 20), "south": (THREES, 10)})
    first = FedIIR().round(FedIIR().start(hospitals.theta()), server)
    second = FedIIR().round(first, server)
    assert first.g.tolist() == pytest.approx([0.125] * HEAD)
    assert second.g.tolist() == pytest.approx([0.24375] * HEAD)
    assert [float(a.g[0]) for a in asked[::3]] == pytest.approx([0.125, 0.24375])
    assert server.notes["head/variance"] == pytest.approx(HEAD * (1.5**2 + 0.5**2 + 0.5**2) / 3)


def test_a_source_that_sends_nothing_is_not_in_the_mean_and_trains_all_the_same() -> None:
    server, asked = scripted({"east": (ONES, 10), "north": ([0.0] * HEAD, 0), "south": (THREES, 10)})
    state = FedIIR(ema=0.0).round(FedIIR().start(hospitals.theta()), server)
    assert state.g.tolist() == [2.0] * HEAD
    assert len(asked) == 3 and server.absences == []


def test_a_gradient_that_cannot_be_is_left_out_by_name() -> None:
    server, _ = scripted({"east": (ONES, 10), "north": (THREES, 10), "south": ([1e9] * HEAD, 10)})
    server.validator.settings = Validation(norms=Norms())
    assert FedIIR(ema=0.0).round(FedIIR().start(hospitals.theta()), server).g.tolist() == [2.0] * HEAD
    assert [(a["client"], a["step"]) for a in server.absences] == [("south", send_head_gradient.name)]


def test_without_an_answer_nothing_changes() -> None:
    server, _ = scripted({})
    server = hospitals.unreliable_server(server, Faults(absent=1.0), 0, quorum=0)
    state = State(x=hospitals.theta(), g=torch.ones(HEAD))
    after = FedIIR().round(state, server)
    assert torch.equal(after.x, state.x) and torch.equal(after.g, state.g)


def test_without_its_penalty_it_is_fedavg_bit_by_bit() -> None:
    theta, _ = run(
        FedIIR(weight=0.0, weighting="samples"), hospitals.in_process(), hospitals.theta(), 3, hospitals.no_judge
    )
    plain, _ = run(FedAvg(), hospitals.in_process(), hospitals.theta(), 3, hospitals.no_judge)
    assert torch.equal(theta, plain)


@pytest.mark.parametrize("auxiliary", [False, True])
def test_the_penalty_draws_the_heads_gradient_to_the_one_of_all(auxiliary) -> None:
    g = torch.full((HEAD,), 0.3)
    apart = []
    for weight in (0.0, 3.0):
        client = hospitals.hospital("north", auxiliary=auxiliary)
        client.recipe = client.recipe.model_copy(update={"epochs": 10})
        trained = answer(client, trained_from(client), 1, 0, Alignment(g=g, weight=weight))
        apart.append(float((answer(client, send_head_gradient, 2, 0, Model(x=trained.x)).g - g).norm()))
    assert apart[1] < apart[0]


def test_one_image_reveals_nothing_of_itself_and_one_class_is_enough() -> None:
    client = hospitals.hospital("north")
    data = client.data
    for rows, n in ((slice(0, 1), 0), (data.y == 1, 7)):
        client.data = Labeled(data.images[rows], data.y[rows], {})
        reply = answer(client, send_head_gradient, 1, 0, Model(x=hospitals.theta()))
        assert reply.n == n and (n or not reply.g.any())
        trained = answer(client, train_aligned, 1, 0, Alignment(g=torch.ones(HEAD), weight=0.1))
        assert torch.isfinite(trained.x).all()
        assert KEPT not in client.memory, "the model is kept no longer than it is needed"


def test_a_client_that_never_got_a_model_says_so() -> None:
    with pytest.raises(FdamedError, match="never reached it"):
        answer(hospitals.hospital("north"), train_aligned, 1, 0, Alignment(g=torch.ones(HEAD), weight=0.1))


def test_bytes_of_a_source_are_two_models_two_head_gradients_and_four_numbers() -> None:
    _, record = run(FedIIR(), hospitals.in_process(), hospitals.theta(), 1, hospitals.no_judge)
    for client in ("north", "east", "south"):
        spent = sum(line["bytes"] for line in record.ledger if client in (line["from"], line["to"]))
        assert spent == 2 * M + 2 * 4 * HEAD + 4 * 8
