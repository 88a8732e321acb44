"""The folder that `fdamed export` writes and `fdamed predict` reads, described by its model.json."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdamed.core.errors import FdamedError
from fdamed.core.files import digest_file, read_json

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fdamed.export.input import Preparation
    from fdamed.export.runtime import Scorer
    from fdamed.federation.method import Method

FORMAT = "fdamed model 1"
ABOUT, ONNX, WEIGHTS = "model.json", "model.onnx", "model.safetensors"


@dataclass(frozen=True)
class Exported:
    """A folder with a model, and what its model.json says."""

    folder: Path
    about: dict[str, Any]

    @property
    def classes(self) -> list[str]:
        return [str(name) for name in self.about["output"]["classes"]]

    @property
    def threshold(self) -> float | None:
        """Smallest probability that counts as positive; None with more than two classes."""
        given = self.about["output"]["threshold"]
        return None if given is None else float(given)

    def preparation(self) -> Preparation:
        """The preprocessing from a file to the network's input."""
        from fdamed.export.input import Preparation

        content = self.about["preprocessing"]
        if content is None:
            fix = f"Feed arrays of the shape that `input` in {ABOUT} names to {ONNX} yourself."
            what = "this model was trained on a public benchmark set, not on image files"
            raise FdamedError(what, str(self.folder), fix)
        return Preparation.read(content, str(self.folder / ABOUT))

    def scorer(self, threads: int = 1) -> tuple[str, Scorer]:
        """The runtime's name and the function that computes the probabilities: onnxruntime, or torch without it."""
        if ONNX in self.about["files"] and has_onnxruntime():
            from fdamed.export.runtime import in_onnxruntime

            return "onnxruntime", in_onnxruntime(self._whole(ONNX), threads)
        import torch

        from fdamed.export.onnx_file import in_torch

        torch.set_num_threads(threads)
        return "torch", in_torch(network_of(self.about, self._whole(WEIGHTS)))

    def _whole(self, name: str) -> Path:
        """The file, if its digest is that of the export."""
        path = self.folder / name
        if not path.is_file() or digest_file(path) != self.about["files"].get(name):
            fix = "Copy the folder again or export again."
            raise FdamedError(f"{name} is missing or not the file that was exported", str(path), fix)
        return path


def has_onnxruntime() -> bool:
    return importlib.util.find_spec("onnxruntime") is not None


def read_exported(folder: Path) -> Exported:
    """The model of a folder, if it is one."""
    path = folder / ABOUT
    fix = "Give the folder that `fdamed export --out FOLDER` wrote."
    if not path.is_file():
        raise FdamedError(f"there is no {ABOUT}", str(folder), fix)
    try:
        about = read_json(path)
    except ValueError:
        about = None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise FdamedError("this is not a model of this version of fdamed", str(path), fix)
    return Exported(folder, about)


def network_of(about: dict[str, Any], weights: Path) -> nn.Module:
    """The network of an exported folder, rebuilt in torch."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from fdamed.config.study import Model

    predictor = about["predictor"]
    method = None
    if predictor is not None:
        import fdamed.methods  # noqa: F401  (registers the methods)
        from fdamed.federation.method import REGISTRY

        method = REGISTRY[predictor["method"]](**predictor["options"])
    try:
        return rebuilt(Model.model_validate(about["network"]), method, load_file(weights))
    except (KeyError, ValueError, SafetensorError):
        what = "the weights are damaged, or those of another model"
        raise FdamedError(what, str(weights), "Run `fdamed export` again.") from None


def rebuilt(model: Any, method: Method[Any] | None, tensors: dict[str, Tensor]) -> nn.Module:
    """The module that predicts with these tensors; `method`: if it is more than the bare network."""
    from fdamed.models.backbone import build
    from fdamed.models.flat import FlatModel, vector_from

    network = build(model)
    if method is None:
        flat = FlatModel(network)
        flat.load(vector_from(tensors, flat.layout))
        return flat.module
    # Copies are aligned in memory, tensors of a file need not be, and kernels round differently then.
    whole = method.predictor(network, {name: tensor.clone() for name, tensor in tensors.items()})
    if whole is None:
        raise ValueError("a part of the model is missing")
    return whole
