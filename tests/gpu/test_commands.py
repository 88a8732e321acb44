"""The commands that take a GPU, on a pretended one: training, evaluation, features, audits give the CPU's files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from fdamed.cli.main import main

pytestmark = pytest.mark.gpu
TINY = Path(__file__).resolve().parents[1] / "workflow" / "tiny.yaml"
RUN = ("--target", "edema", "--seed", "0")
WHERE = ("--client", "edema")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Device -> the configuration of a study that is ready to be trained on it."""
    folder = tmp_path_factory.mktemp("commands")
    raw = yaml.safe_load(TINY.read_text()) | {"runs": {"gp": {"beta": 0.5}}, "answers_mb": 0, "seeds": [0]}
    raw["data"]["root"] = str(folder / "raw")
    out = {}
    for device in ("cpu", "cuda"):
        raw["results"], raw["train"]["device"] = str(folder / device), device
        out[device] = folder / f"{device}.yaml"
        out[device].write_text(yaml.safe_dump(raw))
    caches = [["cache", "--client", client] for client in raw["split"]["clients"]]
    for stage in (["phantom"], ["ingest"], ["split"], *caches, ["leakage"], ["init", "--seed", "0"]):
        assert main([*stage, "--config", str(out["cpu"])]) == 0, stage
    shutil.copytree(folder / "cpu", folder / "cuda")
    return out


def run_all(config: Path) -> dict[str, bytes]:
    """Every command that takes a GPU -> the files with numbers."""
    commands = (
        ["federate", "--run", "gp", *RUN],
        ["evaluate", "--target", "edema", *WHERE],
        ["features", *WHERE, "--backbone", "gp", *RUN],
        ["membership", *WHERE],
        ["attributes", "--target", "edema"],
    )
    for command in commands:
        assert main([*command, "--config", str(config)]) == 0, command
    root = config.with_suffix("") / "tiny"
    files = ["runs/gp/edema/0/theta.safetensors", "runs/gp/edema/0/metrics.jsonl", "membership/edema.json"]
    files += ["attributes/edema.json"]
    features = load_file(root / "clients/edema/features/gp/edema/0.safetensors")  # its header has no fixed order
    return {file: (root / file).read_bytes() for file in files} | {k: v.numpy().tobytes() for k, v in features.items()}


def test_the_commands_write_the_same_bytes_on_a_gpu(prepared: dict[str, Path], gpu) -> None:
    expected = run_all(prepared["cpu"])
    with gpu():
        found = run_all(prepared["cuda"])
    assert found == expected
    facts = json.loads((prepared["cuda"].with_suffix("") / "tiny/runs/gp/edema/0/run.json").read_text())
    assert facts["device"] == "cuda"
