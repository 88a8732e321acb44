"""fdamed status: what it reads from the files of unfinished runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fdamed.cli.commands.status import rounds_in
from fdamed.cli.main import main
from fdamed.federation.runner import run
from fdamed.federation.storage.checkpoint import Checkpoints
from fdamed.methods.fedavg import FedAvg
from fdamed.methods.finetune import Finetune
from tests.support import federation as hospitals
from tests.support.run_folders import write_study


def test_rounds_are_counted_and_not_checkpoints(tmp_path: Path) -> None:
    for method, phase, rounds in ((FedAvg(), "state", 4), (Finetune(), "state/then", 3)):
        keep = Checkpoints(tmp_path / phase, lambda p, r: tmp_path / p / f"{r:05d}.safetensors", {}, every=2)
        run(method, hospitals.in_process(), hospitals.theta(), rounds, hospitals.no_judge, keep)
    assert rounds_in(tmp_path) == 4 + 3
    with open(tmp_path / "state/then/record.jsonl", "ab") as log:
        log.write(b'{"metrics": [{"round": 4')  # cut short by a kill
    assert rounds_in(tmp_path) == 4 + 3
    assert rounds_in(tmp_path / "nothing") is None


def test_the_status_repeats_the_heading_of_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_study(tmp_path, runs={"fedavg": {}, "gp": {}}, train={"rounds": 3}, seeds=[0, 1])
    assert main(["status", "--config", str(config)]) == 0
    assert "report: " not in capsys.readouterr().out
    assert main(["report", "--config", str(config)]) == 0
    assert main(["status", "--config", str(config)]) == 0
    assert "report: No method can be called best at NC" in capsys.readouterr().out
    assert main(["status", "--json", "--config", str(config)]) == 0
    assert json.loads(capsys.readouterr().out)["headline"]["NC"].startswith("No method can be called best")
