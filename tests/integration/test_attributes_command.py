"""`fdamed attributes` on a small client: scores are released, features and names are not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fdamed.cli.main import main


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """120 patients with an image each, those of men brighter, so that any network sees it; weights as they start."""
    config = {
        "study": "c",
        "results": str(tmp_path),
        "data": {"layout": "chexpert", "root": "nowhere"},
        "split": {"by": "condition", "clients": {"A": "Edema", "B": "Pneumonia"}, "target": "B"},
        "image": {"size": 32},
        "model": {"width": 0.0625, "heads": ["sex"]},
        "train": {"device": "cpu"},
        "runs": {"fedavg": {}, "aux": {"method": "fedavg", "auxiliary": {"heads": ["sex"]}}},
        "seeds": [0, 1],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    n = 120
    sex = np.where(rng.random(n) < 0.5, "F", "M")
    images = rng.integers(60, 120, (n, 32, 32)) + np.where(sex == "M", 60, 0)[:, None, None]
    folder = tmp_path / "c" / "clients" / "B"
    folder.mkdir(parents=True)
    np.save(folder / "images.npy", images.astype(np.uint8))
    rows = {"patient": [f"p{i:04d}" for i in range(n)], "sex": sex, "age": rng.uniform(20, 90, n), "view": "frontal"}
    frame = pd.DataFrame(rows).assign(race=pd.Series([None] * n, dtype="str"), y=rng.integers(0, 2, n))
    frame.assign(split=np.repeat(["adapt", "test", "train", "val"], n // 4)).to_parquet(folder / "order.parquet")
    thirty, fifteen = (dict.fromkeys(("adapt", "test", "train", "val"), k) for k in (30, 15))
    counts = {"images": thirty, "patients": thirty, "positives": fifteen}
    (folder / "counts.json").write_text(json.dumps(counts))
    for seed in (0, 1):
        assert main(["init", "--config", str(tmp_path / "config.json"), "--seed", str(seed)]) == 0
        for run in ("fedavg", "aux"):
            place = tmp_path / "c" / "runs" / run / "B" / str(seed)
            place.mkdir(parents=True)
            shutil.copy(tmp_path / "c" / "init" / str(seed) / "theta.safetensors", place)
    return tmp_path


def probe(study: Path) -> dict:
    assert main(["attributes", "--config", str(study / "config.json"), "--target", "B"]) == 0
    return json.loads((study / "c" / "attributes" / "B.json").read_text())


def test_what_stands_in_the_images_is_read_and_nobody_is_named(study: Path) -> None:
    found = probe(study)
    assert set(found["attributes"]) == {"sex", "age"} and found["images"] == 120
    sex = found["attributes"]["sex"]
    assert set(sex["runs"]) == {"untrained", "fedavg", "aux"} == set(found["runs"])
    assert all(r["value"] > 0.95 and 0.3 < r["shuffled"] < 0.7 for r in sex["runs"].values())
    assert all(r["low"] < 0.5 < r["high"] for r in found["attributes"]["age"]["runs"].values())
    (heads,) = sex["heads"]
    assert (heads["run"], heads["base"], heads["heads"], heads["value"]) == ("aux", "fedavg", ["sex"], 0.0)
    assert "p0001" not in (study / "c" / "attributes" / "B.json").read_text()
    assert {p.relative_to(study / "c").parts[0] for p in study.rglob("*.safetensors")} == {"init", "runs"}


def test_the_number_of_images_is_held_back_while_a_part_is(study: Path) -> None:
    path = study / "c/clients/B/counts.json"
    counts = json.loads(path.read_text())
    path.write_text(json.dumps(counts | {"images": counts["images"] | {"val": 7}}))
    assert probe(study)["images"] is None


def test_the_number_of_unreadable_images_does_not_follow_from_those_that_were_probed(study: Path) -> None:
    """The report shows that the split has 121 images and hides how many of them are unreadable."""
    path = study / "c/clients/B/counts.json"
    counts = json.loads(path.read_text())
    path.write_text(json.dumps(counts | {"images": counts["images"] | {"train": 31}}))
    assert probe(study)["images"] is None


def test_the_sizes_of_classes_do_not_follow_from_an_auc(study: Path) -> None:
    """An AUC within five folds of 120 images has one decimal or two: no wider than a pair of images of both classes."""

    def digits() -> list[int]:
        found = probe(study)["attributes"].values()
        shown = [run[key] for one in found for run in one["runs"].values() for key in ("value", "low", "high")]
        return [len(str(value).partition(".")[2]) for value in shown]

    assert max(digits()) == 2 and 10**2 < 11 * (120 - 11) / 5
    config = json.loads((study / "config.json").read_text())
    (study / "config.json").write_text(json.dumps(config | {"privacy": {"smallest_cell": 1}}))
    assert max(digits()) == 4, "of public images"


def test_groups_below_the_smallest_cell_are_no_class(study: Path) -> None:
    path = study / "c" / "clients" / "B" / "order.parquet"
    frame = pd.read_parquet(path)
    frame.loc[:14, "sex"] = "O"  # 15 of a third class
    frame.to_parquet(path)
    assert probe(study)["attributes"]["sex"]["classes"] == ["F", "M", "O"]
    config = json.loads((study / "config.json").read_text())
    (study / "config.json").write_text(json.dumps(config | {"privacy": {"smallest_cell": 20}}))
    assert probe(study)["attributes"]["sex"]["classes"] == ["F", "M"]


def test_where_nothing_is_known_of_the_patients_no_model_is_asked(study: Path) -> None:
    path = study / "c" / "clients" / "B" / "order.parquet"
    pd.read_parquet(path).drop(columns=["sex", "age", "view", "race"]).to_parquet(path)
    found = probe(study)
    assert found["attributes"] == {} and "runs" not in found


def test_a_study_without_finished_runs_is_one_clear_error(study: Path, capsys) -> None:
    shutil.rmtree(study / "c" / "runs")
    assert main(["attributes", "--config", str(study / "config.json"), "--target", "B"]) == 2
    assert "fdamed federate" in capsys.readouterr().err
