"""Lines that are cut or slow, a hospital that hangs, one that answers garbage: all over NVIDIA FLARE.

The lead and two hospitals are in one network namespace, the third is in another, behind a line that the test decides
on (tests/support/lines.py). Without root, or where namespaces are not allowed, the tests are skipped.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.network.conftest import STATEFUL, free_port
from tests.network.test_flare import RESIDENT, SAME, children, wait
from tests.support.garbled_hospital import ROUND
from tests.support.lines import CUT, HOST, PERFECT, SLOW, Line, possible
from tests.support.networks import HOSPITALS, TARGET, Federation, study, together

pytest.importorskip("nvflare", reason="the extra `network` is not installed: make test-network")
pytestmark = [pytest.mark.network, pytest.mark.skipif(bool(possible()), reason=possible())]
ROUNDS = 40
RUNS = ("cut", "slow", "hang", "garbage")
FIGURES: dict[str, Any] = {}


@pytest.fixture(scope="module")
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


@pytest.fixture(scope="module")
def lined(line: Line, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """North is behind the line."""
    train = study(Path())["train"] | {"rounds": ROUNDS, "transport": "network"}
    port = free_port()
    network = {"host": HOST, "port": port, "answer_minutes": 4, "wait_minutes": 3}
    changes = {"runs": dict.fromkeys(RUNS, STATEFUL), "train": train, "network": network}
    made = Federation(tmp_path_factory.mktemp("lines"), port, changes)
    made.places = {name: line.into(line.there if name == "north" else line.here) for name in ("lead", *HOSPITALS)}
    made.prepare()
    try:
        for name in HOSPITALS:
            made.serve(name)
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def expected(lined: Federation) -> dict[str, bytes]:
    """The files of the run in one process: all runs have the same settings."""
    train = {k: v for k, v in lined.changes["train"].items() if k != "transport"}
    folder = together(lined.folder, (f"cut/{TARGET}/0",), runs=lined.changes["runs"], train=train)
    return {name: (folder / "cut" / TARGET / "0" / name).read_bytes() for name in SAME}


def led(lined: Federation, run: str, fault: Callable[[str], None] | None = None, **network: Any) -> float:
    """Lead a run to its end, with other settings of the network if given; `fault` happens after the first rounds."""
    path = lined.folder / "study.yaml"
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump(raw | {"network": lined.changes["network"] | network}), encoding="utf-8")
    begin = time.monotonic()
    lead = lined.lead("--runs", f"{run}/{TARGET}/0")
    seen = len(lined.log("lead"))
    if fault:
        wait(lambda: "round 1/" in lined.log("lead")[seen:] or lead.poll() is not None, "no round was trained")
        fault(run)
    wait(lambda: lead.poll() is not None, f"the lead did not end: {lined.log('lead')[-3000:]}", 600.0)
    assert lead.returncode == 0, lined.log("lead")[seen:]
    return time.monotonic() - begin


def files_of(lined: Federation, run: str) -> dict[str, bytes]:
    return {name: (lined.run_folder(run) / TARGET / "0" / name).read_bytes() for name in SAME}


def lines_of(lined: Federation, run: str, name: str) -> list[dict[str, Any]]:
    path = lined.run_folder(run) / TARGET / "0" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_line_that_is_cut_for_a_minute_changes_no_bit(lined: Federation, line: Line, expected: Any) -> None:
    def fault(run: str) -> None:
        line.set(CUT)
        time.sleep(60.0)
        line.set(PERFECT)

    FIGURES["cut for 60 s, seconds in all"] = led(lined, "cut", fault)
    assert files_of(lined, "cut") == expected
    assert "waiting for 30 s for an answer of" in lined.log("lead")


def test_a_slow_line_with_losses_changes_no_bit(lined: Federation, line: Line, expected: Any) -> None:
    line.set(SLOW)
    try:
        led(lined, "slow")
    finally:
        line.set(PERFECT)
    assert files_of(lined, "slow") == expected
    taken = statistics.median(row["seconds"] for row in lines_of(lined, "slow", "timing")[1:])
    north = [row["bytes"] for row in lines_of(lined, "slow", "ledger") if "north" in (row["from"], row["to"])]
    floor = 8 * sum(north) / ROUNDS / SLOW["bits"]
    FIGURES["slow line"] = {"round": taken, "floor of its bytes": floor, "bytes": sum(north) // ROUNDS}
    assert taken > floor


def test_a_hospital_that_hangs_is_left_out_until_it_answers_again(lined: Federation) -> None:
    def fault(run: str) -> None:
        (resident,) = children(lined, "north", RESIDENT)
        resident.suspend()
        seen, begin = len(lined.log("lead")), time.monotonic()
        try:
            wait(lambda: "no usable answer of north" in lined.log("lead")[seen:], "it was not left out")
        finally:
            resident.resume()
        FIGURES["hang noticed after s, limit 15 s"] = time.monotonic() - begin

    led(lined, "hang", fault, answer_minutes=0.25)
    missed = lines_of(lined, "hang", "absences")
    assert missed and {(a["client"], a["reason"]) for a in missed} == {("north", "late")}
    assert "(late): no answer in time" in lined.log("lead")
    rounds = {row["round"] for row in lines_of(lined, "hang", "ledger") if row["from"] == "north"}
    assert max(rounds) == ROUNDS and not any(row.get("lost") for row in lines_of(lined, "hang", "metrics"))


def test_garbage_in_the_place_of_an_answer_is_rejected_and_the_round_goes_on(lined: Federation) -> None:
    lined.stop("north")
    lined.serve("north", module="tests.support.garbled_hospital")
    wait(lambda: any(psutil.pid_exists(p.pid) for p in children(lined, "north", RESIDENT)), "no garbled hospital")
    led(lined, "garbage")
    assert [(a["round"], a["client"], a["reason"]) for a in lines_of(lined, "garbage", "absences")] == [
        (ROUND, "north", "malformed")
    ]
    assert f"round {ROUND}: no usable answer of north in scaffold.train (malformed)" in lined.log("lead")
    rounds = {row["round"] for row in lines_of(lined, "garbage", "ledger") if row["from"] == "north"}
    assert len(rounds) == ROUNDS - 1 and not any(row.get("lost") for row in lines_of(lined, "garbage", "metrics"))


def test_figures_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print("\n" + json.dumps(FIGURES))
    assert FIGURES
