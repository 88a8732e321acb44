"""The regularizer xi (|J| - gamma)^2: by hand, against finite differences, and its routes against each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdamed.core.rng import stream
from fdamed.methods.fedgtst import RegularizedGradient, norm_of
from fdamed.models.cnn import Cnn, default_init
from fdamed.models.flat import FlatModel
from tests.support import federation as hospitals

ROUTES = pytest.mark.parametrize("exact", [True, False])


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Vector(nn.Module):
    """Nothing but parameters: two that are used, one that is not."""

    def __init__(self, *w: float) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor(w[:1]))
        self.second = nn.Parameter(torch.tensor(w[1:]))
        self.unused = nn.Parameter(torch.ones(2))


def flat(*w: float) -> FlatModel:
    return FlatModel(Vector(*w))


def bowl(model: FlatModel):
    """1/2 (w_1^2 + 2 w_2^2): J = (w_1, 2 w_2), H = diag(1, 2)."""
    return lambda: 0.5 * (model.module.first.square() + 2.0 * model.module.second.square()).sum()


def gradient(model: FlatModel, objective, xi: float, gamma: float | None, exact: bool, reach=1e-3) -> Tensor:
    model.grad.zero_()
    RegularizedGradient((model,), xi, gamma, exact, reach)(objective)
    return model.grad.clone()


@ROUTES
def test_on_a_bowl_every_route_gives_the_gradient_worked_out_on_paper(double, exact) -> None:
    # w = (3, 2): J = (3, 4), |J| = 5, H J/|J| = (0.6, 1.6); xi = 1/2, gamma = 3: c = 2, so J + (1.2, 3.2).
    model = flat(3.0, 2.0)
    before = model.read()
    assert gradient(model, bowl(model), 0.5, 3.0, exact)[:2].tolist() == pytest.approx([4.2, 7.2], abs=1e-9)
    assert torch.equal(model.read(), before), "the weights are where they were, to the last bit"


@ROUTES
def test_at_the_guide_the_regularizer_adds_nothing(double, exact) -> None:
    model = flat(3.0, 2.0)
    at = norm_of(torch.tensor([3.0, 4.0]))
    assert gradient(model, bowl(model), 0.5, at, exact)[:2].tolist() == pytest.approx([3.0, 4.0], abs=1e-12)


@ROUTES
def test_below_the_guide_it_makes_the_gradient_grow(double, exact) -> None:
    model = flat(3.0, 2.0)
    step = gradient(model, bowl(model), 0.5, 7.0, exact)[:2]
    assert step.tolist() == pytest.approx([3.0 - 1.2, 4.0 - 3.2], abs=1e-9)


@ROUTES
def test_a_gradient_of_zero_is_safe(exact) -> None:
    model = flat(0.0, 0.0)
    assert gradient(model, bowl(model), 0.5, 3.0, exact).tolist() == [0.0] * 4


@pytest.mark.parametrize(("exact", "reach", "tolerance"), [(True, 1.0, 1e-8), (False, 1e-7, 1e-5)])
def test_it_is_the_derivative_of_the_regularizer_by_central_differences(double, exact, reach, tolerance) -> None:
    rng = stream(1, "tanh").torch
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    default_init(net, rng)
    model = FlatModel(net)
    x, y = torch.randn(7, 3, generator=rng), torch.arange(7) % 2
    xi, gamma = 0.7, 0.4

    def objective() -> Tensor:
        return F.cross_entropy(net(x), y)

    def regularizer(w: Tensor) -> float:
        model.load(w)
        model.grad.zero_()
        objective().backward()
        return xi * (norm_of(model.grad) - gamma) ** 2

    w = model.read()
    plain = gradient(model, objective, 0.0, gamma, True)
    added = gradient(model, objective, xi, gamma, exact, reach) - plain
    e = 1e-5
    sides = [[regularizer(w + side * e * unit) for side in (1.0, -1.0)] for unit in torch.eye(len(w))]
    expected = torch.tensor([(up - down) / (2 * e) for up, down in sides])
    assert float((added - expected).norm() / expected.norm()) < tolerance


def test_heads_that_train_along_get_the_same_from_every_route(double) -> None:
    rng = stream(2, "heads").torch
    net, heads = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 2)
    for part in (net, heads):
        default_init(part, rng)
    players = (FlatModel(net), FlatModel(heads))
    x, y = torch.randn(6, 3, generator=rng), torch.arange(6) % 2
    found = []
    for exact, reach in ((True, 1.0), (False, 1e-7)):
        for p in players:
            p.grad.zero_()
        RegularizedGradient(players, 0.5, 0.1, exact, reach)(lambda: F.cross_entropy(heads(net(x)), y))
        found.append(torch.cat([p.grad.clone() for p in players]))
    assert torch.allclose(found[1], found[0], rtol=1e-4, atol=1e-6)


@ROUTES
def test_running_statistics_move_once_a_batch(exact) -> None:
    x, y = torch.rand(6, 1, 8, 8, generator=stream(0, "x").torch), torch.arange(6) % 2
    model, plain = hospitals.model(), hospitals.model()
    for m in (model, plain):
        m.module.train()
    gradient(model, lambda: F.cross_entropy(model.module(x), y), 0.5, 1.0, exact)
    gradient(plain, lambda: F.cross_entropy(plain.module(x), y), 0.0, None, True)
    assert torch.equal(model.theta, plain.theta)


def test_without_a_guide_it_is_the_plain_gradient_bit_by_bit() -> None:
    x, y = torch.rand(6, 1, 8, 8, generator=stream(0, "x").torch), torch.arange(6) % 2
    model = hospitals.model()
    model.grad.zero_()
    F.cross_entropy(model.module(x), y).backward()
    expected = model.grad.clone()
    for xi, gamma in ((0.0, 1.0), (1.0, None)):
        assert torch.equal(gradient(model, lambda: F.cross_entropy(model.module(x), y), xi, gamma, False), expected)


@ROUTES
def test_what_the_batches_came_to_is_kept(double, exact) -> None:
    model = flat(3.0, 2.0)
    made = RegularizedGradient((model,), 0.5, 1.0, exact, 1e-3)
    made(bowl(model))
    model.load(torch.tensor([-3.0, 2.0, 1.0, 1.0]))
    model.grad.zero_()
    made(bowl(model))  # J = (3, 4), then (-3, 4): mean (0, 4)
    assert made.path_norm == pytest.approx(4.0)


def test_the_cnn_can_be_differentiated_twice() -> None:
    net = Cnn(1, 16, 3)
    default_init(net, stream(0, "cnn").torch)
    model = FlatModel(net)
    x, y = torch.rand(5, 1, 16, 16, generator=stream(0, "x").torch), torch.arange(5) % 3

    def by_hand() -> Tensor:
        deep = torch.relu(net.fc2(torch.relu(net.fc1(net.convolutions(x)))))
        loss = F.cross_entropy(net.head(deep), y)
        j = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        return loss + 0.5 * (torch.cat([g.flatten() for g in j]).norm() - 0.2).square()

    model.grad.zero_()
    by_hand().backward()
    expected = model.grad.clone()
    exact = gradient(model, lambda: F.cross_entropy(net(x), y), 0.5, 0.2, True)
    assert torch.allclose(exact, expected, rtol=1e-4, atol=1e-6)


def test_across_the_kinks_of_relu_a_step_along_a_probe_shortens_the_gradient_like_one_along_the_derivative() -> None:
    net = Cnn(1, 28, 10)
    default_init(net, stream(3, "cnn").torch)
    model = FlatModel(net)
    rng = stream(0, "x").torch
    y = torch.arange(64) % 10
    x = 0.5 * torch.rand(10, 1, 28, 28, generator=rng)[y] + 0.5 * torch.rand(64, 1, 28, 28, generator=rng)

    def objective() -> Tensor:
        return F.cross_entropy(net(x), y)

    w, plain = model.read(), gradient(model, objective, 0.0, None, True)
    change = []
    for exact in (True, False):
        model.load(w)
        way = gradient(model, objective, 1.0, 0.0, exact, reach=0.1) - plain
        model.load(w - 0.1 * way / way.norm())
        change.append(norm_of(gradient(model, objective, 0.0, None, True)) / norm_of(plain) - 1.0)
    assert change[0] < -0.05, "the step is long enough to be felt"
    assert change[1] < 0.5 * change[0]
