"""Exported networks: the same probabilities in torch and onnxruntime, for any number of images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fdamed.config.study import Model
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.export.onnx_file import LIMIT, furthest, held_to_limit, in_torch, write_onnx
from fdamed.export.runtime import in_onnxruntime
from fdamed.models.backbone import build, initialize
from fdamed.models.flat import FlatModel

onnx = pytest.importorskip("onnx", reason="pip install 'fdamed[export]'")


def network(**settings: object) -> torch.nn.Module:
    net = build(Model(**settings))
    initialize(net, stream(0, "init").torch)
    return FlatModel(net).module


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({"width": 0.125, "hidden": 16}, (1, 32, 32)),
        ({"backbone": "resnet50", "width": 0.0625, "hidden": 8}, (1, 32, 32)),
        ({"backbone": "cnn", "classes": 10}, (1, 28, 28)),
        ({"backbone": "mlp", "inputs": 20, "layers": (8,), "classes": 3}, (20,)),
    ],
)
def test_onnx_gives_torchs_probabilities_for_any_number_of_images(tmp_path: Path, settings, shape) -> None:
    net = network(**settings)
    path = tmp_path / "net.onnx"
    write_onnx(net, torch.rand(2, *shape), path, {"notes": {"size": 32}})
    rng = np.random.default_rng(0)
    batches = [rng.random((n, *shape), dtype=np.float32) for n in (1, 2, 7)]
    there, here = in_onnxruntime(path), in_torch(net)
    assert furthest(here, there, batches) < 1e-5
    p = there(batches[2])
    assert p.shape == (7, settings.get("classes", 2)) and np.allclose(p.sum(1), 1, atol=1e-6)
    assert [tuple(there(x[:1])[0]) for x in batches] != [tuple(p[0])] * 3, "the images matter"


def test_the_file_says_what_it_is_and_names_no_path_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    write_onnx(network(backbone="cnn"), torch.rand(2, 1, 28, 28), path, {"fdamed": "x", "input": {"size": 28}})
    props = {p.key: p.value for p in onnx.load(str(path)).metadata_props}
    assert props["fdamed"] == "x" and json.loads(props["input"]) == {"size": 28}
    content = path.read_bytes()
    assert str(tmp_path).encode() not in content and b"site-packages" not in content and b"fdamed/models" not in content


def test_a_model_whose_forms_differ_is_refused() -> None:
    held_to_limit({"ONNX": LIMIT, "safetensors": 0.0})
    with pytest.raises(FdamedError, match="ONNX model differs"):
        held_to_limit({"safetensors": 0.0, "ONNX": 2 * LIMIT})
    with pytest.raises(FdamedError):
        held_to_limit({"ONNX": float("nan")})
