from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fdamed.config.study import Recipe
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled
from fdamed.models.cnn import Cnn, default_init
from fdamed.models.flat import FlatModel
from fdamed.training.local import fit

SHAPES = [(64, 1, 28), (7, 1, 28), (1, 1, 28), (5, 3, 32), (3, 1, 16), (4, 2, 19), (2, 4, 64)]
"""Batch, channels, side: Fashion-MNIST, CIFAR, the smallest, an odd one, a large one."""


def network(channels: int = 1, side: int = 28, classes: int = 10) -> Cnn:
    net = Cnn(channels, side, classes)
    default_init(net, torch.Generator().manual_seed(5))
    return net


def images(n: int, channels: int, side: int) -> Tensor:
    """Noise with a black border, so that windows with four equal sums occur."""
    x = torch.randn(n, channels, side, side, generator=torch.Generator().manual_seed(n)) * 0.4 + 0.5
    x[..., : side // 4] = 0.0
    return x


def picking() -> Cnn:
    """Both convolutions only move the first channel by two pixels: each pool then takes the lower right of four."""
    net = Cnn()
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        net.conv1.weight[0, 0, 2, 2] = 1.0
        net.conv2.weight[0, 0, 2, 2] = 1.0
    return net


def test_the_papers_network_has_44426_parameters_and_lenet_for_cifar_62006() -> None:
    assert sum(p.numel() for p in Cnn().parameters()) == 44_426
    assert sum(p.numel() for p in Cnn(3, 32).parameters()) == 62_006


@pytest.mark.parametrize("shape", SHAPES)
def test_features_are_84_and_logits_one_a_class(shape: tuple[int, int, int]) -> None:
    n, channels, side = shape
    net, x = network(channels, side, classes=7), images(n, channels, side)
    assert net.features(x).shape == (n, 84)
    assert bool((net.features(x) >= 0).all())
    torch.testing.assert_close(net(x), net.head(net.features(x)))
    assert net(x).shape == (n, 7)


def test_the_whole_networks_gradient_is_that_of_double_precision() -> None:
    net, x = network(), images(16, 1, 28)
    exact = copy.deepcopy(net).double()
    y = torch.arange(16) % 10
    F.cross_entropy(net(x), y).backward()
    F.cross_entropy(exact(x.double()), y).backward()
    for p, q in zip(net.parameters(), exact.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        assert float((p.grad - q.grad).norm() / q.grad.norm()) < 1e-4


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    net, x, y = network(side=16).double(), images(6, 1, 16).double(), torch.arange(6)
    model = list(net.parameters())
    generator = torch.Generator().manual_seed(2)
    way = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in model]
    slope = sum((g * d).sum() for g, d in zip(torch.autograd.grad(F.cross_entropy(net(x), y), model), way, strict=True))
    step, values = 1e-6, []
    for sign in (1, -1):
        with torch.no_grad():
            for p, d in zip(model, way, strict=True):
                p.add_(d, alpha=sign * step)
            values.append(float(F.cross_entropy(net(x), y)))
            for p, d in zip(model, way, strict=True):
                p.sub_(d, alpha=sign * step)
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(slope), rel=1e-6)


def test_two_moves_and_two_pools_by_hand() -> None:
    net = picking()
    x = torch.arange(28.0 * 28).view(1, 1, 28, 28)
    chosen = torch.tensor([[(4 * i + 9) * 28.0 + 4 * j + 9 for j in range(4)] for i in range(4)])
    out = net.convolutions(x)
    assert torch.equal(out.view(16, 4, 4)[0], chosen)
    assert float(out.detach().view(16, 16)[1:].abs().sum()) == 0
    out.sum().backward()
    assert net.conv1.weight.grad is not None and net.conv1.bias.grad is not None
    assert net.conv2.weight.grad is not None and net.conv2.bias.grad is not None
    # One tap further left in the first kernel reads one pixel further left; there, too, 16 places receive a gradient.
    assert float(net.conv1.weight.grad[0, 0, 2, 2]) == float(chosen.sum())
    assert float(net.conv1.weight.grad[0, 0, 2, 1]) == float(chosen.sum()) - 16
    assert float(net.conv2.weight.grad[0, 0, 2, 2]) == float(chosen.sum())
    assert float(net.conv2.weight.grad[0, 0, 1, 2]) == float(chosen.sum()) - 16 * 2 * 28
    assert float(net.conv1.bias.grad[0]) == float(net.conv2.bias.grad[0]) == 16
    assert float(net.conv2.weight.grad[1].abs().sum()) == 0


def test_where_relu_is_off_no_gradient_passes() -> None:
    net = picking()
    net.convolutions(-torch.ones(2, 1, 28, 28)).sum().backward()
    assert all(p.grad is None or float(p.grad.abs().sum()) == 0 for p in net.parameters())


@pytest.mark.parametrize("row", [0, 13, 23])
def test_a_pixel_that_is_not_a_number_is_not_hidden_by_a_pool(row: int) -> None:
    x = images(2, 1, 28)
    x[1, 0, row, row + 1] = torch.nan
    out = network()(x)
    assert bool(torch.isfinite(out[0]).all())
    assert bool(torch.isnan(out[1]).all())


def test_images_that_want_a_gradient_get_the_right_one() -> None:
    net = network()
    x = images(2, 1, 28).requires_grad_()
    net(x).sum().backward()
    double = x.detach().double().requires_grad_()
    copy.deepcopy(net).double()(double).sum().backward()
    assert x.grad is not None and double.grad is not None
    torch.testing.assert_close(x.grad.double(), double.grad, rtol=1e-3, atol=1e-5)


def test_images_of_another_shape_than_the_networks_are_refused() -> None:
    net = network()
    for shape in ((2, 3, 28, 28), (2, 1, 28, 36), (2, 1, 40, 40)):
        with pytest.raises(RuntimeError):
            net(torch.rand(shape))


def test_images_too_small_for_two_convolutions_are_refused() -> None:
    with pytest.raises(FdamedError, match="15 x 15"):
        Cnn(1, 15)


def test_initialization_is_pytorchs_default_and_seeded() -> None:
    net = Cnn(3, 32)
    default_init(net, torch.Generator().manual_seed(11))
    state = torch.random.get_rng_state()
    torch.manual_seed(11)
    torchs = Cnn(3, 32)
    torch.random.set_rng_state(state)
    for a, b in zip(net.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    assert float(net.head.bias.detach().abs().max()) <= 1 / math.sqrt(84)


def test_a_flat_network_keeps_its_kernels_contiguous_and_learns() -> None:
    rng = np.random.default_rng(0)
    data = Labeled(rng.integers(0, 256, (96, 28, 28), dtype=np.uint8), np.arange(96) % 10, {})
    model = FlatModel(network())
    assert model.module.conv2.weight.is_contiguous()  # type: ignore[union-attr, operator]
    before = model.read()
    outcome = fit(model, data, Recipe(lr=0.05, batch=16, epochs=2, optimizer="sgd"), stream(3, "fit"))
    assert 0 < outcome.loss < 2.5 and not torch.equal(model.read(), before)
