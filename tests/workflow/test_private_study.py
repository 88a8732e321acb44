"""A study with secure noise at its sources, through Snakemake: its privacy costs are shown wherever they must be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fdamed.federation.privacy_budget import FILE, lines_in
from fdamed.training.dp_sgd import epsilon
from tests.workflow.test_whole_study import REPO, snakemake


@pytest.mark.slow
def test_epsilon_of_secure_noise_is_in_metrics_record_report_and_in_the_hospitals_account(tmp_path: Path) -> None:
    pytest.importorskip("opacus", reason="the extra `privacy` is not installed")
    done = snakemake(tmp_path, config=REPO / "tests" / "workflow" / "tiny_private.yaml")
    assert done.returncode == 0, done.stderr[-6000:]
    root = tmp_path / "results" / "tiny_private"
    run = root / "runs" / "secure" / "edema" / "0"
    privacy = json.loads((run / "run.json").read_text())["privacy"]
    assert privacy["mode"] == "secure" and set(privacy["sources"]) == {"lesion", "consolidation"}
    cost = privacy["sources"]["lesion"]
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rounds = [line["privacy/epsilon/lesion"] for line in metrics]
    assert 0 < rounds[0] < rounds[1] == pytest.approx(cost["epsilon"], rel=1e-6)
    account = lines_in({}, root / "clients" / "lesion" / "memory" / "secure" / "edema" / "0" / FILE)
    assert [list(line) for line in account] == cost["spent"], "the account stays when the run is finished"
    assert epsilon(account, cost["delta"]) == cost["epsilon"]
    page = (root / "report" / "index.html").read_text(encoding="utf-8")
    assert f"{cost['epsilon']:.2f}" in page and "secure: noise from the operating system" in page
    assert (root / "report" / "tables" / "privacy.csv").stat().st_size > 0
    assert json.loads((root / "membership" / "lesion.json").read_text())["targets"]["edema"]["runs"]["secure"]["loss"]
