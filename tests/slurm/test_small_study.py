"""A small study through a real SLURM: two jobs at a time, few submissions, the bits of a run without a cluster."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.conftest import Observer, digests, snakemake, trained_here, write_study

pytestmark = pytest.mark.slurm


def test_a_study_on_the_cluster_has_the_bits_of_one_without(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    expected = trained_here(tmp_path / "here", write_study(tmp_path / "here", seeds=[0]))
    config = write_study(tmp_path / "there", seeds=[0])
    begin = time.monotonic()
    with Observer(cluster) as seen:
        done = snakemake(tmp_path / "there", config)
    seconds = time.monotonic() - begin
    assert done.returncode == 0, done.stderr[-4000:]
    assert digests(tmp_path / "there") == expected
    assert seen.most >= 2, "no two jobs ran at the same time"
    assert (tmp_path / "there" / "results" / "cluster" / "report" / "index.html").stat().st_size > 0
    tracked = json.loads((tmp_path / "there" / "results" / "cluster" / "tracked.json").read_text())
    # divide; init; federate twice; evaluate; audit; probe
    assert len(seen.jobs) == 7, seen.jobs
    print(f"\nSLURM: 7 jobs in {len(seen.jobs)} submissions, {seen.most} at a time, {seconds:.0f} s; {tracked}")
