"""A whole study over NVIDIA FLARE by Snakemake: seeds, methods and the report, with the numbers of one machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fdamed.results import load
from tests.network.conftest import free_port
from tests.support.networks import ENVIRONMENT, HOSPITALS, TARGET, Federation, study, write_images

pytest.importorskip("nvflare", reason="the extra `network` is not installed: make test-network")
pytestmark = pytest.mark.network
PROJECT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {"runs": {"fedavg": {}, "gp": {}, "target_only": {}}, "seeds": [0, 1], "batch_runs": 2}
SETTINGS |= {"tracking": {"models": False}}


def snakemake(folder: Path, config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The whole study, with `fdamed` of this Python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "snakemake", "-s", PROJECT / "Snakefile", "--directory", folder, "--cores", "1"]
    command += ["--quiet", "--configfile", config, *words]
    environment = ENVIRONMENT | {"PATH": path, "PYTHONPATH": str(PROJECT)}
    return subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("report"), free_port(), SETTINGS)
    made.prepare()
    try:
        for name in HOSPITALS:
            made.serve(name)
        yield made
    finally:
        made.stop()


def test_one_command_of_snakemake_makes_the_report_of_one_machine(apart: Federation) -> None:
    raw = yaml.safe_load((apart.folder / "study.yaml").read_text(encoding="utf-8"))
    raw["train"].pop("transport")
    plain = apart.folder / "without_transport.yaml"
    plain.write_text(yaml.safe_dump(raw), encoding="utf-8")
    done = snakemake(apart.folder, plain, "--config", "transport=network")
    lead = Path(raw["results"]) / "apart"
    assert done.returncode == 0, done.stderr + (lead / "logs" / "lead.snakemake.log").read_text(encoding="utf-8")

    pooled = apart.folder / "one_machine"
    write_images(pooled / "pooled", HOSPITALS)
    together = apart.folder / "one_machine.yaml"
    together.write_text(yaml.safe_dump(study(pooled, **SETTINGS)), encoding="utf-8")
    done = snakemake(pooled, together)
    assert done.returncode == 0, done.stderr

    here, there = load(pooled / "results" / "apart"), load(lead)
    for name in (
        "headline",
        "scores",
        "pairs",
        "subgroups",
        "calibration",
        "attributes",
        "membership",
        "rounds",
        "cohort",
    ):
        assert there.table(name).equals(here.table(name)), name
    assert len(there.pairs) and len(there.scores.dropna(subset="value"))


def test_the_lead_has_no_prediction_and_no_patient(apart: Federation) -> None:
    import pandas as pd

    lead = apart.folder / "lead"
    assert not [p for p in lead.rglob("*") if p.suffix in (".parquet", ".npy") or "predictions" in p.parts]
    own = apart.folder / TARGET / "results" / "apart" / "clients" / TARGET
    patients = set(pd.read_parquet(own / "predictions" / "gp" / TARGET / "1.parquet")["patient"])
    texts = [p.read_bytes() for p in lead.rglob("*") if p.is_file()]
    assert patients and not any(patient.encode() in text for patient in patients for text in texts)


def test_a_second_snakemake_has_nothing_to_do(apart: Federation) -> None:
    done = snakemake(apart.folder, apart.folder / "study.yaml", "-n")
    assert done.returncode == 0 and "lead" not in done.stdout.split()
