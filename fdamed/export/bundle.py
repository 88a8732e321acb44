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
COPY_AGAIN = "Copy the folder again or export again."
ABOUT, ONNX, WEIGHTS = "model.json", "model.onnx", "model.safetensors"


@dataclass(frozen=True)
class Exported:
    """A folder with a model, and what its model.json says."""

    folder: Path
    classes: tuple[str, ...]
    threshold: float | None
    """Smallest probability that counts as positive; None with more than two classes."""
    preprocessing: dict[str, Any] | None
    network: dict[str, Any]
    predictor: dict[str, Any] | None
    files: dict[str, str]
    """File -> its digest."""

    def preparation(self) -> Preparation:
        """The preprocessing from a file to the network's input."""
        from fdamed.export.input import Preparation

        if self.preprocessing is None:
            fix = f"Feed arrays of the shape that `input` in {ABOUT} names to {ONNX} yourself."
            what = "this model was trained on a public benchmark set, not on image files"
            raise FdamedError(what, str(self.folder), fix)
        return Preparation.read(self.preprocessing, str(self.folder / ABOUT))

    def scorer(self, threads: int = 1) -> tuple[str, Scorer]:
        """The runtime's name and the function that computes the probabilities: onnxruntime, or torch without it."""
        if ONNX in self.files and has_onnxruntime():
            from fdamed.export.runtime import in_onnxruntime

            return "onnxruntime", in_onnxruntime(self._whole(ONNX), threads)
        import torch

        from fdamed.export.onnx_file import in_torch

        torch.set_num_threads(threads)
        return "torch", in_torch(network_of(self.network, self.predictor, self._whole(WEIGHTS)))

    def _whole(self, name: str) -> Path:
        """The file, if its digest is that of the export."""
        path = self.folder / name
        if not path.is_file() or digest_file(path) != self.files.get(name):
            raise FdamedError(f"{name} is missing or not the file that was exported", str(path), COPY_AGAIN)
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
    try:
        threshold, classes = about["output"]["threshold"], tuple(map(str, about["output"]["classes"]))
        parts = {key: about[key] for key in ("preprocessing", "network", "predictor")}
        limit = None if threshold is None else float(threshold)
        return Exported(folder, classes, limit, **parts, files=dict(about["files"]))
    except (KeyError, TypeError, ValueError):
        raise FdamedError("a value is missing or has the wrong type", str(path), COPY_AGAIN) from None


def network_of(settings: dict[str, Any], predictor: dict[str, Any] | None, weights: Path) -> nn.Module:
    """The network of an exported folder, rebuilt in torch."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    import fdamed.methods  # noqa: F401  (registers the methods)
    from fdamed.config.study import Model
    from fdamed.federation.method import REGISTRY

    try:
        method = REGISTRY[predictor["method"]](**predictor["options"]) if predictor else None
        return rebuilt(Model.model_validate(settings), method, load_file(weights))
    except (KeyError, TypeError, ValueError, SafetensorError):
        what = f"the weights or {ABOUT} are damaged, or those of another model"
        raise FdamedError(what, str(weights), COPY_AGAIN) from None


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
