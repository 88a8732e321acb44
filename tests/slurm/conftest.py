"""One cluster for all tests here, and the study that they run on it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from fdamed.cli.main import main
from tests.slurm.cluster import Cluster, NoSlurm
from tests.support.idx_files import write_idx

REPO = Path(__file__).resolve().parents[2]
STUDY = REPO / "tests" / "slurm" / "study.yaml"
LIMIT = 800
"""Seconds after which a Snakemake is given up."""
QUICK = ["--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "30"]
"""Look after the jobs more often than a real cluster would like."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        pytest.skip("snakemake-executor-plugin-slurm is not installed: pip install -r envs/slurm.lock")
    try:
        one = Cluster()
        one.start()
    except NoSlurm as reason:
        pytest.skip(f"no SLURM here: {reason}")
    yield one
    one.stop()


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONUNBUFFERED": "1"}


def on_cluster(folder: Path, config: Path, profile: str = "slurm") -> list[str]:
    """The arguments with which Snakemake runs a study in `folder` on the cluster."""
    where = ["--snakefile", str(REPO / "Snakefile"), "--directory", str(folder)]
    return [*where, "--workflow-profile", profile, "--configfile", str(config), *QUICK]


@dataclass
class Seen:
    """Output of squeue while something ran."""

    most: int = 0
    """Jobs that ran at the same time."""
    jobs: dict[str, str] = field(default_factory=dict)
    """Id -> what it was for."""


class Observer:
    """Asks squeue in the background."""

    def __init__(self, cluster: Cluster) -> None:
        self.seen, self._cluster, self._over = Seen(), cluster, threading.Event()
        self._before = {number for number, _ in cluster.jobs()}
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Seen:
        self._thread.start()
        return self.seen

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.5):
            new = [job for job in self._cluster.jobs() if job[0] not in self._before]
            self.seen.jobs |= dict(new)
            running = [job for job in self._cluster.jobs("RUNNING") if job[0] not in self._before]
            self.seen.most = max(self.seen.most, len(running))


def write_study(folder: Path, **changes: object) -> Path:
    """The study with other settings, and its data."""
    write_idx(folder / "idx")
    raw = yaml.safe_load(STUDY.read_text())
    for name, value in changes.items():
        raw[name] = raw[name] | value if isinstance(value, dict) and name in raw else value
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def digests(folder: Path) -> dict[str, str]:
    """Run -> digest of its weights and its metrics."""
    runs = folder / "results" / "cluster" / "runs"
    return {
        str(done.parent.relative_to(runs)): done.read_text() + (done.parent / "metrics.jsonl").read_text()
        for done in sorted(runs.glob("*/*/*/done"))
    }


def trained_here(folder: Path, config: Path) -> dict[str, str]:
    """The same study without any cluster, stage by stage in one process."""
    raw = yaml.safe_load(config.read_text())
    before = Path.cwd()
    os.chdir(folder)
    try:
        said = ["--config", str(config)]
        assert main(["partition", *said]) == 0
        for seed in raw["seeds"]:
            assert main(["init", "--seed", str(seed), *said]) == 0
        target = "C3"
        runs = [f"{run}/{target}/{seed}" for run in raw["runs"] for seed in raw["seeds"]]
        assert main(["federate", "--runs", *runs, *said]) == 0
    finally:
        os.chdir(before)
    return digests(folder)


def until(true, what: str, seconds: float = 900) -> None:
    begin = time.monotonic()
    while not true():
        assert time.monotonic() - begin < seconds, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.3)


def snakemake(folder: Path, config: Path, *more: str, profile: str = "slurm") -> subprocess.CompletedProcess[str]:
    command = ["snakemake", *on_cluster(folder, config, profile), *more]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(), check=False, cwd=REPO, timeout=LIMIT
    )
