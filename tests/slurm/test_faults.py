"""What goes wrong on a cluster: failing jobs, little memory, signals, a killed Snakemake, an outage of slurmctld."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.conftest import (
    LIMIT,
    QUICK,
    REPO,
    Observer,
    digests,
    environment,
    on_cluster,
    trained_here,
    until,
    write_study,
)

pytestmark = pytest.mark.slurm
ROUNDS = 150
FAULTS = REPO / "tests" / "slurm" / "faults.smk"


def test_a_failed_job_is_sent_again_and_one_over_its_memory_gets_more(cluster: Cluster, tmp_path: Path) -> None:
    command = ["snakemake", "--snakefile", str(FAULTS), "--directory", str(tmp_path)]
    profile = ["--workflow-profile", str(REPO / "profiles" / "slurm"), *QUICK]
    begin = time.monotonic()
    with Observer(cluster) as seen:
        done = subprocess.run(
            [*command, *profile], capture_output=True, text=True, env=environment(), check=False, timeout=LIMIT
        )
    assert done.returncode == 0, done.stderr[-4000:]
    asked = {"flaky": [], "hungry": [], "gpu": []}
    for job, comment in sorted(seen.jobs.items(), key=lambda item: int(item[0])):
        asked[comment.removeprefix("rule_")].append(cluster.described(job)["MinMemoryNode"])
    assert asked["flaky"] == ["2000M", "2000M"]
    assert asked["hungry"] == ["900M", "2400M"]
    assert (tmp_path / "gpu.txt").read_text().strip() in ("0", "1")
    print(f"\nfaults: {asked} in {time.monotonic() - begin:.0f} s")


def child(pid: int) -> int:
    """The one child of a process."""
    found = [int(c) for p in Path(f"/proc/{pid}/task").glob("*/children") for c in p.read_text().split()]
    assert len(found) == 1, found
    return found[0]


def test_a_bad_day_ends_with_the_bits_of_a_good_one(cluster: Cluster, tmp_path: Path) -> None:
    """SIGTERM to a job, then SIGKILL to Snakemake, then slurmctld away: `fdamed watch` brings the study to its end."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    longer = {"train": {"rounds": ROUNDS}, "seeds": [0]}
    expected = trained_here(here, write_study(here, **longer))
    config = write_study(there, **longer)
    log = there / "results" / "cluster" / "logs" / "federate.fedavg.C3.0.log"
    said = tmp_path / "said"
    begin = time.monotonic()
    with open(said, "w") as out:
        command = ["fdamed", "watch", "--silence", "45", "--every", "2", "--", *on_cluster(there, config)]
        watch = subprocess.Popen(command, stdout=out, stderr=out, env=environment(), cwd=REPO)
    try:
        until(lambda: f"round 5/{ROUNDS}" in words(log), "a run in its fifth round")
        first = running(cluster, "fedavg")[0]
        subprocess.run(["scancel", "--signal=TERM", first], check=True)
        until(lambda: first not in running(cluster), "the end of the job that was told to end")
        assert cluster.described(first)["JobState"] == "FAILED"

        until(lambda: "resumed after round" in words(log), "the same run in a second job")
        before = {number for number, _ in cluster.jobs()}
        os.kill(child(watch.pid), signal.SIGKILL)
        until(lambda: "Snakemake is started again (1" in said.read_text(), "a second Snakemake")
        assert "jobs of the dead Snakemake are canceled" in said.read_text()
        until(lambda: set(running(cluster, "fedavg")) - before, "the same run in a third job")

        cluster.stop_controller()
        until(lambda: "SLURM does not answer" in said.read_text(), "the outage to be noticed")
        time.sleep(15)
        cluster.start_controller()
        until(lambda: "SLURM answers again" in said.read_text(), "the end of the outage to be noticed")
        assert watch.wait(2 * LIMIT) == 0, said.read_text()[-4000:]
    finally:
        if watch.poll() is None:
            print(said.read_text()[-4000:])
            watch.send_signal(signal.SIGINT)
            watch.wait(120)
    assert digests(there) == expected
    assert re.search(r"resumed after round [1-9]", words(log))
    lines = [line for line in said.read_text().splitlines() if " watch: " in line]
    print(f"\na bad day: {time.monotonic() - begin:.0f} s", *lines, sep="\n  ")


def words(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


def running(cluster: Cluster, word: str = "") -> list[str]:
    return [number for number, comment in cluster.jobs("RUNNING") if word in comment]
