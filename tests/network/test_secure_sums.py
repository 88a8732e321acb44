"""Secure aggregation over NVIDIA FLARE: keys that the kits' certificates sign, and the bits of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.network.conftest import STATEFUL, free_port
from tests.network.test_flare import RESIDENT, children, led
from tests.support.networks import HOSPITALS, TARGET, Federation, together

pytest.importorskip("nvflare", reason="the extra `network` is not installed: make test-network")
pytestmark = pytest.mark.network
POLICY = {"public": True, "secure_aggregation": True}
RUNS: dict[str, Any] = {"fedavg": {}, "scaffold": STATEFUL}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def bytes_of_keys(folder: Path) -> int:
    return sum(line["bytes"] for line in read(folder / "ledger.jsonl") if line["kind"] == "key")


def other_lines(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read(folder / "ledger.jsonl") if line["kind"] != "key"]


def test_masked_runs_have_the_bits_of_one_process_also_if_a_hospital_is_killed(tmp_path: Path) -> None:
    """Every hospital's own policy lets out sums alone; its keys are signed, which is all that the ledger has more."""
    changes = {"runs": RUNS, "privacy": POLICY}
    apart = Federation(tmp_path, free_port(), changes)
    apart.prepare({name: {"privacy": POLICY} for name in HOSPITALS})

    def fault() -> None:
        (resident,) = children(apart, "north", RESIDENT)
        resident.kill()

    try:
        for name in HOSPITALS:
            apart.serve(name)
        led(apart, list(RUNS), fault)
        assert "resident ended and is started again" in apart.log("north")
    finally:
        apart.stop()
    alone = together(tmp_path, tuple(f"{run}/{TARGET}/0" for run in RUNS), **changes)
    for run in RUNS:
        there, here = apart.run_folder(run) / TARGET / "0", alone / run / TARGET / "0"
        for name in ("theta.safetensors", "absences.jsonl"):
            assert (there / name).read_bytes() == (here / name).read_bytes(), (run, name)
        assert other_lines(there) == other_lines(here) and bytes_of_keys(there) > bytes_of_keys(here)
        sent = {line["kind"] for line in read(there / "ledger.jsonl") if line["from"] in ("north", "east")}
        assert sent == {"masked", "key", "count"}
