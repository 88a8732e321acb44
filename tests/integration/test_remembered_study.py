"""Remembered answers in a study: the files of a run are those without them, and each client has its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fdamed.cli.main import main
from fdamed.config.loader import load
from fdamed.core.files import read_lines, write_lines
from fdamed.core.run_record import read
from fdamed.evaluation.costs import seconds
from fdamed.federation.storage import answers as remembering
from fdamed.pipeline.batching import FILES
from fdamed.pipeline.clients import remembered
from fdamed.pipeline.fingerprint import fingerprint
from fdamed.pipeline.selection import StudyRun
from tests.support.run_folders import edit, write_study

TINY = Path(__file__).resolve().parents[1] / "workflow" / "tiny.yaml"
SAME = [f for f in FILES if f != "timing.jsonl"]
RUNS = {"fedavg": {}, "gp": {"beta": 0.5, "warmup": 1}, "fedgp": {"beta": 0.5, "warmup": 1}}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that is ready to be trained, and remembers nothing."""
    folder = tmp_path_factory.mktemp("remembered")
    raw = yaml.safe_load(TINY.read_text()) | {"runs": RUNS, "advise": False, "answers_mb": 0}
    raw["data"]["root"], raw["results"] = str(folder / "raw"), str(folder / "results")
    study = written(folder / "study.yaml", raw)
    caches = [["cache", "--client", client] for client in raw["split"]["clients"]]
    for stage in (["phantom"], ["ingest"], ["split"], *caches, ["leakage"], ["init", "--seed", "0"]):
        assert main([*stage, "--config", str(study)]) == 0, stage
    return study


@pytest.fixture(autouse=True)
def everything_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("WORTH", "PER_MEGABYTE"):
        monkeypatch.setattr(remembering, limit, 0.0)


def written(path: Path, raw: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(raw))
    return path


def with_changes(study: Path, name: str, **changes: Any) -> Path:
    return written(study.with_name(name), yaml.safe_load(study.read_text()) | changes)


def trained(study: Path, run: str) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """The files of a run but its clock's, which is the second."""
    assert main(["federate", "--config", str(study), "--run", run, "--target", "edema", "--seed", "0"]) == 0
    folder = study.parent / "results/tiny/runs" / run / "edema/0"
    files, timing = {name: (folder / name).read_bytes() for name in SAME}, read_lines(folder / "timing.jsonl")
    for name in FILES:
        (folder / name).unlink()
    return files, timing


def kept(study: Path) -> dict[str, int]:
    """Client -> its remembered answers; nothing lies anywhere else."""
    folders = [p for p in (study.parent / "results").rglob("answers") if p.is_dir()]
    assert all(p.parent.parent == study.parent / "results/tiny/clients" for p in folders)
    return {p.parent.name: len(list(p.iterdir())) for p in folders}


def test_runs_share_their_answers_and_write_the_same_files(prepared: Path) -> None:
    expected = {run: trained(prepared, run)[0] for run in RUNS}
    assert kept(prepared) == {}
    study = with_changes(prepared, "remembering.yaml", answers_mb=100)
    timing = {}
    for run in RUNS:
        files, timing[run] = trained(study, run)
        assert files == expected[run], run
    sources = len(load(study).split.clients) - 1
    assert [line.get("remembered", 0) for line in timing["fedavg"]] == [0, 0]
    assert [line.get("remembered", 0) for line in timing["gp"]] == [sources, 0], "FedAvg's first round"
    assert [line.get("remembered", 0) for line in timing["fedgp"]] == [sources, sources + 1], "and GP's first"
    assert timing["fedgp"][1]["remembered_cpu"] > timing["fedgp"][1]["cpu"]
    assert set(kept(study)) == set(load(study).split.clients)
    again, lines = trained(with_changes(study, "apart.yaml", train=apart(study)), "fedgp")
    assert {n: c for n, c in again.items() if n != "run.json"} == {
        n: c for n, c in expected["fedgp"].items() if n != "run.json"
    }
    assert [line["remembered"] for line in lines] == [sources, sources + 1], "in processes of their own, too"


def apart(study: Path) -> dict[str, Any]:
    return yaml.safe_load(study.read_text())["train"] | {"transport": "multiprocess"}


def test_the_setting_is_in_no_fingerprint(prepared: Path) -> None:
    runs = [
        StudyRun.federated(load(with_changes(prepared, f"{n}.yaml", answers_mb=n)), "gp", "edema", 0) for n in (0, 7)
    ]
    assert fingerprint(runs[0], 1) == fingerprint(runs[1], 1)


def test_nothing_is_remembered_in_a_run_with_differential_privacy(prepared: Path) -> None:
    run = StudyRun.federated(load(with_changes(prepared, "on.yaml", answers_mb=50)), "fedavg", "edema", 0)
    assert remembered(run.config, run.spec, run.method.steps, 1)
    private = run.spec.model_copy(update={"differential": {"multiplier": 1.0}})
    assert remembered(run.config, private, run.method.steps, 1) is None


def test_the_clients_share_the_megabytes_of_the_study(prepared: Path) -> None:
    run = StudyRun.federated(load(with_changes(prepared, "on.yaml", answers_mb=50)), "fedavg", "edema", 0)
    found = remembered(run.config, run.spec, run.method.steps, 1)
    assert found and found.limit * len(run.config.split.clients) <= 50_000_000 < (found.limit + 1) * 5


def test_a_round_costs_what_computing_it_took(tmp_path: Path) -> None:
    """Two rounds of which the second took 1 s, and its remembered answers 9 s when they were computed."""
    config = write_study(tmp_path, runs={"gp": {}}, seeds=[0])
    folder = config.parent / "runs/gp/NC/0"
    line = {"started": "2026-03-01T08:00:00", "seconds": 1.0, "cpu": 1.0}
    write_lines(
        folder / "timing.jsonl",
        [line | {"round": 1}, line | {"round": 2, "remembered": 4, "remembered_seconds": 9.0, "remembered_cpu": 7.0}],
    )
    record = read(folder, 1)
    assert record and seconds(record) == 10.0
    edit(folder / "run.json", device="cpu", train={"transport": "in_process"})
    record = read(folder, 1)
    assert record and seconds(record) == 8.0
