"""Several runs in one process: the same files, the same bits, and one that fails does not lose the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fdamed.cli.main import main
from fdamed.pipeline.batching import FILES, key

TINY = Path(__file__).resolve().parents[1] / "workflow" / "tiny.yaml"
SAME = [f for f in FILES if f != "timing.jsonl"]
RUNS = {
    "fedavg": {},
    "wild": {"method": "fedavg", "train": {"source": {"lr": 1e30, "optimizer": "sgd"}}},
    "gp": {"beta": 0.5},
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that is ready to be trained."""
    folder = tmp_path_factory.mktemp("batch")
    raw = yaml.safe_load(TINY.read_text()) | {"runs": RUNS, "advise": False, "answers_mb": 0}
    raw["data"]["root"] = str(folder / "raw")
    raw["results"] = str(folder / "results")
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(raw))
    caches = [["cache", "--client", client] for client in raw["split"]["clients"]]
    for stage in (["phantom"], ["ingest"], ["split"], *caches, ["leakage"], ["init", "--seed", "0"]):
        assert main([*stage, "--config", str(path)]) == 0, stage
    return path


def run_folder(study: Path, name: str) -> Path:
    return study.parent / "results" / "tiny" / "runs" / name / "edema" / "0"


def batch(study: Path, *names: str) -> int:
    return main(["federate", "--config", str(study), "--runs", *(f"{n}/edema/0" for n in names)])


def delete_outputs(study: Path, name: str) -> None:
    """What Snakemake does with the outputs of a job that failed."""
    for file in FILES:
        (run_folder(study, name) / file).unlink(missing_ok=True)


def content(study: Path, name: str) -> dict[str, bytes]:
    return {f: (run_folder(study, name) / f).read_bytes() for f in SAME}


def test_a_batch_writes_the_files_of_single_jobs_and_a_failing_run_loses_no_other(study: Path, capfd) -> None:
    single = {}
    for name in ("fedavg", "gp"):
        command = ["federate", "--config", str(study), "--run", name, "--target", "edema", "--seed", "0"]
        assert main(command) == 0
        assert not list((run_folder(study, name) / "state").iterdir())
        single[name] = content(study, name)
        delete_outputs(study, name)

    capfd.readouterr()
    assert batch(study, "fedavg", "wild", "gp") == 2
    stderr = capfd.readouterr().err
    assert "1 of 3 runs of this batch failed: wild/edema/0" in stderr and "not finite" in stderr
    assert "run 3 of 3: gp/edema/0" in stderr
    for name in ("fedavg", "gp"):
        assert content(study, name) == single[name]
        delete_outputs(study, name)

    assert batch(study, "gp", "fedavg") == 0
    stderr = capfd.readouterr().err
    assert stderr.count("under the same conditions and restored") == 2 and "round 1/2" not in stderr
    for name in ("fedavg", "gp"):
        assert content(study, name) == single[name]


def test_what_was_finished_under_other_conditions_is_trained_again(study: Path, tmp_path: Path, capfd) -> None:
    assert batch(study, "gp") == 0
    before = content(study, "gp")
    other = tmp_path / "other.yaml"
    other.write_text(study.read_text().replace("beta: 0.5", "beta: 0.25"))
    delete_outputs(study, "gp")
    capfd.readouterr()
    assert batch(other.rename(study.with_name("other.yaml")), "gp") == 0
    assert "round 2/2" in capfd.readouterr().err
    assert content(study, "gp")["done"] != before["done"]


def test_sigterm_ends_with_75_and_one_line_and_the_next_start_resumes(study: Path) -> None:
    folder = run_folder(study, "fedavg")
    assert batch(study, "fedavg") == 0
    expected = content(study, "fedavg")
    delete_outputs(study, "fedavg")
    for kept in (folder / "state" / "finished").iterdir():
        kept.unlink()
    command = [sys.executable, "-m", "fdamed.cli.main", "federate", "--config", str(study), "--runs", "fedavg/edema/0"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as job:
        while "round 1/2" not in (line := job.stderr.readline()):
            assert line, "the run ended before its first round"
        os.kill(job.pid, signal.SIGTERM)
        stderr = job.stderr.read()
    assert job.returncode == 75
    assert [line for line in stderr.splitlines() if "stopped by SIGTERM" in line] == stderr.splitlines()[-1:]
    assert not (folder / "done").exists()
    again = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "resumed after round 1 of 2" in again.stderr
    assert content(study, "fedavg") == expected


def test_what_names_no_run_is_refused_before_anything_starts(study: Path, capfd) -> None:
    assert key("gp-beta-0.5/edema/-1") == ("gp-beta-0.5", "edema", -1)
    for wrong in ("gp", "gp/edema", "gp/edema/x", "gp/nowhere/0"):
        assert main(["federate", "--config", str(study), "--runs", "fedavg/edema/0", wrong]) == 2
    both = ["federate", "--config", str(study), "--run", "gp", "--runs", "fedavg/edema/0"]
    assert main(both) == 2
    assert main(["federate", "--config", str(study)]) == 2
    assert "Give --run, --target and --seed, or --runs." in capfd.readouterr().err
