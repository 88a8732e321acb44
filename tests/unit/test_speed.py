"""`fdamed bench`, and the memory that a training would take on a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fdamed.cli.commands import doctor
from fdamed.cli.main import main
from fdamed.config.loader import catalog, parse
from fdamed.config.study import Config
from fdamed.core.gpus import Gpu
from fdamed.pipeline import speed
from fdamed.pipeline.checks import machine
from fdamed.pipeline.speed import gpu_memory, images_to_train, largest_layer
from fdamed.training.local import PREDICTED

RAW: dict[str, Any] = {
    "study": "small",
    "data": {"layout": "chexpert", "root": "nowhere"},
    "split": {
        "by": "condition", "clients": {"A": "Edema", "B": "Pneumonia"}, "target": "B", "per_class": 50, "labeled": 10,
    },
    "image": {"size": 32},
    "model": {"width": 0.0625},
    "train": {"rounds": 3, "source": {"lr": 0.001, "batch": 8, "epochs": 2}, "target": {"lr": 0.001, "batch": 4}},
    "privacy": "public",
    "runs": {"fedavg": {}, "finetune": {}},
    "seeds": [0, 1],
}  # fmt: skip


def config(**train: Any) -> Config:
    return parse(RAW | {"train": RAW["train"] | train}, "test")


def test_the_images_of_a_study_are_those_of_all_runs_rounds_epochs_and_seeds() -> None:
    """fedavg: 3 rounds of 2 epochs over A's 100 images; finetune: the same, and B's 10 labeled ones once a round."""
    assert images_to_train(config(), catalog()) == 2 * (3 * 200 + 3 * (200 + 10))


def test_memory_on_a_gpu_is_four_times_the_parameters_and_activations_by_batch_and_precision() -> None:
    from fdamed.models.backbone import build

    plain = gpu_memory(config())
    parameters = sum(p.numel() for p in build(config().model).parameters())
    assert plain["weights, gradients and moments"] == 16 * parameters
    twice = gpu_memory(config(source={"lr": 0.001, "batch": 16}))
    assert twice["activations of 16 images"] == pytest.approx(2 * plain["activations of 8 images"], rel=1e-3)
    half = gpu_memory(config(precision="bfloat16"))
    assert half["activations of 8 images"] == pytest.approx(plain["activations of 8 images"] / 2, rel=1e-3)


def test_memory_on_a_gpu_is_that_of_the_run_with_the_largest_batch() -> None:
    runs = {"fedavg": {}, "finetune": {"train": {"target": {"batch": 32, "lr": 0.001}}}}
    assert "activations of 32 images" in gpu_memory(parse(RAW | {"runs": runs}, "test"))


def test_prediction_holds_the_input_and_the_output_of_one_layer_at_a_time() -> None:
    """Feature vectors of 1000 numbers, a layer to 500 and one to 10: 256 x 1500 x 4 bytes."""
    network = torch.nn.Sequential(torch.nn.Linear(1000, 500), torch.nn.ReLU(), torch.nn.Linear(500, 10))
    assert largest_layer(network, torch.zeros(2, 1000)) == 2 * 1500 * 4
    small = gpu_memory(config(source={"lr": 0.001, "batch": 2}, target={"lr": 0.001, "batch": 2}))
    large = gpu_memory(config(source={"lr": 0.001, "batch": 512}))
    more = f"prediction of {PREDICTED} images, beyond that"
    # The first normalization: 8 channels of 16 x 16 in and out.
    expected = PREDICTED * 2 * 8 * 16**2 * 4
    assert small[more] + small["activations of 2 images"] == pytest.approx(expected, rel=1e-6)
    assert large[more] == 0


@pytest.mark.parametrize("epochs", [1, 4])
def test_bench_compares_two_loops_over_the_same_images(epochs: int, monkeypatch) -> None:
    seen = []

    def counted(model: Any, data: Any, recipe: Any, *rest: Any, **options: Any) -> None:
        seen.append(recipe.images_seen(len(data)))
        assert torch.get_deterministic_debug_mode() == 1

    monkeypatch.setattr(speed, "fit", counted)
    speed.measure(config(source={"lr": 0.001, "batch": 8, "epochs": epochs, "steps": 2}), torch.device("cpu"), 0.0)
    assert set(seen) == {speed.BATCHES * 8}
    assert torch.get_deterministic_debug_mode() == 0


@pytest.mark.parametrize(("memory", "jobs", "status"), [(40960, 1, "ok"), (400, 1, "fail"), (1000, 2, "fail")])
def test_doctor_says_when_training_does_not_fit_into_the_gpu(memory: int, jobs: int, status: str, monkeypatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: (Gpu("GPU-a", "GB10", "580", 0), Gpu("GPU-b", "T4", "550", memory)))
    monkeypatch.setattr(machine, "describe", lambda config: {"cores": 1, "gpu": True, "free_gb": 10})
    report = doctor.examine(config(device="cuda", jobs_per_gpu=jobs), cluster=False)
    (found,) = [check for check in report.checks if check["check"] == "gpu memory"]
    assert found["status"] == status
    assert "activations of 8 images" in found["detail"]


def test_doctor_says_nothing_about_gpu_memory_where_the_cpu_trains() -> None:
    report = doctor.examine(config(device="cpu"), cluster=False)
    assert not [check for check in report.checks if check["check"] == "gpu memory"]


def test_bench_prints_speed_beside_a_loop_written_by_hand_and_the_studys_duration(tmp_path: Path, capsys) -> None:
    file = tmp_path / "study.json"
    file.write_text(json.dumps(RAW | {"train": RAW["train"] | {"device": "cpu"}}))
    assert main(["bench", "--config", str(file), "--seconds", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images_per_s"] > 0 and found["bare_images_per_s"] > 0 and found["peak_mb"] > 0
    assert (found["device"], found["size"], found["batch"], found["images_to_train"]) == ("cpu", 32, 8, 2460)
    assert main(["bench", "--config", str(file), "--seconds", "0"]) == 0
    assert "local training alone would take at most about" in capsys.readouterr().out
