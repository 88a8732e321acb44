"""A model exported from a finished study scores the original files as the study did."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from safetensors.torch import load_file, save_file

from fdamed.cli.commands import predict
from fdamed.cli.main import main
from fdamed.config import loader as configfile
from fdamed.config.model import Model
from fdamed.core.files import write_json
from fdamed.core.locks import locked
from fdamed.core.rng import stream
from fdamed.export import bundle as exported_models
from fdamed.models import backbone
from tests.support.dicom_files import dataset, thorax, write

pytest.importorskip("onnxruntime", reason="pip install 'fdamed[export]'")
TINY = Path(__file__).resolve().parents[1] / "workflow" / "tiny.yaml"
RUNS = {
    "fedavg": {},
    "parts": {"method": "fedsr", "samples": 3},
    "kept": {"method": "fedrf_tca", "frequencies": 20, "components": 5, "width": 8},
    "classical": {"method": "tca"},
    "later": {"method": "gp"},
}
TRAINED = ("fedavg", "parts", "kept")

HEADING = "No method can be distinguished from the others at edema on 12 patients and 1 seed."


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a study from pretrained weights whose first three runs are finished and scored."""
    folder = tmp_path_factory.mktemp("home")
    raw = yaml.safe_load(TINY.read_text()) | {"runs": RUNS, "advise": False, "seeds": [0]}
    raw["data"] |= {"root": str(folder / "raw"), "salt": "SALT-of-the-test"}
    raw["results"] = str(folder / "results")
    raw["privacy"] |= {"smallest_cell": 8, "smallest_batch": 2}
    raw["model"]["weights"] = str(folder / "weights.safetensors")
    net = backbone.build(Model.model_validate(raw["model"]))
    backbone.initialize(net, stream(7, "pretrained").torch)
    save_file(net.trunk.half().state_dict(), raw["model"]["weights"])
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(raw))
    given = ["--config", str(path)]
    caches = [["cache", "--client", client, "--workers", "1"] for client in raw["split"]["clients"]]
    for stage in (["phantom"], ["ingest"], ["split"], *caches, ["leakage"], ["init", "--seed", "0"]):
        assert main([*stage, *given]) == 0, stage
    assert main(["federate", *given, "--runs", *(f"{run}/edema/0" for run in TRAINED)]) == 0
    for run in TRAINED:
        assert main(["evaluate", *given, "--run", run, "--target", "edema", "--client", "edema", "--seeds", "0"]) == 0
    assert main(["audit", *given, "--target", "edema"]) == 0
    write_json(root(path) / "report" / "headline.json", {"edema": {"rule": "tied", "sentences": [HEADING, "More."]}})
    write_json(root(path) / "clients" / "config.kept.json", configfile.load(path).model_dump(mode="json"))
    return path


@pytest.fixture(scope="module")
def models(study: Path) -> dict[str, Path]:
    """Run -> its exported folder."""
    out = {run: study.parent / "models" / run for run in TRAINED}
    for run, folder in out.items():
        assert export(study, run, folder) == 0
    return out


def root(study: Path) -> Path:
    return study.parent / "results" / "tiny"


def export(study: Path, run: str, out: Path, *more: str) -> int:
    names = ["--run", run, "--target", "edema", "--seed", "0"]
    return main(["export", "--config", str(study), *names, "--out", str(out), *more])


def originals(study: Path) -> list[str]:
    """The files of the target's test part, in the order of its predictions."""
    rows = pd.read_parquet(root(study) / "clients" / "edema" / "order.parquet")
    return [str(study.parent / "raw" / name) for name in rows[rows["split"] == "test"]["image"]]


