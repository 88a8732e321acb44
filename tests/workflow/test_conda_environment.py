"""`--sdm conda`: the file that Snakemake copies and gives to conda names only files that exist wherever it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from fdamed.project import environment
from tests.workflow.test_whole_study import REPO, TINY

CONDA = """\
#!/bin/sh
case "$1 $2" in
  "info --json") echo '{"conda_prefix": "/nowhere", "platform": "linux-64"}' ;;
  "--version ") echo "conda 25.1.0" ;;
  "config --get") echo '{"get": {"channel_priority": "strict"}}' ;;
  "env create")
    while [ $# -gt 0 ]; do
      case "$1" in --file) cp "$2" "$RECORD"; dirname "$2" >> "$RECORD.folder" ;; --prefix) mkdir -p "$2" ;; esac
      shift
    done ;;
  "clean -y") ;;
  *) exit 1 ;;
esac
"""
"""What Snakemake asks of conda; it keeps the file from which an environment is to be made."""


def test_the_environment_has_the_lock_and_the_clone_by_full_paths() -> None:
    written = yaml.safe_load((REPO / "envs" / "fdamed.yaml").read_text())
    lock, clone = environment()["dependencies"][-1]["pip"]
    assert lock == f"-r {REPO / 'envs' / 'requirements.lock'}" and clone == f"-e {REPO}"
    assert written["dependencies"][-1]["pip"] == ["-r requirements.lock", "-e .."]
    assert written["dependencies"][:-1] == environment()["dependencies"][:-1]


def test_snakemake_gives_conda_a_file_that_works_in_another_folder(tmp_path: Path) -> None:
    tools, record = tmp_path / "bin", tmp_path / "given.yaml"
    tools.mkdir()
    (tools / "conda").write_text(CONDA)
    (tools / "conda").chmod(0o755)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["snakemake", "--snakefile", str(REPO / "Snakefile"), "--directory", str(tmp_path), "--cores", "1"]
    done = subprocess.run(
        [*command, "--configfile", str(TINY), "--sdm", "conda", "--conda-create-envs-only"],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path, "RECORD": str(record)},
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    folders = set(Path(f"{record}.folder").read_text().split())
    assert folders and str(REPO / "envs") not in folders
    named = [line.split(maxsplit=1)[1] for line in yaml.safe_load(record.read_text())["dependencies"][-1]["pip"]]
    assert len(named) == 2 and all(Path(name).is_absolute() and Path(name).exists() for name in named)
