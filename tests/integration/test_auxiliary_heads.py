"""Auxiliary heads in whole runs: shared ones are a part of what is sent, and of nothing that is kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file

from fdamed.cli.main import main
from fdamed.config import loader as configfile
from fdamed.models.backbone import build
from fdamed.models.flat import layout_of

TINY = Path(__file__).resolve().parents[1] / "workflow" / "tiny.yaml"
SHARED = {"heads": ["sex", "age"], "alpha": 0.5}
RUNS = {
    "plain": {"method": "fedavg"},
    "shared": {"method": "fedavg", "auxiliary": SHARED},
    "private": {"method": "fedavg", "auxiliary": SHARED | {"share": False}},
    "started": {
        "method": "gp",
        "auxiliary": SHARED,
        "warmup": {"method": "gp", "rounds": 1, "average_first": True},
        "then": {"method": "finetune_whole", "rounds": 1},
    },
    "parts": {"method": "fedsr", "samples": 3, "auxiliary": SHARED},
    "norms": {"method": "fedbn", "auxiliary": SHARED},
    "own": {"method": "fedrf_tca", "frequencies": 20, "components": 5, "width": 8, "auxiliary": SHARED},
    "alone": {"method": "target_only", "auxiliary": SHARED},
    "rftca": {"features": "shared", "frequencies": 40, "components": 10},
}
TRAINED = tuple(RUNS)[:-1]
HEADS = (2 + 10) * (128 + 1)
"""Numbers of the heads for sex and age on the 128-d feature."""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a study whose federated runs are finished and scored."""
    folder = tmp_path_factory.mktemp("heads")
    raw = yaml.safe_load(TINY.read_text()) | {"runs": RUNS, "advise": False, "seeds": [0]}
    raw["data"] |= {"root": str(folder / "raw")}
    raw["results"] = str(folder / "results")
    raw["privacy"] |= {"smallest_batch": 2}
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(raw))
    caches = [["cache", "--client", client, "--workers", "1"] for client in raw["split"]["clients"]]
    for stage in (["phantom"], ["ingest"], ["split"], *caches, ["leakage"], ["init", "--seed", "0"]):
        assert main([*stage, "--config", str(path)]) == 0, stage
    assert main(["federate", "--config", str(path), "--runs", *(f"{run}/edema/0" for run in TRAINED)]) == 0
    for run in TRAINED:
        assert command(path, "evaluate", run, "--client", "edema", "--seeds", "0") == 0
    return path


def command(study: Path, name: str, run: str, *more: str) -> int:
    return main([name, "--config", str(study), "--run", run, "--target", "edema", *more])


def folder(study: Path, run: str) -> Path:
    return study.parent / "results" / "tiny" / "runs" / run / "edema" / "0"


def lines(study: Path, run: str, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder(study, run) / f"{name}.jsonl").read_text().splitlines()]


def names(study: Path) -> set[str]:
    """The tensors of the network without heads."""
    return {s.name for s in layout_of(build(configfile.load(study).model))}


def test_shared_heads_are_counted_wherever_a_model_is_sent_and_private_ones_nowhere(study: Path) -> None:
    bare, private, shared = (
        [x for x in lines(study, run, "ledger") if x["kind"] == "weights"] for run in ("plain", "private", "shared")
    )
    assert private == bare and len(shared) == len(bare)
    assert {s["bytes"] - b["bytes"] for s, b in zip(shared, bare, strict=True)} == {4 * HEADS}
    sizes = [json.loads((folder(study, run) / "run.json").read_text())["parameters"] for run in ("plain", "shared")]
    assert sizes[1] - sizes[0] == HEADS


def test_the_heads_loss_is_logged_apart_and_sent_only_where_there_are_heads(study: Path) -> None:
    plain, private, shared = (lines(study, run, "metrics") for run in ("plain", "private", "shared"))
    assert all("train/auxiliary_loss" not in line for line in plain)
    for run, found in (("private", private), ("shared", shared)):
        assert all(line["train/loss"] < 1.5 < line["train/auxiliary_loss"] for line in found), run  # ln 2; ln 2 + ln 10
    steps = {run: {line["step"] for line in lines(study, run, "ledger")} for run in ("plain", "shared", "alone")}
    assert steps["shared"] - steps["plain"] == {"report_auxiliary_loss"}
    assert "report_auxiliary_loss" not in steps["alone"]


