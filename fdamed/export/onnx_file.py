"""Writes a trained network with its softmax as ONNX, and compares the forms of a model."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fdamed.core.errors import FdamedError
from fdamed.export.runtime import INPUT, OUTPUT, Floats, Scorer

OPSET = 18
LIMIT = 1e-4
"""Largest difference between probabilities of the same model."""


class Probabilities(nn.Module):
    """A network with its softmax."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.network(x).float(), dim=1)


def in_torch(network: nn.Module) -> Scorer:
    """Probabilities by torch, on the CPU."""
    module = Probabilities(network).cpu().eval()

    @torch.inference_mode()
    def score(x: Floats) -> Floats:
        out: Floats = module(torch.from_numpy(x)).numpy()
        return out

    return score


def can_write_onnx() -> bool:
    return all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))


def write_onnx(network: nn.Module, sample: Tensor, path: Path, about: Mapping[str, Any]) -> None:
    """The network with its softmax, for any number of images at a time; `about` goes into the file as JSON texts.

    The exporter that traces needs `onnx` alone and 0.3 s; the one through torch.export needs two more packages and
    11 s of CPU for the same graph (decision 0023). What it wrote is compared with torch by the caller.
    """
    import onnx

    module = Probabilities(network).cpu().eval()
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (sample,),
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_axes={INPUT: {0: "batch"}, OUTPUT: {0: "batch"}},
        )
    model = onnx.load(str(path))
    onnx.checker.check_model(model)
    onnx.helper.set_model_props(model, {k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()})
    onnx.save(model, str(path))


def furthest(first: Scorer, second: Scorer, batches: Sequence[Floats]) -> float:
    """The largest difference between two scorers over all images and classes."""
    return max((float(np.abs(first(x) - second(x)).max()) for x in batches if len(x)), default=0.0)


def held_to_limit(found: Mapping[str, float]) -> None:
    """Refuse a model whose forms disagree."""
    for form, value in found.items():
        if not value <= LIMIT:
            raise FdamedError(
                f"the exported {form} model differs from the trained one by {value:.2g}",
                "export",
                f"Nothing was written (the limit is {LIMIT:g}). Use --without-onnx where it is the ONNX form.",
            )
