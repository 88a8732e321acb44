"""Pretrained weights: they fill the whole backbone or none of it, and images are normalized as they expect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from fdamed.config.study import Model
from fdamed.core.errors import FdamedError
from fdamed.models.backbone import Net, build, initialize, load_pretrained

Tensors = dict[str, Tensor]


def net_of(**keys: object) -> Net:
    net = build(Model.model_validate(keys))
    assert isinstance(net, Net)
    initialize(net, torch.Generator().manual_seed(0))
    return net


def test_images_are_normalized_as_the_weights_expect() -> None:
    """A gray pixel of 0.485 is red's mean; of green it is 0.029 / 0.224 above, of blue 0.079 / 0.225."""
    seen: list[Tensor] = []
    for keys in ({"weights": "w.pth"}, {"normalize": "imagenet"}, {}, {"weights": "w.pth", "normalize": "half"}):
        net = net_of(width=0.0625, **keys).eval()
        net.trunk.register_forward_pre_hook(lambda _, x: seen.append(x[0]))
        net(torch.full((1, 1, 32, 32), 0.485))
    channels = [x[0, :, 0, 0].tolist() for x in seen]
    assert channels[0] == channels[1] == pytest.approx([0.0, 0.029 / 0.224, 0.079 / 0.225], abs=1e-6)
    assert channels[2] == channels[3] == pytest.approx([-0.03], abs=1e-6), "one channel stands for three equal ones"


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {k: v for k, v in tensors.items() if k != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("layer2.0.bn1.bias"), "1 tensors are not in the file (layer2.0.bn1.bias)"),
        (lambda t: t | {"conv1.weight": torch.zeros(8, 3, 3, 3)}, "of another shape or type (conv1.weight)"),
        (lambda t: t | {"bn1.bias": t["bn1.bias"].int()}, "of another shape or type (bn1.bias)"),
        (lambda t: t | {"layer1.2.conv1.weight": torch.zeros(1)}, "not in the network (layer1.2.conv1.weight)"),
        (lambda t: {f"module.{k}": v for k, v in t.items()}, "100 tensors are not in the file (conv1.weight, "),
    ],
)
def test_a_file_that_fits_in_part_is_an_error_that_names_the_tensors(
    change: Callable[[Tensors], Tensors], message: str, tmp_path: Path
) -> None:
    net = net_of(width=0.0625)
    before = {k: v.clone() for k, v in net.trunk.state_dict().items()}
    save_file(change({k: v + 1 for k, v in before.items()}), tmp_path / "w.safetensors")
    with pytest.raises(FdamedError) as error:
        load_pretrained(net, tmp_path / "w.safetensors")
    assert "weights of another network" in error.value.what and message in error.value.what
    assert all(torch.equal(v, before[k]) for k, v in net.trunk.state_dict().items())


def test_the_classifier_of_the_file_is_ignored_and_half_precision_becomes_single(tmp_path: Path) -> None:
    net = net_of(width=0.0625)
    given = {k: v.half() + 1 if v.is_floating_point() else v for k, v in net.trunk.state_dict().items()}
    torch.save({"state_dict": given | {"fc.weight": torch.zeros(5, 5)}}, tmp_path / "w.pth")
    load_pretrained(net, tmp_path / "w.pth")
    for name, tensor in net.trunk.state_dict().items():
        assert tensor.dtype == (torch.int64 if name.endswith("tracked") else torch.float32)
        assert torch.equal(tensor, given[name].to(tensor.dtype))


@pytest.fixture(scope="module")
def resnet50(real_data: Path) -> Path:
    path = real_data / "weights" / "resnet50_v1_imagenet_f16.safetensors"
    if not path.is_file():
        pytest.skip("no real weights beside the repository")
    return path


def test_a_real_resnet50_fills_the_whole_backbone_and_no_other(resnet50: Path) -> None:
    net, given = net_of(backbone="resnet50", weights=str(resnet50)), load_file(resnet50)
    load_pretrained(net, resnet50)
    loaded = net.trunk.state_dict()
    assert len(given) == 265 and all(torch.equal(loaded[k], v.float()) for k, v in given.items())
    for backbone in ("resnet18", "resnet34"):
        with pytest.raises(FdamedError, match="of another network"):
            load_pretrained(net_of(backbone=backbone), resnet50)
    with pytest.raises(FdamedError, match="of another shape or type"):
        load_pretrained(net_of(backbone="resnet50", width=0.5), resnet50)


def test_a_real_resnet50_sees_more_in_real_radiographs_than_random_weights(resnet50: Path, real_data: Path) -> None:
    """Nearest mean of 30 + 30 images, tested on 30 + 30 others: pneumonia in children of Guangzhou."""
    table = pd.read_csv(real_data / "kermany/table.csv")
    y = table["pneumonia"].to_numpy()
    rows = np.concatenate([np.flatnonzero(y == side)[::20][:60] for side in (0, 1)])
    images = [Image.open(real_data / "kermany" / table["image"][i]).resize((64, 64)) for i in rows]
    x = torch.from_numpy(np.stack([np.asarray(i, dtype=np.float32) for i in images]))[:, None] / 255
    found = []
    for pretrained in (True, False):
        net = net_of(backbone="resnet50", weights=str(resnet50)).eval()
        if pretrained:
            load_pretrained(net, resnet50)
        with torch.no_grad():
            z = net.features(x)
        means = [z[side * 60 : side * 60 + 30].mean(0) for side in (0, 1)]
        distance = [(z - mean).norm(dim=1) for mean in means]
        positive = distance[0] - distance[1]
        healthy, ill = positive[30:60], positive[90:]
        found.append(float((ill[:, None] > healthy[None]).float().mean()))
    assert found[0] > found[1] and found[0] > 0.9, found
