"""`fdamed membership` on a client whose patients one model has memorized and another has never seen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fdamed.cli.main import main
from fdamed.config.study import Model, Recipe
from fdamed.core.rng import stream
from fdamed.data.loader import load
from fdamed.models.backbone import build
from fdamed.models.flat import FlatModel
from fdamed.pipeline.paths import tensors_in
from fdamed.report.sections import membership_inference as recognized
from fdamed.training.local import fit

N = 160


def by_heart(folder: Path, start: Path, splits: tuple[str, ...]) -> FlatModel:
    """The starting weights, trained on noise with labels at random: there is nothing to learn but the patients."""
    model = FlatModel(build(Model(backbone="cnn", side=28)))
    model.module.load_state_dict(tensors_in(start, "init"))
    fit(model, load(folder, splits), Recipe(lr=3e-3, batch=16, epochs=25), stream(0, "by heart"))
    return model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 members, 80 others, one image each; a source `A` of which `known` was trained and `target_only` was not."""
    root = tmp_path_factory.mktemp("membership")
    config = {
        "study": "c",
        "results": str(root),
        "data": {"layout": "chexpert", "root": "nowhere"},
        "split": {"by": "condition", "clients": {"A": "Edema", "B": "Pneumonia"}, "target": "B"},
        "image": {"size": 28},
        "model": {"backbone": "cnn", "side": 28},
        "train": {"device": "cpu"},
        "privacy": {"smallest_images": 1, "smallest_steps": 1},
        "runs": {"known": {"method": "fedavg"}, "target_only": {}, "fedrf_tca": {}},
        "seeds": [0],
    }
    (root / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    for client in ("A", "B"):
        folder = root / "c" / "clients" / client
        folder.mkdir(parents=True)
        np.save(folder / "images.npy", rng.integers(0, 256, (N, 28, 28)).astype(np.uint8))
        rows = {"patient": [f"{client}{i:04d}" for i in range(N)], "y": rng.integers(0, 2, N)}
        split = np.repeat(["adapt", "test", "train"], [N // 4, N // 2, N // 4])
        pd.DataFrame(rows).assign(split=split).to_parquet(folder / "order.parquet")
    assert main(["init", "--config", str(root / "config.json"), "--seed", "0"]) == 0
    from safetensors.torch import save_file

    start = root / "c" / "init" / "0" / "theta.safetensors"
    model = by_heart(root / "c" / "clients" / "A", start, ("adapt", "train"))
    for run, sender in (("known", "A"), ("target_only", "B")):
        place = root / "c" / "runs" / run / "B" / "0"
        place.mkdir(parents=True)
        (place / "ledger.jsonl").write_text(json.dumps({"from": sender, "to": "server", "kind": "weights"}) + "\n")
    save_file(model.module.state_dict(), root / "c" / "runs" / "known" / "B" / "0" / "theta.safetensors")
    shutil.copy(start, root / "c" / "runs" / "target_only" / "B" / "0")
    return root


@pytest.fixture
def study(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "c", tmp_path / "c")
    config = json.loads((made / "config.json").read_text()) | {"results": str(tmp_path)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def asked(study: Path, client: str = "A") -> dict:
    assert main(["membership", "--config", str(study / "config.json"), "--client", client]) == 0
    return json.loads((study / "c" / "membership" / f"{client}.json").read_text())


def test_the_patients_of_a_small_part_do_not_follow_from_the_attack_on_the_whole_hospital(study: Path) -> None:
    """The cohort shows 12 patients of `adapt` and 11 of the test part; the attacker looks for the 10 of `train`."""
    path = study / "c" / "clients" / "A" / "order.parquet"
    rows = pd.read_parquet(path)
    few = rows["split"].map({"adapt": 12, "test": 11, "train": 10})
    rows["patient"] = rows["split"] + (rows.groupby("split").cumcount() % few).astype(str)
    rows.to_parquet(path)
    found = asked(study)
    known = found["targets"]["B"]["runs"]["known"]
    attacks = [found["untrained"], known["loss"], known["calibrated"]]
    aucs = [attack["auc"]["value"] for attack in attacks]
    error = 0.5 * 10.0 ** -max(len(str(auc).partition(".")[2]) for auc in aucs)
    for train in range(1, 11):
        pairs = (12 + train) * 11
        assert all(abs(round(auc * pairs) / pairs - auc) <= error for auc in aucs), "each number fits all that is shown"
    assert all(attack[rate] is None for attack in attacks for rate in ("tpr_at_1", "tpr_at_01"))


def test_a_model_that_memorized_its_patients_is_detected_and_the_starting_weights_are_not(study: Path) -> None:
    found = asked(study)
    assert set(found["targets"]["B"]["runs"]) == {"known"}, "in the other runs the hospital had no part, or no model"
    known = found["targets"]["B"]["runs"]["known"]
    for attack in ("loss", "calibrated"):
        assert known[attack]["auc"]["value"] > 0.8 and known[attack]["auc"]["low"] > 0.6
        assert known[attack]["tpr_at_1"] is None, "80 others cannot show a rate of one in a hundred"
    assert found["untrained"]["auc"]["low"] < 0.5 < found["untrained"]["auc"]["high"]
    assert "A0001" not in (study / "c" / "membership" / "A.json").read_text()
    shown = recognized.context([found])
    assert shown["above"] == ["known at A"] and [row["run"] for row in shown["rows"]][-1] == "untrained"
    assert recognized.frame([found])["attack"].tolist() == ["loss", "calibrated"]


def test_a_target_is_a_member_with_its_few_labels_only(study: Path) -> None:
    """B sent weights in target_only, which trains on adapt: 40 patients; 10 of them are too few to report anything."""
    found = asked(study, "B")["targets"]["B"]
    assert set(found["runs"]) == {"target_only"} and found["references"] == 1
    config = json.loads((study / "config.json").read_text())
    config["runs"]["target_only"] = {"labeled": 10}
    (study / "config.json").write_text(json.dumps(config))
    found = asked(study, "B")["targets"]["B"]
    assert found["runs"] == {} and found["suppressed"] == ["target_only"]


def test_a_test_part_whose_scores_are_hidden_gets_no_score_of_an_attack_either(study: Path) -> None:
    """80 others are many, but only 8 of them are positive."""
    path = study / "c" / "clients" / "A" / "order.parquet"
    rows = pd.read_parquet(path)
    rows.loc[rows["split"] == "test", "y"] = (np.arange(N // 2) < 8).astype(int)
    rows.to_parquet(path)
    found = asked(study)
    assert found["untrained"] is None
    assert found["targets"]["B"]["runs"] == {} and found["targets"]["B"]["suppressed"] == ["known"]


def test_patients_on_both_sides_of_a_leaking_split_are_no_proof_of_privacy(study: Path) -> None:
    """All others become images of members: nobody is left to compare with, so nothing is reported."""
    path = study / "c" / "clients" / "A" / "order.parquet"
    frame = pd.read_parquet(path)
    frame["patient"] = [f"A{i % (N // 4):04d}" for i in range(N)]
    frame.to_parquet(path)
    found = asked(study)
    assert found["targets"]["B"] == {"runs": {}, "suppressed": ["known"], "references": 1}
    assert recognized.frame([found]).empty


def test_bad_requests_are_one_clear_error(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["membership", "--config", str(study / "config.json"), "--client", "C"]) == 2
    assert "Choose one of: A, B" in capsys.readouterr().err
    (study / "c" / "runs" / "known" / "B" / "0" / "ledger.jsonl").unlink()
    assert main(["membership", "--config", str(study / "config.json"), "--client", "A"]) == 2
    assert "fdamed federate" in capsys.readouterr().err
