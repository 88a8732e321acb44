"""`fdamed new`: a folder of one's own, whose rules are those of the installed fdamed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fdamed.cli.main import main
from fdamed.project import FOLDER

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests/workflow/tiny.yaml"


def in_folder(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_files_of_the_package_are_those_of_the_clone() -> None:
    for name in ("Snakefile", "workflow", "profiles", "config", "envs"):
        assert (FOLDER / name).resolve() == ROOT / name


def test_a_new_folder_is_planned_with_the_rules_of_the_package(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "ours"
    assert main(["new", str(folder), "--layout", "table"]) == 0
    assert "fdamed doctor" in capsys.readouterr().out
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == [
        *(
            ".gitignore",
            "Snakefile",
            "config/config.yaml",
            "profiles/default/config.yaml",
            "profiles/slurm/config.yaml",
        ),
    ]
    assert (folder / "config/config.yaml").read_text() == (ROOT / "config/table.yaml").read_text()
    planned = in_folder(folder, "snakemake", "-n", "--cores", "1")
    assert planned.returncode == 0, planned.stderr[-3000:]
    jobs = dict(line.split() for line in planned.stdout.splitlines() if len(line.split()) == 2)
    assert (jobs["federate"], jobs["cache"], jobs["report_page"]) == ("21", "3", "1")  # seven runs, three seeds


def test_nothing_is_overwritten(tmp_path: Path, capsys) -> None:
    (tmp_path / "mine").write_text("kept")
    assert main(["new", str(tmp_path)]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
def test_a_study_runs_in_a_new_folder(tmp_path: Path) -> None:
    folder = tmp_path / "first"
    assert main(["new", str(folder), "--layout", "demo"]) == 0
    (folder / "config/config.yaml").write_text(TINY.read_text())
    done = in_folder(folder, "fdamed", "run", "--cores", "2")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (folder / "results/tiny/report/index.html").stat().st_size > 0
    again = in_folder(folder, "snakemake", "-n", "--cores", "1")
    assert "Nothing to be done" in again.stdout + again.stderr
