"""fdamed status: what it reads from the files of unfinished runs."""

from __future__ import annotations

from pathlib import Path

from fdamed.cli.commands.status import rounds_in
from fdamed.federation.checkpoint import Checkpoints
from fdamed.federation.runner import run
from fdamed.methods.fedavg import FedAvg
from fdamed.methods.finetune import Finetune
from tests.support import federation as hospitals


def test_rounds_are_counted_and_not_checkpoints(tmp_path: Path) -> None:
    for method, phase, rounds in ((FedAvg(), "state", 4), (Finetune(), "state/then", 3)):
        keep = Checkpoints(tmp_path / phase, lambda p, r: tmp_path / p / f"{r:05d}.safetensors", {}, every=2)
        run(method, hospitals.in_process(), hospitals.theta(), rounds, hospitals.no_judge, keep)
    assert rounds_in(tmp_path) == 4 + 3
    with open(tmp_path / "state/then/record.jsonl", "ab") as log:
        log.write(b'{"metrics": [{"round": 4')  # cut short by a kill
    assert rounds_in(tmp_path) == 4 + 3
    assert rounds_in(tmp_path / "nothing") is None