def trained_images(study: Path) -> int:
    """The number of images that a hospital sends with every update."""
    rows = pd.read_parquet(root(study) / "clients" / "edema" / "order.parquet")
    return int(rows["split"].isin(("train", "adapt")).sum())


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
@pytest.mark.parametrize("run", TRAINED)
def test_original_files_score_as_in_the_study(study: Path, models, run: str, runtime: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(exported_models, "has_onnxruntime", lambda: runtime == "onnxruntime")
    command = ["predict", "--model", str(models[run]), *originals(study), "--workers", "1"]
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    found = np.array([image["probability"][1] for image in result["images"]])
    kept = pd.read_parquet(root(study) / "clients" / "edema" / "predictions" / run / "edema" / "0.parquet")
    assert result["runtime"] == runtime and [i["file"] for i in result["images"]] == originals(study)
    assert len(found) == len(kept) > 5
    assert np.abs(found - kept["score"].to_numpy()).max() < 1e-5


SCHEMA = {
    "type": "object",
    "required": [
        *("version", "monai_version", "pytorch_version", "numpy_version", "required_packages_version", "task"),
        *("description", "authors", "copyright", "network_data_format"),
    ],
    "$defs": {
        "tensors": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {
                "required": [
                    "type",
                    "format",
                    "num_channels",
                    "spatial_shape",
                    "dtype",
                    "value_range",
                    "is_patch_data",
                ],
                "properties": {
                    "type": {"enum": ["image", "probabilities"]},
                    "num_channels": {"type": "integer", "minimum": 1},
                    "channel_def": {"additionalProperties": {"type": "string"}},
                },
            },
        }
    },
    "properties": {
        "network_data_format": {
            "required": ["inputs", "outputs"],
            "properties": {"inputs": {"$ref": "#/$defs/tensors"}, "outputs": {"$ref": "#/$defs/tensors"}},
        }
    },
}
"""What MONAI's specification of bundles asks for; its own schema would be downloaded."""
IN_MONAI = """
import json, os, sys
import monai.bundle, torch
from monai.bundle import ConfigParser
bundle, schema, script, *images = sys.argv[1:]
place = {"bundle_root": bundle}
config, meta = f"{bundle}/configs/inference.json", f"{bundle}/configs/metadata.json"
monai.bundle.verify_metadata(meta_file=meta, filepath=schema)
parser = ConfigParser()
parser.read_config(config)
parser.update(place | {"images": images})
scores = parser.get_parsed_content("scores")
batch = torch.stack([parser.get_parsed_content("preprocessing")(path) for path in images])
state = torch.load(f"{bundle}/models/model.pt", weights_only=True)
net = parser.get_parsed_content("network_def")
same = all(torch.equal(state[k], v) for k, v in net.state_dict().items()) and len(state) == len(net.state_dict())
monai.bundle.ckpt_export(
    filepath=script, ckpt_file=f"{bundle}/models/model.pt", meta_file=meta, config_file=config,
    use_trace=True, input_shape=list(batch.shape), **place,
)
traced = torch.jit.load(script)(batch).tolist()
print(json.dumps([scores, traced, same]))
"""


@pytest.mark.parametrize("run", ["fedavg", "parts"])
def test_a_monai_bundle_is_valid_and_scores_as_predict_does(study: Path, run: str, tmp_path: Path, capsys) -> None:
    """MONAI runs in a process of its own: fdamed's never evaluate what a bundle says."""
    bundle, schema = tmp_path / "bundle", tmp_path / "schema.json"
    assert export(study, run, bundle, "--bundle") == 0
    schema.write_text(json.dumps(SCHEMA))  # verify_metadata takes a file that is there already
    images = originals(study)[:3]
    environment = {k: v for k, v in os.environ.items() if k != "MONAI_EVAL_EXPR"}
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        IN_MONAI,
        str(bundle),
        str(schema),
        str(tmp_path / "model.ts"),
        *images,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    scores, traced, same = json.loads(done.stdout.splitlines()[-1])
    capsys.readouterr()
    assert main(["predict", "--model", str(bundle), *images, "--workers", "1", "--json"]) == 0
    expected = [image["probability"] for image in json.loads(capsys.readouterr().out)["images"]]
    assert np.abs(np.array(scores) - expected).max() < 1e-5 and len(expected) == 3
    assert same and (run == "parts" or np.abs(np.array(traced) - expected).max() < 1e-5)
    metadata = json.loads((bundle / "configs/metadata.json").read_text())
    assert metadata["network_data_format"]["outputs"]["pred"]["channel_def"] == {"0": "no Edema", "1": "Edema"}
    assert (bundle / "docs/README.md").read_text() == (bundle / "model_card.md").read_text()
    for path in (p for p in bundle.rglob("*") if p.is_file()):
        assert str(study.parent).encode() not in path.read_bytes(), path.name


def test_the_check_of_metadata_can_fail(tmp_path: Path) -> None:
    from monai.bundle import verify_metadata

    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "metadata.json").write_text(json.dumps({"schema": "https://example.org", "version": "1"}))
    with pytest.raises(ValueError, match="required property"):
        verify_metadata(meta_file=str(tmp_path / "metadata.json"), filepath=str(tmp_path / "schema.json"))


