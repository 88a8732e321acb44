"""Classical runs of a study: features are pooled only where clients release them, and every message is counted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fdamed.classical.messages import send_rows
from fdamed.cli.commands.federate import resident
from fdamed.cli.main import main
from fdamed.config.loader import load
from fdamed.config.study import Config
from fdamed.core.counts import write_counts
from fdamed.core.errors import FdamedError
from fdamed.core.files import read_lines
from fdamed.federation.client import check_release

SIDE, HIDDEN, CLASSES = 32, 128, 2
CLIENTS = {"north": "a", "south": "b", "target": "c"}
PARTS = ["adapt"] * 12 + ["test"] * 20 + ["train"] * 28 + ["val"] * 6
LEARNED, JUDGED = 40, 26
FILLED = 5
"""Rows of zeros with which the 6 validation images look like the 11 that may be shown."""
RELEASE = ["weights", "update", "statistic", "features", "scalar", "count"]


def write_client(folder: Path, seed: int, flipped: bool = False) -> None:
    """Positives have a bright left half; every hospital has a brightness of its own."""
    rng = np.random.default_rng(seed)
    bright = np.arange(len(PARTS)) % 2
    images = rng.integers(0, 60, (len(PARTS), SIDE, SIDE)) + 12 * seed
    images[:, :, : SIDE // 2] += 90 * bright[:, None, None]
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "images.npy", images.astype(np.uint8))
    y = bright.copy()
    if flipped:
        y[:12] = 1 - y[:12]
        y[32:60] = 1 - y[32:60]
    order = {"split": PARTS, "y": y.astype(np.int8), "patient": [f"p{i}" for i in range(len(PARTS))]}
    pd.DataFrame(order | {"sex": "F", "age": 60.0, "race": "a", "view": "frontal"}).to_parquet(folder / "order.parquet")


def write_study(folder: Path, release: list[str] = RELEASE, flipped: bool = False, **train: object) -> Path:
    """Three hospitals and a configuration with every classical row; the path of the configuration."""
    recipe = {"lr": 0.001, "batch": 8}
    config = {
        "study": "small",
        "results": str(folder / "results"),
        "data": {"layout": "chexpert", "root": str(folder)},
        "split": {"by": "race", "label": "Edema", "clients": CLIENTS, "target": "target", "labeled": 12},
        "image": {"size": SIDE},
        "privacy": {"release": release, "smallest_images": 1, "smallest_steps": 1},
        "model": {"width": 0.0625, "hidden": HIDDEN},
        "train": {"rounds": 1, "source": recipe, "target": recipe, "device": "cpu", **train},
        "seeds": [0],
        "runs": {
            "fedavg": {},
            "not_aligned": {},
            "tca": {"components": 10},
            "rtca": {"components": 10},
            "rftca": {"frequencies": 30, "components": 10, "choose": True},
            "coral": {"classifier": "svm", "zscore": "domain"},
            "jda": {"components": 10, "classifier": "1nn"},
            "gfk": {"components": 5, "zscore": "domain"},
            "dann": {"epochs": 3},
            "trained": {"method": "tca", "features": "fedavg"},
        },
    }
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    root = folder / "results" / "small"
    for seed, client in enumerate(CLIENTS):
        write_client(root / "clients" / client, seed, flipped and client == "target")
    clients = {
        client: {"images": {"train": 1000, "adapt": 1000}, "positives": {"train": 500, "adapt": 500}}
        for client in CLIENTS
    }
    write_counts(root, "cohort.json", {"hash": "h", "clients": clients})
    (root / "leakage.json").write_text("{}")
    return path


def stage(command: str, config: Path, *more: str) -> int:
    return main([command, "--config", str(config), "--seed", "0", *more])


def features(config: Path, backbone: str = "init") -> None:
    for client in CLIENTS:
        assert stage("features", config, "--client", client, "--target", "target", "--backbone", backbone) == 0


def align(config: Path, run: str) -> Path:
    assert stage("fit-classical", config, "--run", run, "--target", "target") == 0
    return config.parent / "results" / "small" / "runs" / run / "target" / "0"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = write_study(tmp_path_factory.mktemp("rows"))
    assert stage("init", config) == 0
    features(config)
    return config


def kept(config: Path, client: str, backbone: str = "init") -> Path:
    return config.parent / f"results/small/clients/{client}/features/{backbone}/target/0.safetensors"


def test_features_stay_in_the_hospitals_folder_and_say_where_they_come_from(study: Path) -> None:
    found = sorted(p for p in (study.parent / "results").rglob("*.safetensors") if "features" in p.parts)
    assert found == sorted(kept(study, client) for client in CLIENTS)
    assert not list(kept(study, "north").parent.glob(".*")), "nothing half-written is left"
    with safe_open(kept(study, "north"), framework="pt") as file:
        assert set(file.metadata()) == {"theta", "order", "backbone", "fdamed"}
        z = file.get_tensor("z")
    assert z.shape == (len(PARTS), HIDDEN)
    model = resident(load(study))
    weights = load_file(study.parent / "results" / "small" / "init" / "0" / "theta.safetensors")
    model.module.load_state_dict(weights, strict=False)
    image = np.load(study.parent / "results/small/clients/north/images.npy")[3]
    with torch.no_grad():
        by_hand = model.module.eval().features(torch.from_numpy(image)[None, None].float() / 255)
    assert torch.allclose(z[3], by_hand[0], atol=1e-5)


@pytest.mark.parametrize("run", ["not_aligned", "tca", "rtca", "rftca", "coral", "jda", "gfk", "dann"])
def test_a_row_has_the_files_of_a_run_and_both_scores(study: Path, run: str) -> None:
    folder = align(study, run)
    for name in ("run.json", "metrics.jsonl", "timing.jsonl", "ledger.jsonl", "absences.jsonl", "done"):
        assert (folder / name).is_file(), name
    kept = study.parent / "results/small/clients/target"
    score = json.loads((kept / f"scores/{run}/target/0.json").read_text())
    (line,) = read_lines(kept / f"rounds/{run}/target/0.jsonl")
    assert read_lines(folder / "metrics.jsonl") == [{"round": 1}], "scores stay with the target"
    assert score["n"] == 20 and score["acc"] == line["test/acc"] and score["auc"] == line["test/auc"]
    assert line["val/auc"] is not None
    rows = pd.read_parquet(study.parent / f"results/small/clients/target/predictions/{run}/target/0.parquet")
    assert len(rows) == 20 and ((rows["score"] >= 0) & (rows["score"] <= 1)).all()
    assert float(((rows["score"] >= 0.5) == (rows["y"] == 1)).mean()) == pytest.approx(score["acc"])


def test_the_ledger_has_every_byte_of_every_patient_that_left(study: Path) -> None:
    folder = align(study, "tca")
    size = 4 * resident(load(study)).layout.size
    sent = {(r["from"], r["to"], r["step"].rpartition(".")[2], r["kind"]): r["bytes"] for r in
            read_lines(folder / "ledger.jsonl")}  # fmt: skip
    expected = {("server", p, "send_labeled_features", "weights"): size for p in ("north", "south")}
    expected |= {
        (p, "server", "send_labeled_features", "features"): LEARNED * (4 * HIDDEN + 8) for p in ("north", "south")
    }
    expected |= {
        ("server", "target", "send_unlabeled_features", "weights"): size,
        ("target", "server", "send_unlabeled_features", "features"): LEARNED * 4 * HIDDEN,
        ("server", "target", "send_test_features", "count"): 8,
        ("target", "server", "send_test_features", "features"): (JUDGED + FILLED) * 4 * HIDDEN,
        ("server", "target", "receive_predictions", "features"): (JUDGED + FILLED) * 4 * CLASSES,
        ("target", "server", "receive_predictions", "count"): 8,
    }
    assert sent == expected


@pytest.mark.parametrize("run", ["not_aligned", "tca", "rtca", "rftca", "coral", "jda", "gfk", "dann"])
def test_the_bytes_of_a_row_do_not_tell_a_small_part_and_its_results_stay_the_same(study: Path, run: str) -> None:
    """With the test part shown, the exact bytes would give the 6 validation images away: (26 - 20)."""
    public = study.with_name("public.json")
    raw = json.loads(study.read_text())
    public.write_text(json.dumps(raw | {"privacy": raw["privacy"] | {"smallest_cell": 1}}))

    def asked(folder: Path) -> int:
        return next(
            row["bytes"] // (4 * CLASSES)
            for row in read_lines(folder / "ledger.jsonl")
            if row["step"].endswith("receive_predictions") and row["to"] == "target"
        )

    def judged() -> pd.Series:
        return pd.read_parquet(study.parent / f"results/small/clients/target/predictions/{run}/target/0.parquet")[
            "score"
        ]

    assert asked(align(public, run)) - 20 == 6
    exact = judged()
    assert asked(align(study, run)) - 20 == 11
    # The last bits of a product may depend on its number of rows, by processor.
    assert np.allclose(judged(), exact, rtol=0, atol=1e-5) and exact.std() > 1e-3


@pytest.mark.parametrize("run", ["rftca", "dann"])
def test_the_same_row_again_has_the_same_bits(study: Path, run: str) -> None:
    folder = align(study, run)
    first = {name: (folder / name).read_bytes() for name in ("done", "metrics.jsonl", "ledger.jsonl", "run.json")}
    shutil.rmtree(folder)
    align(study, run)
    assert {name: (folder / name).read_bytes() for name in first} == first


def test_one_process_a_hospital_gives_the_same_bits(study: Path, tmp_path: Path) -> None:
    other = write_study(tmp_path, transport="multiprocess")
    assert stage("init", other) == 0
    features(other)
    here, there = align(study, "coral"), align(other, "coral")
    assert (here / "done").read_text() == (there / "done").read_text()
    assert (here / "ledger.jsonl").read_text() == (there / "ledger.jsonl").read_text()


def test_the_targets_training_labels_change_nothing(study: Path, tmp_path: Path) -> None:
    other = write_study(tmp_path, flipped=True)
    assert stage("init", other) == 0
    features(other)
    for run in ("rftca", "jda", "dann"):
        assert (align(study, run) / "done").read_text() == (align(other, run) / "done").read_text(), run


def test_a_trained_backbone_gives_other_features_than_the_frozen_one(study: Path) -> None:
    assert stage("federate", study, "--run", "fedavg", "--target", "target") == 0
    features(study, "fedavg")
    frozen, trained = (load_file(kept(study, "north", b))["z"] for b in ("init", "fedavg"))
    assert frozen.shape == trained.shape and not torch.equal(frozen, trained)
    folder = align(study, "trained")
    assert json.loads((folder / "run.json").read_text())["options"]["features"] == "fedavg"


def test_features_leave_no_hospital_whose_policy_does_not_say_so(tmp_path: Path, capsys) -> None:
    config = write_study(tmp_path, release=["weights", "update", "statistic", "scalar", "count"])
    assert stage("fit-classical", config, "--run", "tca", "--target", "target") == 2
    stderr = capsys.readouterr().err
    assert (
        "`runs.not_aligned`: not_aligned needs the features of every client" in stderr and "privacy.release" in stderr
    )
    assert not (tmp_path / "results" / "small" / "runs").exists()
    release = frozenset(Config.model_validate_json(config.read_text()).privacy.release)
    with pytest.raises(FdamedError, match=r"tca asks north in step classical\.send_labeled_features for features"):
        check_release(send_rows, release, "north", "tca")


def test_features_of_other_weights_or_other_images_are_refused(study: Path, tmp_path: Path, capsys) -> None:
    config = write_study(tmp_path)
    shutil.copytree(study.parent / "results/small/init", tmp_path / "results/small/init")
    features(config)
    theta = tmp_path / "results/small/init/0/theta.safetensors"
    save_file({k: v + 0.5 for k, v in load_file(theta).items()}, theta)
    assert stage("fit-classical", config, "--run", "tca", "--target", "target") == 2
    assert "its features were made with other weights" in capsys.readouterr().err
    write_client(tmp_path / "results/small/clients/north", 0, flipped=True)
    assert stage("fit-classical", config, "--run", "tca", "--target", "target") == 2
    assert "the features belong to other images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"features": "fedagv"}, "did you mean `fedavg`"),
        ({"features": "tca2"}, "allowed: init, fedavg"),
        ({"labeled": 3}, "runs.tca.labeled"),
        ({"gama": 1.0}, "did you mean `gamma`"),
    ],
)
def test_a_row_that_cannot_be_is_refused_before_anything_starts(tmp_path: Path, run: dict, message: str) -> None:
    config = write_study(tmp_path)
    raw = json.loads(config.read_text())
    raw["runs"] = {"fedavg": {}, "tca2": {"method": "tca"}, "tca": run}
    config.write_text(json.dumps(raw))
    with pytest.raises(FdamedError, match=message):
        load(config)


def test_each_stage_sends_the_user_to_the_right_command(study: Path, capsys) -> None:
    assert stage("federate", study, "--run", "tca", "--target", "target") == 2
    assert "`fdamed fit-classical --config " in capsys.readouterr().err
    assert stage("fit-classical", study, "--run", "fedavg", "--target", "target") == 2
    assert "`fdamed federate --config " in capsys.readouterr().err
