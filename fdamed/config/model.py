"""The `image` and `model` sections: the pixels that a network gets, and the network."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fdamed.config.base import Strict

Head = Literal["sex", "age", "view", "race"]
HEAD_CLASSES = {"sex": 2, "age": 10, "view": 2}
"""Classes of each auxiliary head (age in decades); race has as many as the configuration names."""


class Image(Strict):
    """How images are prepared."""

    size: Annotated[int, Field(ge=16, le=1024)] = 224
    """Height and width in pixels after resizing."""
    equalize: bool = False
    """Equalize the histogram, as the reference code of the healthcare paper does for MIDRC."""


class Model(Strict):
    """The network."""

    backbone: Literal["resnet18", "resnet34", "resnet50", "cnn", "mlp"] = "resnet18"
    """cnn: two convolutions and three linear layers, as in the FedGP paper; mlp: for feature vectors."""
    channels: Literal[1, 3] = 1
    """Channels of the images: 1 for gray images such as radiographs, 3 for color."""
    side: Annotated[int, Field(ge=16)] = 28
    """Image size of a cnn, equal to `image.size`; its linear layers depend on it."""
    inputs: Annotated[int, Field(ge=1)] = 5000
    """Input features of an mlp."""
    layers: Annotated[tuple[int, ...], Field(min_length=1)] = (1000, 500, 100)
    """Hidden layers of an mlp."""
    norm: Literal["batch", "group"] = "batch"
    """Normalization of a ResNet. Differential privacy needs `group`, which never mixes images."""
    width: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Scales the widths of the ResNet's blocks; 1 is the published network."""
    hidden: Annotated[int, Field(ge=1)] = 128
    """Size of the hidden layer between the backbone and the heads."""
    classes: Annotated[int, Field(ge=2)] = 2
    """Classes of the main head."""
    heads: tuple[Head, ...] = ()
    """Auxiliary heads that runs may train at the sources (`runs.*.auxiliary`)."""
    races: tuple[str, ...] = ()
    """Classes of the race head, in this order."""
    weights: str | None = Field(None, examples=["data/resnet18-f37072fd.pth"])
    """File with pretrained ResNet weights: torchvision (.pth) or safetensors. Default: seeded He initialization."""
    normalize: Literal["half", "imagenet"] | None = Field(None, examples=["imagenet"])
    """How a ResNet normalizes pixels in [0, 1]. half: (x - 0.5) / 0.5; imagenet: with ImageNet's mean and deviation.
    Default: imagenet with `weights`, half without."""

    @model_validator(mode="after")
    def _fits(self) -> Model:
        if "race" in self.heads and len(self.races) < 2:
            raise ValueError("the race head needs at least two classes: list them in `races`")
        if self.weights and self.backbone in ("cnn", "mlp"):
            raise ValueError(f"`weights` needs a ResNet; a {self.backbone} always starts from seeded weights")
        if self.normalize and self.backbone in ("cnn", "mlp"):
            raise ValueError(f"`normalize` needs a ResNet; a {self.backbone} reads its input as it is")
        return self

    @property
    def imagenet(self) -> bool:
        """Whether images are normalized with ImageNet's mean and deviation."""
        return self.normalize == "imagenet" or (self.normalize is None and self.weights is not None)