def test_the_forms_of_the_model_agree_and_the_folder_says_how_well(study: Path, models) -> None:
    for run, folder in models.items():
        about = json.loads((folder / "model.json").read_text())
        parity = about["parity"]
        assert parity["max_difference"]["safetensors"] < 1e-6 and parity["max_difference"]["ONNX"] < 1e-4
        assert parity["images"] == min(64, trained_images(study)), "the size of the test part may be hidden"
        assert (about["predictor"] is None) == (run == "fedavg")
        assert about["output"]["classes"] == ["no Edema", "Edema"] and about["output"]["threshold"] == 0.5
        assert about["preprocessing"]["steps"][0]["views"] == ["frontal"]
        assert about["network"]["weights"] is None and about["network"]["normalize"] == "imagenet"
        assert "normalizes it with ImageNet's mean" in (folder / "model_card.md").read_text()
        assert sorted(p.name for p in folder.iterdir()) == [
            *("model.json", "model.onnx", "model.safetensors", "model_card.html", "model_card.md"),
        ]
        assert not list(folder.parent.glob(".*")), "nothing half-written is left"


def test_nothing_of_a_patient_or_of_the_machine_is_in_the_folder(study: Path, models) -> None:
    rows = pd.concat([pd.read_parquet(p) for p in root(study).glob("clients/*/order.parquet")])
    words = {*rows["patient"], *rows["image"], "SALT-of-the-test", str(study.parent), "site-packages"}
    images = np.load(root(study) / "clients" / "edema" / "images.npy")
    for folder in models.values():
        for path in folder.iterdir():
            content = path.read_bytes()
            assert not [w for w in words if w.encode() in content], path
            assert not any(image.tobytes() in content for image in images), path


