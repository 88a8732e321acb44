"""A study with tuned runs through Snakemake: its files, its report, and what another list of candidates trains."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.workflow.test_whole_study import REPO, jobs, snakemake

TUNED = REPO / "tests" / "workflow" / "tiny_tuned.yaml"
CANDIDATES = {"prox-mu-0.01", "prox-mu-1.0", "gp-beta-0.2", "gp-beta-0.8"}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    done = snakemake(folder, config=TUNED)
    assert done.returncode == 0, done.stderr[-6000:]
    return folder


def text_files(root: Path) -> dict[str, str]:
    """All files that people and other programs read, by their place."""
    kinds = {".json", ".jsonl", ".csv", ".html", ".svg", ".log", ".tsv"}
    return {str(p.relative_to(root)): p.read_text(errors="replace") for p in root.rglob("*") if p.suffix in kinds}


def test_the_chosen_candidates_are_the_runs_of_all_views(study: Path) -> None:
    root = study / "results" / "tinytuned"
    assert {p.name for p in (root / "runs").iterdir()} == {"fedavg", "prox", "gp", *CANDIDATES}
    assert set(pd.read_csv(root / "report/tables/headline.csv")["run"]) == {"fedavg", "prox", "gp"}
    with sqlite3.connect(study / "results/mlflow/mlflow.db") as database:
        names = {row[0] for row in database.execute("select value from params where key = 'run'")}
        values = {row[0] for row in database.execute("select value from params where key = 'beta'")}
    assert names == {"fedavg", "prox", "gp"}
    assert values == {str(json.loads((root / "runs/gp/edema/0/run.json").read_text())["tuned"]["values"]["beta"])}


def test_no_file_has_a_test_score_of_a_candidate(study: Path) -> None:
    root = study / "results" / "tinytuned"
    for place, text in text_files(root).items():
        if set(Path(place).parts) & CANDIDATES:
            assert "test/" not in text, place
    for kind in ("scores", "predictions"):
        assert {p.name for p in (root / "clients/edema" / kind).iterdir()} == {"fedavg", "prox", "gp"}
    for table in (root / "report/tables").glob("*.csv"):
        if table.name != "tuning.csv":
            assert not [name for name in CANDIDATES if name in table.read_text()], table


def test_the_report_shows_the_choice_its_validation_scores_and_its_cost(study: Path) -> None:
    root = study / "results" / "tinytuned"
    table = pd.read_csv(root / "report/tables/tuning.csv")
    assert set(table["candidate"]) == CANDIDATES
    assert table.groupby("run")["chosen"].sum().to_dict() == {"gp": 1, "prox": 1}
    best = table.loc[table.groupby("run")["validation"].idxmax()]
    assert set(best["chosen"]) == {1}
    page = (root / "report/index.html").read_text(encoding="utf-8")
    assert 'id="tuning"' in page and "8 to train on and 80 to choose by" in page
    assert "the validation parts of lesion and consolidation" in page and "labels of edema: none" in page


def test_what_left_the_hospitals_includes_every_candidate(study: Path) -> None:
    left = pd.read_csv(study / "results/tinytuned/report/what_left_each_hospital.csv")
    assert set(left["run"]) == {"fedavg", *CANDIDATES}


def test_another_list_trains_only_the_new_candidate(study: Path, tmp_path: Path) -> None:
    raw = yaml.safe_load(TUNED.read_text())
    raw["runs"]["gp"]["tune"]["beta"] = [0.8, 0.5]
    changed = tmp_path / "changed.yaml"
    changed.write_text(yaml.safe_dump(raw, sort_keys=False))
    planned = snakemake(study, "-n", config=changed)
    assert planned.returncode == 0, planned.stderr[-3000:]
    counts = jobs(planned.stdout)
    assert (counts["federate"], counts["choose"]) == ("1", "1")
    done = snakemake(study, config=changed)
    assert done.returncode == 0, done.stderr[-6000:]
    root = study / "results" / "tinytuned"
    facts = json.loads((root / "runs/gp/edema/0/run.json").read_text())
    assert list(facts["tuned"]["of"]) == ["gp-beta-0.8", "gp-beta-0.5"]
    assert "Nothing to be done" in snakemake(study, config=changed).stderr
