"""A small study through Snakemake, from images to weights: the final weights are as pinned (tests/support/pins.py)."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from tests.support import pins
from tests.workflow.test_whole_study import REPO, snakemake

RUNS = ("fedavg", "gp", "kd3a")


def test_a_study_ends_with_the_pinned_weights(tmp_path: Path) -> None:
    folders = {run: f"results/pinned/runs/{run}/edema/0" for run in RUNS}
    wanted = [f"{folder}/theta.safetensors" for folder in folders.values()]
    done = snakemake(tmp_path, "--", *wanted, config=REPO / "tests" / "workflow" / "pinned.yaml")
    assert done.returncode == 0, done.stderr[-6000:]
    for run, file in zip(RUNS, wanted, strict=True):
        pins.check("study", run, {"weights": pins.of_tensors(load_file(tmp_path / file))})
    pins.check_complete("study", RUNS)