def test_a_run_is_found_by_its_folder_with_the_configuration_it_was_trained_under(study: Path, models, capsys) -> None:
    out = study.parent / "by_folder"
    assert main(["export", str(root(study) / "runs" / "fedavg" / "edema" / "0"), "--out", str(out), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about == json.loads((models["fedavg"] / "model.json").read_text())
    assert (out / "model_card.md").read_text() == (models["fedavg"] / "model_card.md").read_text()


def test_an_export_by_folder_shows_what_the_last_run_showed_and_never_what_an_older_configuration_did(
    study: Path, tmp_path: Path
) -> None:
    """The study was run as public, then privately again; the older file may be the newer one on the disk."""
    clients, folder = root(study) / "clients", root(study) / "runs" / "fedavg" / "edema" / "0"
    kept = json.loads((clients / "config.kept.json").read_text())

    def hidden(name: str) -> bool:
        assert main(["export", str(folder), "--out", str(tmp_path / name)]) == 0
        return "fewer than 1000" in (tmp_path / name / "model_card.md").read_text()

    names = {"config.private.json": {"smallest_cell": 1000}, "config.public.json": {"public": True}}
    try:
        for name, privacy in names.items():
            write_json(clients / name, kept | {"privacy": kept["privacy"] | privacy})
        assert hidden("unknown"), "the strictest, where nothing says which was the last"
        for name in names:
            (clients / "last_config").write_text(f"{name}\n")
            assert hidden(name) == ("private" in name)
    finally:
        for name in (*names, "last_config"):
            (clients / name).unlink(missing_ok=True)


def test_what_cannot_be_exported_says_why(study: Path, tmp_path: Path, capsys) -> None:
    changed = tmp_path / "changed.yaml"
    changed.write_text(study.read_text().replace("rounds: 2", "rounds: 3"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    for call, words in (
        (lambda: export(study, "classical", tmp_path / "out"), "tca has no model"),
        (lambda: export(study, "later", tmp_path / "out"), "this run is not finished"),
        (lambda: export(study, "none", tmp_path / "out"), "no run 'none'"),
        (lambda: export(changed, "fedavg", tmp_path / "out"), "other settings"),
        (lambda: export(study, "fedavg", tmp_path / "full"), "not empty"),
        (lambda: main(["export", str(tmp_path), "--out", str(tmp_path / "out")]), "not the folder of a run"),
        (lambda: main(["export", "--out", str(tmp_path / "out")]), "no run was named"),
    ):
        assert call() == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change", [{"image": {"equalize": True}}, {"split": {"uncertain": "ones"}}, {"split": {"positive_is": 0}}]
)
def test_a_model_is_never_exported_with_images_or_labels_of_another_configuration(
    study: Path, models, change: dict, tmp_path: Path, capsys
) -> None:
    raw = yaml.safe_load(study.read_text())
    for section, values in change.items():
        raw[section] = raw.get(section, {}) | values
    changed = tmp_path / "changed.yaml"
    changed.write_text(yaml.safe_dump(raw))
    assert export(changed, "fedavg", tmp_path / "out") == 2
    assert "other images or labels" in capsys.readouterr().err
    newest = root(study) / "clients" / "config.newest.json"  # as the workflow keeps it, also for a dry run
    write_json(newest, configfile.load(changed).model_dump(mode="json"))
    try:
        folder = root(study) / "runs" / "fedavg" / "edema" / "0"
        assert main(["export", str(folder), "--out", str(tmp_path / "out"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads((models["fedavg"] / "model.json").read_text())
    finally:
        newest.unlink()


def test_a_run_that_does_not_say_how_its_images_were_made_is_not_exported(
    study: Path, models, tmp_path: Path, capsys
) -> None:
    folder = root(study) / "runs" / "fedavg" / "edema" / "0"
    content = (folder / "run.json").read_text()
    facts = json.loads(content)
    del facts["digests"]["images"]
    try:
        write_json(folder / "run.json", facts)
        assert main(["export", str(folder), "--out", str(tmp_path / "by_folder")]) == 2
        assert "was not found in its study" in capsys.readouterr().err
        assert export(study, "fedavg", tmp_path / "named") == 2
        assert "other images or labels" in capsys.readouterr().err
    finally:
        (folder / "run.json").write_text(content)


def test_paths_and_the_salt_do_not_decide_images_and_labels(study: Path, tmp_path: Path) -> None:
    from fdamed.pipeline.fingerprint import digest_images

    config = configfile.load(study)
    moved = config.model_copy(update={"data": config.data.model_copy(update={"root": "/else", "salt": "other"})})
    other = config.model_copy(update={"image": config.image.model_copy(update={"equalize": not config.image.equalize})})
    assert digest_images(moved) == digest_images(config) != digest_images(other)


def test_a_model_that_differs_in_onnx_is_not_written(study: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    from fdamed.export import runtime

    real = runtime.in_onnxruntime
    monkeypatch.setattr(runtime, "in_onnxruntime", lambda *a: lambda x: real(*a)(x) + np.float32(0.001))
    assert export(study, "fedavg", tmp_path / "out") == 2
    assert "ONNX model differs" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_the_card_shows_what_was_measured_and_what_was_not(study: Path, models) -> None:
    card = (models["fedavg"] / "model_card.md").read_text()
    for heading in (
        *("Model details", "Intended use", "Training and evaluation data", "What left each hospital"),
        *("Scores on the target's test part", "Scores by subgroup", "Calibration", "Privacy", "Limits", "Provenance"),
    ):
        assert f"\n## {heading}\n" in card
    assert f"All methods of the study: {HEADING}\n" in card and "More." not in card
    assert "synthetic phantoms" in card and "Not** for diagnosis" in card
    assert "Membership inference: not measured." in card
    assert "Reconstruction of images from this model: not measured." in card
    score = json.loads((root(study) / "clients/edema/scores/fedavg/edema/0.json").read_text())
    assert score["positives"] < 8, "the study's test part is small enough to be hidden"
    assert "suppressed: fewer than 8 patients, or images of a class" in card and f"{score['auc']:.3f}" not in card
    assert "<8" in card and "weights" in card
    assert "kept inside the hospital" in (models["kept"] / "model_card.md").read_text()
    page = (models["fedavg"] / "model_card.html").read_text()
    assert "<h2>Limits</h2>" in page and "<script" not in page and "http" not in page


def test_csv_names_files_as_given_and_lists_the_refused_with_their_reasons(
    study: Path, models, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images" / "deep").mkdir(parents=True)
    shutil.copy(originals(study)[0], "images/one.jpg")
    write(tmp_path / "images" / "deep" / "two.dcm", dataset(thorax()))
    write(tmp_path / "images" / "lateral.dcm", dataset(thorax(), ViewPosition="LL"))
    (tmp_path / "images" / "notes.txt").write_text("x")
    model = str(models["fedavg"])
    monkeypatch.setattr(predict, "BATCH", 2)  # the first batch holds no image, the second two, the last none
    assert main(["predict", "--model", model, "images", "gone.png", "--workers", "1"]) == 0
    output = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(output.out)))
    assert [(r["file"], r["reason"]) for r in rows] == [
        ("images/lateral.dcm", "OTHER_VIEW"),
        ("images/notes.txt", "NOT_AN_IMAGE"),
        ("images/one.jpg", ""),
        ("images/deep/two.dcm", ""),
        ("gone.png", "MISSING"),
    ]
    for row in rows:
        assert bool(row["score"]) == bool(row["call"]) == (not row["reason"]) == (not row["detail"])
        if row["score"]:
            assert row["call"] == ("Edema" if float(row["score"]) >= 0.5 else "no Edema")
    assert "2 of 5 files scored with onnxruntime, OTHER_VIEW 1" in output.err
    assert not {"CANARY", "Doe"} & {w for w in ("CANARY", "Doe") if w in output.out + output.err}
    assert main(["predict", "--model", model, "images/notes.txt", "--out", "scores.csv", "--workers", "1"]) == 2
    output = capsys.readouterr()
    assert output.out == "" and "none of the 1 files could be scored" in output.err
    assert "NOT_AN_IMAGE" in (tmp_path / "scores.csv").read_text()


def test_a_name_that_is_no_text_goes_out_with_its_own_bytes(study: Path, models, tmp_path: Path, capfdbinary) -> None:
    name = os.fsdecode(bytes(tmp_path) + b"/Z\xfcrich, 1.jpg")
    shutil.copy(originals(study)[0], name)
    command = ["predict", "--model", str(models["fedavg"]), name, "--workers", "1"]
    assert main(command) == 0
    assert b"/Z\xfcrich, 1.jpg" in capfdbinary.readouterr().out
    assert main([*command, "--json"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["images"][0]["file"] == name


def test_without_onnxruntime_torch_scores_and_a_changed_file_is_refused(
    study: Path, models, tmp_path: Path, monkeypatch, capsys
) -> None:
    model = tmp_path / "model"
    shutil.copytree(models["fedavg"], model)
    command = ["predict", "--model", str(model), originals(study)[0], "--workers", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(exported_models, "has_onnxruntime", lambda: False)
        assert main(command) == 0
        assert "scored with torch" in capsys.readouterr().err
        weights = load_file(model / "model.safetensors")
        save_file({k: v + 1 for k, v in weights.items()}, model / "model.safetensors")
        assert main(command) == 2
        assert "not the file that was exported" in capsys.readouterr().err
    about = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps(about | {"preprocessing": None}))
    assert main(command) == 2 and "public benchmark set" in capsys.readouterr().err
    for key in ("output", "preprocessing", "network", "predictor", "files"):
        (model / "model.json").write_text(json.dumps({k: v for k, v in about.items() if k != key}))
        assert main(command) == 2 and "a value is missing" in capsys.readouterr().err, key
    for wrong in ({"output": {"classes": None, "threshold": 0.5}}, {"files": ["model.onnx"]}):
        (model / "model.json").write_text(json.dumps(about | wrong))
        assert main(command) == 2 and "has the wrong type" in capsys.readouterr().err, wrong
    (model / "model.json").unlink()
    assert main(command) == 2 and "there is no model.json" in capsys.readouterr().err


def test_status_shows_done_running_failed_and_left(study: Path, capsys) -> None:
    logs, folder = root(study) / "logs", root(study) / "runs" / "later" / "edema" / "0"
    command = ["status", "--config", str(study)]

    def state() -> dict[str, dict]:
        assert main([*command, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["finished"] is False and result["files"]["audit"] and not result["files"]["report"]
        return {s["run"]: s for s in result["each"]}

    before = state()
    assert {run: s["state"] for run, s in before.items()} == dict.fromkeys(TRAINED, "done") | {
        "classical": "pending",
        "later": "pending",
    }
    assert all(before[run]["scored"] for run in TRAINED)
    with locked(folder):
        assert state()["later"]["state"] == "running"
    logs.mkdir(exist_ok=True)
    (logs / "federate.later.edema.0.log").write_text("round 1/2\nerror: the loss is not finite\nwhere: x\nto do: y\n")
    assert (state()["later"]["state"], state()["later"]["why"]) == ("failed", "the loss is not finite")
    assert main(command) == 0
    assert "failed: later/edema/0: the loss is not finite" in capsys.readouterr().out
    (logs / "federate.later.edema.0.log").unlink()
