"""`fdamed ingest` and `fdamed split` from a raw tree to manifests, through the command line."""

from __future__ import annotations

import csv
import json
import stat
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from fdamed.cli.commands.split import write as write_split
from fdamed.cli.main import main
from fdamed.config.loader import load
from fdamed.config.split import Split
from fdamed.config.study import Config
from fdamed.data.manifest import content_hash
from fdamed.data.splitting.leakage import check_manifests
from fdamed.pipeline.hospitals.site import own_split
from fdamed.pipeline.paths import Places
from tests.support.raw_trees import CHEXPERT_HEADER, chexpert_row, write_image, write_table

RELEASE = "CheXpert-v1.0-small"
CONDITIONS = {"Lesion": "Lung_Lesion", "Edema": "Edema"}
CANARY = "patient90"


def rows_of(patients: int) -> list[list[str]]:
    out = []
    for p in range(patients):
        for view in range(1 + p % 3):
            labels = {"Edema": "1.0" if p % 2 else "0.0", "Lung_Lesion": "0.0" if (p // 2) % 2 else "1.0"}
            path = f"{RELEASE}/train/{CANARY}{p:03d}/study1/view{view}_frontal.jpg"
            out.append(chexpert_row(path, "Male" if p % 3 else "Female", str(20 + p % 60), **labels))
    return out


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A configuration beside a tree of 90 patients."""
    rows = rows_of(90)
    write_table(tmp_path / "raw" / RELEASE / "train.csv", CHEXPERT_HEADER, rows)
    for row in rows:
        write_image(tmp_path / "raw" / row[0])
    return configure(tmp_path)


def configure(folder: Path, **keys: Any) -> Path:
    content: dict[str, Any] = {
        "study": "small",
        "results": str(folder / "results"),
        "data": {"layout": "chexpert", "root": str(folder / "raw"), **keys.pop("data", {})},
        "split": {
            "by": "condition",
            "clients": {"Lesion": "Lung Lesion", "Edema": "Edema"},
            "target": "Edema",
            "labeled": 8,
            **keys.pop("split", {}),
        },
        "privacy": {"smallest_images": 1, "smallest_steps": 1},
        "runs": {"fedavg": {}},
        **keys,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_the_split_prints_no_rows_that_are_left_out_while_a_count_is_held_back(
    study: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both hospitals have all rows, and the validation parts are small."""

    def printed() -> list[str]:
        capfd.readouterr()
        assert main(["split", "--config", str(study)]) == 0
        return [line for line in capfd.readouterr().out.splitlines() if line.startswith("left out at")]

    assert main(["ingest", "--config", str(study)]) == 0
    found = printed()
    assert found and not any(character.isdigit() for character in "".join(found))
    content = yaml.safe_load(study.read_text())
    study.write_text(yaml.safe_dump(content | {"privacy": "public"}))
    assert all("(" in line for line in printed()), "public images have numbers"


def test_the_split_says_before_training_what_the_study_cannot_show(
    study: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    main(["ingest", "--config", str(study)])
    main(["split", "--config", str(study)])
    said = [line for line in capfd.readouterr().out.splitlines() if line.startswith("before training: ")]
    assert [line.partition(": ")[2].split(":")[0] for line in said] == [
        "the test part of Edema has fewer than 11 patients, or images of a class",
        "fewer than 11 patients, or images of a class, so that counts and scores are not shown",
    ]


def test_a_hospital_apart_that_is_no_target_splits_its_own_images(study: Path) -> None:
    main(["ingest", "--config", str(study)])
    config = load(study)
    assert isinstance(config.split, Split)
    write_split(config, own_split(config, "Lesion"), Places.of(config))
    assert (study.parent / "results/small/clients/Lesion/manifest.parquet").is_file()


def test_a_raw_tree_becomes_manifests_that_keep_patients_apart(study: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["ingest", "--config", str(study)]) == 0
    assert main(["split", "--config", str(study)]) == 0
    root = study.parent / "results/small"
    summary = json.loads((root / "clients/ingest.json").read_text())
    assert (summary["rows"], summary["patients"], summary["rejected"]) == (180, 90, {})
    cohort = json.loads((root / "cohort.json").read_text())
    manifests = {p: pd.read_parquet(root / f"clients/{p}/manifest.parquet") for p in CONDITIONS}
    check_manifests(manifests)
    for client, frame in manifests.items():
        public, entry = cohort["clients"][client], json.loads((root / f"clients/{client}/counts.json").read_text())
        parts = {part: entry["images"][part] for part in ("train", "adapt")}
        assert public == {"hash": entry["hash"], "content": entry["content"], "images": parts}
        assert entry["hash"] == content_hash(frame)
        assert sum(entry["images"].values()) == len(frame)
        assert sum(entry["positives"].values()) == int(frame["y"].sum())
        assert entry["images"]["adapt"] == 8
    assert cohort["asked"] == {"per_class": "all", "labeled": 8, "val": 0.1, "test": 0.2, "held_out": "all"}
    leakage = json.loads((root / "clients/cohort.json").read_text())["leakage"]
    assert leakage["patients_in_two_splits"] == leakage["patients_in_two_clients"] == 0
    assert "by a hash of seed and patient" in cohort["notes"][0]
    shared = capfd.readouterr().err + (root / "cohort.json").read_text() + (root / "ingest.json").read_text()
    assert CANARY not in shared


def test_the_salt_is_made_once_for_its_owner_only_and_the_cohort_does_not_depend_on_it(study: Path) -> None:
    root = study.parent / "results/small"
    hashes = []
    for _ in range(2):
        assert main(["ingest", "--config", str(study)]) == 0
        salt = (root / "clients/salt").read_text()
        assert main(["split", "--config", str(study)]) == 0
        hashes.append(json.loads((root / "cohort.json").read_text()))
    assert stat.S_IMODE((root / "clients/salt").stat().st_mode) == 0o600
    assert hashes[0] == hashes[1]
    (root / "clients/salt").unlink()
    main(["ingest", "--config", str(study)])
    main(["split", "--config", str(study)])
    other = json.loads((root / "cohort.json").read_text())
    assert (root / "clients/salt").read_text() != salt
    assert other["hash"] == hashes[0]["hash"]
    assert other["clients"]["Edema"]["hash"] != hashes[0]["clients"]["Edema"]["hash"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy": {"smallest_images": 1, "smallest_steps": 40}}, "the minimum for sharing a model is 40"),
        ({"runs": {"gp": {"tune": {"beta": [0.2, 0.5]}}}}, "the validation part of Edema is too small to choose by"),
    ],
)
def test_runs_that_no_job_could_train_stop_the_split_before_it_writes(
    study: Path, capfd: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    configured = configure(study.parent, **changes)
    assert main(["ingest", "--config", str(configured)]) == 0
    assert main(["split", "--config", str(configured)]) == 2
    assert said in capfd.readouterr().err
    assert not (study.parent / "results/small/cohort.json").exists()


def test_refused_rows_and_files_are_listed_and_good_ones_stay(study: Path) -> None:
    folder = study.parent
    rows = rows_of(90)
    rows[0][0] = "=../../etc/passwd"
    rows[1][10] = "7"
    write_table(folder / "raw" / RELEASE / "train.csv", CHEXPERT_HEADER, [*rows, rows[5]])
    (folder / "raw" / rows[2][0]).unlink()
    assert main(["ingest", "--config", str(study)]) == 0
    listed = list(csv.DictReader((folder / "results/small/clients/rejects.csv").open()))
    assert [(r["row"], r["reason"]) for r in listed] == [
        ("2", "PATH_OUTSIDE_ROOT"),
        ("182", "DUPLICATE_ROW"),
        ("3", "BAD_LABEL"),
        ("", "MISSING"),
    ]
    assert json.loads((folder / "results/small/clients/ingest.json").read_text())["rows"] == 177


def test_too_many_refusals_stop_with_exit_2_after_they_were_listed(
    study: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = study.parent
    for row in rows_of(90)[:30]:
        (folder / "raw" / row[0]).write_bytes(b"no image")
    assert main(["ingest", "--config", str(study)]) == 2
    error = capfd.readouterr().err
    assert "16.7% of the rows and files were rejected" in error
    assert CANARY not in error
    root = folder / "results/small"
    assert len((root / "clients/rejects.csv").read_text().splitlines()) == 31
    assert not (root / "clients/index.parquet").exists()
    assert not (root / "ingest.json").exists()


def test_split_without_an_index_names_the_stage_that_makes_it(study: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["split", "--config", str(study)]) == 2
    assert "fdamed ingest" in capfd.readouterr().err


def test_a_split_that_fails_writes_nothing(study: Path) -> None:
    main(["ingest", "--config", str(study)])
    path = configure(study.parent, split={"labeled": 5000})
    assert main(["split", "--config", str(path)]) == 2
    root = study.parent / "results/small"
    assert not (root / "cohort.json").exists()
    assert not list(root.glob("clients/*/manifest.parquet"))


def test_the_reference_rule_is_announced_loudly(study: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(["ingest", "--config", str(study)])
    path = configure(study.parent, split={"rule": "reference", "where": "not isna(view)"})
    rows = rows_of(90)
    for row in rows[100:]:
        row[9] = row[10] = ""
    write_table(study.parent / "raw" / RELEASE / "train.csv", CHEXPERT_HEADER, rows)
    main(["ingest", "--config", str(study)])
    assert main(["split", "--config", str(path)]) == 0
    assert "warning: rule: reference" in capfd.readouterr().err
    cohort = json.loads((study.parent / "results/small/cohort.json").read_text())
    assert cohort["rule"] == "reference"
    assert "LEAKS" in cohort["notes"][0]
    full = json.loads((study.parent / "results/small/clients/cohort.json").read_text())
    assert full["leakage"]["patients_in_two_splits"] > 0


@pytest.mark.parametrize("name", ["chexpert", "mimic", "midrc", "nih"])
def test_the_shipped_configurations_are_valid_and_have_the_paper_s_figures(name: str) -> None:
    path = Path(__file__).parents[2] / f"config/{name}.yaml"
    config = Config.model_validate(yaml.safe_load(path.read_text()))
    assert isinstance(config.split, Split)
    figures = (config.split.per_class, config.split.labeled, config.train.rounds, config.image.size)
    published = {"chexpert": (2000, 1000, 50, 224), "mimic": (250, 100, 80, 224), "midrc": ("all", 2000, 50, 224)}
    if name in published:
        assert figures == published[name]
        assert config.split.held_out == "targets"
        # The authors' released code; the paper is silent.
        batches = (config.train.source.batch, config.train.target.batch)
        assert batches == {"chexpert": (32, 32), "mimic": (32, 32), "midrc": (8, 16)}[name]
    assert (config.train.source.lr, config.train.target.lr) == (1e-3, 2e-4)
    assert {"fedavg", "finetune", "gp", "fedgp", "fedda", "oracle", "gp_auxinfo"} <= set(config.runs)