def test_no_file_of_a_model_has_heads(study: Path) -> None:
    for run in ("plain", "shared", "private", "started", "alone"):
        assert load_file(folder(study, run) / "theta.safetensors").keys() == names(study), run
    assert load_file(folder(study, "parts") / "theta.safetensors").keys() - names(study) == {
        *("encoder.weight", "encoder.bias"),
    }
    size = layout_of(build(configfile.load(study).model)).size
    for run, name in (("norms", "fedbn.x"), ("own", "fedrf.g")):
        kept = study.parent / "results" / "tiny" / "clients" / "edema" / "models" / run / "edema" / "0.safetensors"
        assert load_file(kept)[name].shape == (size,), run


def test_an_exported_model_scores_as_in_the_study(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = pd.read_parquet(study.parent / "results" / "tiny" / "clients" / "edema" / "order.parquet")
    files = [str(study.parent / "raw" / name) for name in rows[rows["split"] == "test"]["image"]]
    for run in ("shared", "started", "parts", "norms", "own"):
        out = study.parent / "models" / run
        assert command(study, "export", run, "--seed", "0", "--out", str(out), "--without-onnx") == 0
        capsys.readouterr()
        assert main(["predict", "--model", str(out), *files, "--workers", "1", "--json"]) == 0
        found = np.array([image["probability"][1] for image in json.loads(capsys.readouterr().out)["images"]])
        kept = pd.read_parquet(
            study.parent / "results" / "tiny" / "clients" / "edema" / "predictions" / run / "edema" / "0.parquet"
        )
        assert np.abs(found - kept["score"].to_numpy()).max() < 1e-5, run
        assert not any("auxiliary" in name for name in load_file(out / "model.safetensors"))


def test_the_analyses_of_a_finished_run_take_a_model_that_had_heads(study: Path) -> None:
    given, at = ["--config", str(study)], ["--target", "edema", "--seed", "0"]
    for client in ("edema", "lesion", "consolidation"):
        assert main(["features", *given, "--client", client, "--backbone", "shared", *at]) == 0
    assert main(["fit-classical", *given, "--run", "rftca", *at]) == 0
    assert main(["attributes", *given, "--target", "edema"]) == 0
    assert main(["membership", *given, "--client", "lesion"]) == 0
    assert main(["audit", *given, "--target", "edema"]) == 0


def test_one_process_a_client_gives_the_same_bits(study: Path, tmp_path: Path) -> None:
    raw = yaml.safe_load(study.read_text())
    for run in ("shared", "started"):
        before = load_file(folder(study, run) / "theta.safetensors")
        metrics = lines(study, run, "metrics")
        other = tmp_path / "apart.yaml"
        other.write_text(yaml.safe_dump(raw | {"train": raw["train"] | {"transport": "multiprocess"}}))
        assert command(other, "federate", run, "--seed", "0") == 0
        assert json.loads((folder(study, run) / "run.json").read_text())["train"]["transport"] == "multiprocess"
        after = load_file(folder(study, run) / "theta.safetensors")
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
        assert lines(study, run, "metrics") == metrics


def test_the_start_of_gp_asks_the_target_in_its_first_round_and_averages_the_heads(study: Path) -> None:
    first = [line for line in lines(study, "started", "ledger") if line["round"] == 1]
    assert {line["step"] for line in first} == {"compute_update", "report_auxiliary_loss"}
    assert "edema" in {line["to"] for line in first}


def test_a_head_for_which_no_source_has_labels_is_one_clear_error(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clients = study.parent / "results" / "tiny" / "clients"
    orders = {name: clients / name / "order.parquet" for name in ("lesion", "consolidation")}
    kept = {name: path.read_bytes() for name, path in orders.items()}
    try:
        for nth, path in enumerate(orders.values()):
            pd.read_parquet(path).assign(sex=None).to_parquet(path)
            capsys.readouterr()
            refused = command(study, "federate", "shared", "--seed", "0")
            stderr = capsys.readouterr().err
            assert (refused != 0) == (nth == 1), stderr  # one source without labels is no obstacle
        assert "no source has a label for the auxiliary head sex" in stderr and "Traceback" not in stderr
    finally:
        for name, content in kept.items():
            orders[name].write_bytes(content)
