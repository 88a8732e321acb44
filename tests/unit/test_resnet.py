from __future__ import annotations

import pytest
import torch
from monai.networks.nets.resnet import ResNet as MonaiResNet
from torch import nn

from fdamed.config.study import Model
from fdamed.models.backbone import build, initialize
from fdamed.models.resnet import Basic, Bottleneck, ResNet

PLANES = [16, 32, 64, 128]


@pytest.mark.parametrize(
    ("block", "name", "blocks"), [(Basic, "basic", (2, 2, 2, 2)), (Bottleneck, "bottleneck", (3, 4, 6, 3))]
)
def test_the_resnet_has_the_names_and_the_bits_of_monais(block, name: str, blocks: tuple[int, ...]) -> None:
    monai = MonaiResNet(
        name, list(blocks), PLANES, spatial_dims=2, conv1_t_stride=2, bias_downsample=False, feed_forward=False
    )
    ours = ResNet(block, blocks, PLANES, nn.BatchNorm2d)
    assert list(ours.state_dict()) == list(monai.state_dict())
    ours.load_state_dict(monai.state_dict())
    x = torch.rand(4, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    for net in (ours, monai):
        net(x).square().sum().backward()
    for mine, theirs in zip(ours.parameters(), monai.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)
    assert torch.equal(ours.eval()(x), monai.eval()(x))


def test_a_gray_image_gives_what_three_equal_channels_give() -> None:
    """Worked out: a kernel of ones on a gray image of ones sums 3 channels x 4 x 4 pixels at the corner."""
    net = ResNet(Basic, (2, 2, 2, 2), PLANES, nn.BatchNorm2d)
    with torch.no_grad():
        assert net.conv1(torch.ones(1, 1, 8, 8)).shape == (1, 16, 4, 4)
        net.conv1.weight.fill_(1.0)
        assert net.conv1(torch.ones(1, 1, 8, 8))[0, 0, 0, 0] == 3 * 4 * 4
    gray = torch.rand(4, 1, 40, 40, generator=torch.Generator().manual_seed(0))
    initialize(net, torch.Generator().manual_seed(1))
    gradients = []
    for x in (gray, gray.expand(-1, 3, -1, -1)):
        net.zero_grad()
        net(x).square().sum().backward()
        gradients.append(net.conv1.weight.grad.clone())
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-2)
    assert torch.equal(gradients[0][:, 0], gradients[0][:, 2]), "the gradient of a sum is the same for every channel"


def test_group_norm_replaces_every_batch_norm() -> None:
    net = build(Model(width=0.25, norm="group"))
    initialize(net, torch.Generator().manual_seed(0))
    assert not any(isinstance(m, nn.BatchNorm2d) for m in net.modules())
    assert sum(isinstance(m, nn.GroupNorm) for m in net.modules()) == 20
