"""An exported model as a MONAI bundle: configs/metadata.json, configs/inference.json, models/model.pt, docs/README.md.

The bundle lies in the exported folder, from whose files MONAI rebuilds network and preprocessing: both need fdamed.
There is no TorchScript, which records paths of the machine; `monai.bundle.ckpt_export` writes it where it is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, write_json
from fdamed.data.image import Unreadable
from fdamed.export.bundle import WEIGHTS, network_of, read_exported
from fdamed.export.input import Preparation, prepare
from fdamed.export.onnx_file import Probabilities

SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
HERE = "fdamed.export.monai_bundle"


def network(folder: str) -> nn.Module:
    """The network with its softmax: images (B, ...) float32 in 0 to 1 -> probabilities (B, C)."""
    exported = read_exported(Path(folder))
    return (
        Probabilities(network_of(exported.network, exported.predictor, Path(folder) / WEIGHTS))
        .eval()
        .requires_grad_(False)
    )


class Prepare:
    """A transform: the path of a DICOM, JPEG or PNG file -> (1, size, size) float32 in 0 to 1, as in training."""

    def __init__(self, folder: str) -> None:
        self.preparation: Preparation = read_exported(Path(folder)).preparation()

    def __call__(self, path: str) -> Tensor:
        try:
            image = prepare(str(path), self.preparation)
        except Unreadable as error:
            raise FdamedError(f"{error.reason}: {error.detail}", str(path), "Leave this file out.") from None
        return torch.from_numpy(image[None].astype(np.float32) / np.float32(255))


def write(folder: Path, about: dict[str, Any], module: nn.Module, card: str) -> None:
    """Add MONAI's files to a folder that has model.json and the weights; `module` is the network of the run."""
    (folder / "models").mkdir()
    with atomic(folder / "models" / "model.pt") as draft:
        torch.save(Probabilities(module).cpu().state_dict(), draft)
    write_json(folder / "configs" / "metadata.json", metadata(about))
    write_json(folder / "configs" / "inference.json", inference(about["preprocessing"] is not None))
    (folder / "docs").mkdir()
    (folder / "docs" / "README.md").write_text(card, encoding="utf-8")


def inference(with_files: bool) -> dict[str, Any]:
    """What MONAI builds: the network and, where the model reads image files, all from paths to probabilities."""
    at = {"bundle_root": ".", "network_def": {"_target_": f"{HERE}.network", "folder": "@bundle_root"}}
    files = {
        "images": [],
        "preprocessing": {"_target_": f"{HERE}.Prepare", "folder": "@bundle_root"},
        "dataset": {"_target_": "Dataset", "data": "@images", "transform": "@preprocessing"},
        "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 16},
        "inferer": {"_target_": "SimpleInferer"},
        "scores": "$[row for batch in @dataloader for row in @inferer(batch, @network_def).tolist()]",
        "run": ["$print(@scores)"],
    }
    return at | (files if with_files else {})


def metadata(about: dict[str, Any]) -> dict[str, Any]:
    """metadata.json as MONAI's bundle specification asks for it."""
    study, versions, classes = about["study"], about["versions"], about["output"]["classes"]
    description = f"{study['title']}, adapted to {study['target']}. {about['output']['meaning']}. See docs/README.md."
    _, *shape = about["input"]["shape"]
    is_image = len(shape) == 3
    common = {"modality": "n/a", "dtype": "float32", "value_range": [0, 1], "is_patch_data": False}
    image = {
        "type": "image" if is_image else "tuples",
        "format": "magnitude",
        "num_channels": shape[0],
        "spatial_shape": shape[1:] if is_image else [],
        "channel_def": {str(i): "gray" if shape[0] == 1 else f"channel {i}" for i in range(shape[0])}
        if is_image
        else {},
    }
    pred = {
        "type": "probabilities",
        "format": "classes",
        "num_channels": len(classes),
        "spatial_shape": [1, len(classes)],
        "channel_def": {str(i): name for i, name in enumerate(classes)},
    }
    return {
        "schema": SCHEMA,
        "version": versions["fdamed"],
        "changelog": {
            versions["fdamed"]: f"exported from {study['study']}/{study['run']}/{study['target']}/{study['seed']}"
        },
        "monai_version": versions["monai"],
        "pytorch_version": versions["torch"],
        "numpy_version": versions["numpy"],
        "required_packages_version": {"fdamed": versions["fdamed"]},
        "task": f"classification of chest radiographs: {', '.join(classes)}",
        "description": description,
        "authors": "not recorded",
        "copyright": "not recorded",
        "intended_use": "research; not a medical device",
        "network_data_format": {"inputs": {"image": image | common}, "outputs": {"pred": pred | common}},
    }
