"""fdamed advise on a small cohort whose hospitals are made to agree and to disagree with the target."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import fedgp_figure2
from fdamed.cli.main import main

SIDE = 32
CLIENTS = {"twin": "a", "opposite": "b", "target": "c"}


def write_client(folder: Path, seed: int, flipped: bool) -> None:
    """Positives have a bright left half; in a flipped hospital they are called negatives."""
    rng = np.random.default_rng(seed)
    splits = ["adapt"] * 48 + ["test"] * 8 + ["train"] * 80 + ["val"] * 8
    bright = np.arange(len(splits)) % 2
    images = rng.integers(0, 60, (len(splits), SIDE, SIDE))
    images[:, :, : SIDE // 2] += 150 * bright[:, None, None]
    folder.mkdir(parents=True)
    np.save(folder / "images.npy", images.astype(np.uint8))
    order = {"split": splits, "y": (1 - bright if flipped else bright).astype(np.int8)}
    pd.DataFrame(order).to_parquet(folder / "order.parquet")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("advise")
    config = {
        "study": "small",
        "results": str(folder / "results"),
        "data": {"layout": "chexpert", "root": str(folder)},
        "split": {"by": "race", "label": "Edema", "clients": CLIENTS, "target": "target", "labeled": 48},
        "image": {"size": SIDE},
        "privacy": {"smallest_images": 1, "smallest_steps": 1},
        "model": {"width": 0.0625},
        "train": {
            "rounds": 40,
            "source": {"lr": 0.001, "batch": 8},
            "target": {"lr": 0.001, "batch": 8},
            "device": "cpu",
        },
        "seeds": [0],
        "runs": {"fedavg": {}, "target_only": {}, "fedda": {"sweep": {"beta": [0.25, 0.5]}}, "fedgp": {}, "oracle": {}},
    }
    (folder / "config.json").write_text(json.dumps(config))
    root = folder / "results" / "small"
    for seed, client in enumerate(CLIENTS):
        write_client(root / "clients" / client, seed, client == "opposite")
    images = {"train": 80, "adapt": 48, "val": 8, "test": 8}
    (root / "cohort.json").write_text(json.dumps({"clients": {p: {"images": images} for p in CLIENTS}}))
    assert main(["init", "--config", str(folder / "config.json"), "--seed", "0"]) == 0
    return folder


@pytest.fixture(scope="module")
def advised(study: Path) -> Path:
    """The folder of the study's advice."""
    with redirect_stderr(io.StringIO()) as messages:
        assert main(["advise", "--config", str(study / "config.json")]) == 0
    assert "At target the theory recommends" in messages.getvalue()
    return study / "results" / "small" / "advice"


def test_the_twin_of_the_target_is_nearer_than_the_hospital_that_contradicts_it(advised: Path) -> None:
    advice = json.loads((advised / "target.json").read_text())
    sources = {s["source"]: s for s in advice["sources"]}
    assert sources["twin"]["cosine"]["value"] > 0.3 > 0.0 > sources["opposite"]["cosine"]["value"]
    assert sources["twin"]["d2"]["value"] < sources["opposite"]["d2"]["value"]
    assert sources["twin"]["gain"]["value"] > 0.0 > sources["opposite"]["gain"]["value"]
    assert sources["twin"]["delta"]["value"] > sources["opposite"]["delta"]["value"]
    assert advice["cost"]["share"] <= 0.05
    assert advice["ranking"][0]["method"] == advice["recommended"]["method"] != "fedavg"
    assert set(advice["runs"]) == {"fedavg", "target_only", "fedda-beta-0.25", "fedda-beta-0.5", "fedgp"}
    picture = (advised / "target.svg").read_text()
    assert picture.startswith("<svg") and "twin" in picture and "opposite" in picture


def test_what_leaves_the_hospitals_is_in_the_ledger_and_no_gradient_of_the_target(advised: Path) -> None:
    lines = (advised / "target.ledger.jsonl").read_text().splitlines()
    out = {(line["from"], line["kind"]) for line in map(json.loads, lines) if line["from"] != "server"}
    assert {kind for client, kind in out if client == "target"} == {"count", "statistic"}
    assert {kind for client, kind in out if client == "twin"} == {"weights", "update", "count", "statistic"}


@pytest.mark.slow
def test_the_advice_is_the_same_twice_and_with_one_process_a_hospital(
    study: Path, advised: Path, tmp_path: Path
) -> None:
    file = advised / "target.json"
    before = file.read_bytes()
    config = json.loads((study / "config.json").read_text())
    config["train"]["transport"] = "multiprocess"
    (tmp_path / "apart.json").write_text(json.dumps(config))
    assert main(["advise", "--config", str(tmp_path / "apart.json")]) == 0
    assert file.read_bytes() == before


def test_an_unknown_target_is_refused_by_name(study: Path, capfd) -> None:
    assert main(["advise", "--config", str(study / "config.json"), "--target", "nobody"]) == 2
    assert "no client 'nobody'" in capfd.readouterr().err


def test_figure_2_small_writes_theory_beside_training(tmp_path: Path) -> None:
    fedgp_figure2.main(["--out", str(tmp_path), "--small"])
    content = json.loads((tmp_path / "figure2.json").read_text())
    assert content["summary"]["cells"] == 9 and len(content["cells"]) == 9
    same = [c for c in content["cells"] if c["shift"] == 0.0]
    assert all(c["d2"] < 1e-9 and c["errors"]["source_only"] < 1e-9 for c in same)
    variance = [c["sigma2"] for c in same]
    assert variance == sorted(variance)
    assert 0.0 <= content["summary"]["measured"]["agreement_percent"] <= 100.0
    assert (tmp_path / "figure2.svg").read_text().count("<rect") > 27
