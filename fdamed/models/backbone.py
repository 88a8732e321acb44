"""The network of the healthcare paper: a ResNet, a hidden layer and a main head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fdamed.config.study import Model
from fdamed.core.errors import FdamedError
from fdamed.models.cnn import FEATURES, Cnn, default_init
from fdamed.models.flat import sent
from fdamed.models.resnet import Basic, Bottleneck, ResNet

BLOCKS: dict[str, tuple[type[Basic | Bottleneck], tuple[int, ...]]] = {
    "resnet18": (Basic, (2, 2, 2, 2)),
    "resnet34": (Basic, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
}
"""Backbone -> kind of block, number of blocks in each stage."""
GROUPS = 8
"""Groups of channels in GroupNorm; the number of channels is a multiple of eight."""
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's red, green and blue, which its pretrained weights expect."""


class Net(nn.Module):
    """h: images (B, 1, S, S) in [0, 1] -> logits (B, C); `features` is h without its last layer."""

    def __init__(self, trunk: nn.Module, width: int, hidden: int, classes: int, imagenet: bool = False) -> None:
        super().__init__()
        self.trunk = trunk
        self.imagenet = imagenet
        self.hidden = nn.Linear(width, hidden)
        self.head = nn.Linear(hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        """(B, 1 or 3, S, S) -> (B, hidden): what the main head and the auxiliary heads read."""
        return torch.relu(self.hidden(self.trunk(self._normalized(x))))

    def _normalized(self, x: Tensor) -> Tensor:
        """(B, 1 or 3, S, S); inside the network, so that every form in which it is exported does the same."""
        if not self.imagenet:
            return (x - 0.5) / 0.5
        colors = sent(torch.tensor(IMAGENET, dtype=x.dtype), x.device)[..., None, None]  # (2, 3, 1, 1)
        return (x - colors[0]) / colors[1]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


class Mlp(nn.Module):
    """Feature vectors (B, d) -> logits (B, C), ReLU between the layers."""

    def __init__(self, inputs: int, layers: Sequence[int], classes: int) -> None:
        super().__init__()
        sizes = (inputs, *layers)
        self.body = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.head = nn.Linear(sizes[-1], classes)

    def features(self, x: Tensor) -> Tensor:
        for layer in self.body:
            x = torch.relu(layer(x))
        return x

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


def build(model: Model) -> nn.Module:
    """The network of a configuration, weights not yet set (see `initialize`)."""
    if model.backbone == "cnn":
        return Cnn(model.channels, model.side, model.classes)
    if model.backbone == "mlp":
        return Mlp(model.inputs, model.layers, model.classes)
    return _resnet(model)


def feature_size(model: Model) -> int:
    """Width of the feature that the heads read."""
    return {"cnn": FEATURES, "mlp": model.layers[-1]}.get(model.backbone, model.hidden)


def _resnet(model: Model) -> Net:
    block, blocks = BLOCKS[model.backbone]
    # Multiples of eight: otherwise channels_last convolutions of torch 2.13 write outside their memory (0005).
    planes = [max(8, 8 * round(c * model.width / 8)) for c in (64, 128, 256, 512)]
    norm = partial(nn.GroupNorm, GROUPS) if model.norm == "group" else nn.BatchNorm2d
    trunk = ResNet(block, blocks, planes, norm)
    return Net(trunk, planes[3] * block.expansion, model.hidden, model.classes, model.imagenet)


@torch.no_grad()
def initialize(net: nn.Module, generator: torch.Generator) -> None:
    """Seeded He initialization of convolutions and linear layers, ones and zeros elsewhere; a Cnn as PyTorch does."""
    if isinstance(net, Cnn):
        default_init(net, generator)
        return
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            _draw(module.weight, (2.0 / fan_out) ** 0.5, generator)
        elif isinstance(module, nn.Linear):
            _draw(module.weight, (2.0 / module.in_features) ** 0.5, generator)
        elif isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
            module.weight.fill_(1.0)
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
        bias = getattr(module, "bias", None)
        if isinstance(bias, Tensor):
            bias.zero_()


def initialize_head(net: nn.Module, generator: torch.Generator) -> None:
    """A new last layer, drawn as the network's first one was."""
    head: nn.Module = net.head  # type: ignore[assignment]  # every network here has one
    (default_init if isinstance(net, Cnn) else initialize)(head, generator)


def _draw(weight: Tensor, deviation: float, generator: torch.Generator) -> None:
    """Normal numbers drawn on the CPU, where the generator is, whatever the device of the weight."""
    weight.copy_(torch.empty(weight.shape).normal_(0.0, deviation, generator=generator))


def load_pretrained(net: Net, path: Path) -> None:
    """Fill the whole trunk by name from torchvision's format; its classifier `fc` is ignored."""
    counters = "num_batches_tracked"
    given = {k: v for k, v in read_weights(path).items() if not k.startswith("fc.") and not k.endswith(counters)}
    if not all(bool(torch.isfinite(tensor).all()) for tensor in given.values()):
        raise FdamedError("some weights in the file are not finite", str(path), "Give another file.")
    wanted = {k: v for k, v in net.trunk.state_dict().items() if not k.endswith(counters)}
    both = [k for k in wanted if k in given]
    faults = {
        "not in the file": [k for k in wanted if k not in given],
        "of another shape or type": [
            k for k in both if given[k].shape != wanted[k].shape or not given[k].is_floating_point()
        ],
        "in the file, but not in the network": [k for k in given if k not in wanted],
    }
    said = [f"{len(names)} tensors are {what} ({_some(names)})" for what, names in faults.items() if names]
    if said:
        fix = "Give torchvision's weights of the network in model.backbone, with model.width: 1 and model.norm: batch."
        raise FdamedError(f"these are weights of another network: {'; '.join(said)}", str(path), fix)
    net.trunk.load_state_dict(given, strict=False)


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """Tensors by name from a .safetensors or .pth file; nothing but tensors is ever unpickled."""
    if not path.is_file():
        raise FdamedError("there is no such weights file", str(path), "Check model.weights in the configuration.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: Mapping[str, Tensor] = load_file(path)
        else:
            given: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            content = given.get("state_dict", given)
        if not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()):
            raise TypeError("not tensors by name")
    except Exception as error:
        raise FdamedError(
            f"not a file of tensors ({type(error).__name__})", str(path), "Give a state dict or a safetensors file."
        ) from None
    return content
