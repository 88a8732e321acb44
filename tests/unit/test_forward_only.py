"""The quick convolutions of a model that only judges: the same answers, and a network that is left as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdamed.config.study import Model
from fdamed.core.rng import stream
from fdamed.models import forward_only as forward
from fdamed.models import tiles
from fdamed.models.backbone import build, initialize
from fdamed.models.flat import FlatModel
from fdamed.models.forward_only import Gray, Winograd, forward_only
from fdamed.training.distillation import outputs


def conv(into: int, out: int, **options) -> nn.Conv2d:
    layer = nn.Conv2d(into, out, bias=False, **options)
    fan_in = into * layer.kernel_size[0] * layer.kernel_size[1]
    with torch.no_grad():
        layer.weight.normal_(0.0, (1.0 / fan_in) ** 0.5, generator=stream(1, "kernel").torch)
    return layer


def images(*shape: int) -> Tensor:
    return torch.rand(shape, generator=stream(2, "images").torch)


def resnet() -> FlatModel:
    """A ResNet-18 of half the width: 128 channels on 4 x 4 in its third stage."""
    net = build(Model(width=0.5))
    initialize(net, stream(0, "net").torch)
    return FlatModel(net)


@pytest.mark.parametrize(("height", "width"), [(4, 4), (7, 7), (8, 14), (13, 9)])
@torch.no_grad()
def test_tiles_give_the_same_convolution_whatever_the_size_of_the_image(height, width) -> None:
    layer, x = conv(128, 160, kernel_size=3, padding=1), images(2, 128, height, width)
    exact = F.conv2d(x.double(), layer.weight.double(), padding=1)
    torch.testing.assert_close(Winograd(layer)(x).double(), exact, rtol=0, atol=3e-5)


@pytest.mark.parametrize(("height", "width", "images_at_once"), [(4, 4, 1), (7, 9, 3), (56, 56, 2)])
@torch.no_grad()
def test_compiled_and_torch_transforms_give_the_same_convolution(height, width, images_at_once, monkeypatch) -> None:
    if tiles.BUILD != "compiled":
        pytest.skip("no compiled transforms in this installation")
    layer, x = conv(32, 40, kernel_size=3, padding=1), images(5, 32, height, width)
    monkeypatch.setattr(forward, "AT_ONCE", images_at_once * -(-height // 4) * -(-width // 4))
    quick = Winograd(layer)(x)
    monkeypatch.setattr(tiles, "serves", lambda into, out: False)
    torch.testing.assert_close(quick, Winograd(layer)(x), rtol=0, atol=2e-5)
    torch.testing.assert_close(quick, layer(x), rtol=0, atol=2e-5)


@torch.no_grad()
def test_an_image_too_small_for_tiles_is_computed_directly() -> None:
    layer, x = conv(128, 128, kernel_size=3, padding=1), images(2, 128, 2, 2)
    assert torch.equal(Winograd(layer)(x), layer(x))


@torch.no_grad()
def test_a_gray_image_is_one_channel_under_the_sum_of_the_kernels() -> None:
    layer, x = conv(3, 16, kernel_size=7, stride=2, padding=3), images(2, 1, 21, 16)
    gray = x.expand(-1, 3, -1, -1)
    torch.testing.assert_close(Gray(layer)(gray), layer(gray), rtol=0, atol=1e-5)
    colored = images(2, 3, 21, 16)
    assert torch.equal(Gray(layer)(colored), layer(colored))


def test_only_convolutions_that_gain_are_replaced_and_all_are_back_afterwards() -> None:
    net = build(Model(width=0.25))
    initialize(net, stream(0, "net").torch)
    model = FlatModel(net)
    before = dict(model.module.named_modules())
    with pytest.raises(RuntimeError, match="stop"), forward_only(model.module):
        within = dict(model.module.named_modules())
        assert isinstance(within["trunk.conv1"], Gray)
        assert isinstance(within["trunk.layer4.0.conv2"], Winograd)
        assert within["trunk.layer3.0.conv1"] is before["trunk.layer3.0.conv1"]  # stride 2
        tiny = "trunk.layer1.0.conv2"  # 16 channels
        assert within[tiny] is before[tiny]
        raise RuntimeError("stop")
    assert list(model.module.named_modules()) == list(before.items())


@pytest.mark.parametrize("adapt", [True, False])
def test_teachers_say_and_measure_the_same_as_with_plain_convolutions(adapt) -> None:
    model = resnet()
    vector = model.read()
    pixels = (255 * images(12, 64, 64)).to(torch.uint8)
    q, buffers = outputs(model, [vector, vector], pixels, 12, stream(1), adapt=adapt)
    model.load(vector)
    model.module.train(adapt)
    with torch.no_grad():
        expected = torch.softmax(model.module(pixels.unsqueeze(1) / 255), dim=1)
    torch.testing.assert_close(q[0], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(buffers[0], model.read()[model.layout.trainable :], rtol=1e-5, atol=1e-5)
    assert torch.equal(q[0], q[1]) and torch.equal(buffers[0], buffers[1])


def test_kernels_are_those_of_each_teacher() -> None:
    model = resnet()
    a = model.read()
    b = a.clone()
    b[: model.layout.trainable] *= 1.1
    pixels = (255 * images(6, 64, 64)).to(torch.uint8)
    both, _ = outputs(model, [a, b], pixels, 6, stream(1))
    alone, _ = outputs(model, [b], pixels, 6, stream(1))
    assert torch.equal(both[1], alone[0]) and not torch.allclose(both[0], both[1])
