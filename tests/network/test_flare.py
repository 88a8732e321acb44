"""The study over NVIDIA FLARE: the bits and the ledger of one process, also after every kind of fault.

`make test-network` runs all of it; the test called short is the one of CI.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.networks import HOSPITALS, TARGET, Federation, every_run, fdamed, together

pytest.importorskip("nvflare", reason="the extra `network` is not installed: make test-network")
pytestmark = pytest.mark.network
PATIENCE = 400.0
SAME = ("theta.safetensors", "ledger.jsonl", "absences.jsonl")
FIGURES: dict[str, float] = {}


def wait(what: Callable[[], object], text: str, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, text
        time.sleep(0.1)


def children(federation: Federation, owner: str, words: str) -> list[psutil.Process]:
    """Processes below one that the test has started, by a word of their command line."""
    below = psutil.Process(federation.running[owner].pid).children(recursive=True)
    return [p for p in below if words in " ".join(p.cmdline())]


RESIDENT, CLIENT_JOB, SERVER, SERVER_JOB = "spawn_main", "worker_process", "server_train", "runner_process"


def led(federation: Federation, runs: list[str], fault: Callable[[], None] | None = None, start: bool = True) -> float:
    """Lead these runs to their end; `fault` happens after the first round. The seconds that it took."""
    begin = time.monotonic()
    lead = federation.lead("--runs", *(f"{run}/{TARGET}/0" for run in runs))
    seen = len(federation.log("lead"))
    if fault:
        wait(lambda: "round 1/" in federation.log("lead")[seen:] or lead.poll() is not None, "no round was trained")
        fault()
    wait(lambda: lead.poll() is not None, "the lead did not end")
    assert lead.returncode == 0, federation.log("lead")[seen:]
    return time.monotonic() - begin


@pytest.fixture(scope="session")
def expected(federation: Federation, alone: Path) -> Callable[[str], dict[str, bytes]]:
    """The files of a run in one process; runs of the same settings are trained once."""
    runs = federation.changes["runs"]
    folder = together(alone, (f"fault_resident/{TARGET}/0",), runs=runs)

    def files(run: str) -> dict[str, bytes]:
        place = folder / (run if not run.startswith("fault_") else "fault_resident") / TARGET / "0"
        if not (place / "done").exists():
            done = fdamed("federate", "--config", alone / "together.yaml", "--runs", f"{run}/{TARGET}/0", cwd=alone)
            assert done.returncode == 0, done.stderr
        return {name: (place / name).read_bytes() for name in SAME}

    return files


def files_of(federation: Federation, run: str) -> dict[str, bytes]:
    return {name: (federation.run_folder(run) / TARGET / "0" / name).read_bytes() for name in SAME}


def test_short_a_hospital_killed_between_answers_changes_no_bit(federation: Federation, expected) -> None:
    def fault() -> None:
        (resident,) = children(federation, "north", RESIDENT)
        resident.kill()

    FIGURES["hospital killed, one job"] = led(federation, ["fault_resident"], fault)
    assert files_of(federation, "fault_resident") == expected("fault_resident")
    assert "resident ended and is started again" in federation.log("north")


def test_a_hospital_killed_during_an_answer_changes_no_bit(federation: Federation, expected) -> None:
    def fault() -> None:
        for _ in range(3):
            for resident in children(federation, "east", RESIDENT):
                resident.kill()
            time.sleep(0.7)

    led(federation, ["fault_during"], fault)
    assert files_of(federation, "fault_during") == expected("fault_during")


def test_a_killed_job_process_of_a_hospital_is_a_new_job_that_resumes(federation: Federation, expected) -> None:
    def fault() -> None:
        for job in children(federation, "north", CLIENT_JOB):
            job.kill()

    FIGURES["job process killed, two jobs"] = led(federation, ["fault_job"], fault)
    assert files_of(federation, "fault_job") == expected("fault_job")
    assert "submitted again and resumes" in federation.log("lead")


def test_a_killed_engine_of_the_server_is_started_again_and_resumes(federation: Federation, expected) -> None:
    def fault() -> None:
        for server in children(federation, "lead", SERVER):
            server.kill()

    FIGURES["engine killed, two jobs"] = led(federation, ["fault_engine"], fault)
    assert files_of(federation, "fault_engine") == expected("fault_engine")


def test_a_killed_lead_resumes_when_it_is_started_again(federation: Federation, expected) -> None:
    lead = federation.lead("--runs", f"fault_lead/{TARGET}/0")
    seen = len(federation.log("lead"))
    wait(lambda: "round 1/" in federation.log("lead")[seen:], "no round was trained")
    below = psutil.Process(lead.pid).children(recursive=True)
    for process in (psutil.Process(lead.pid), *below):
        process.kill()
    lead.wait()
    led(federation, ["fault_lead"])
    assert files_of(federation, "fault_lead") == expected("fault_lead")


def test_every_method_gives_the_same_bits_and_the_same_ledger(federation: Federation, expected) -> None:
    runs = list(every_run())
    FIGURES[f"{len(runs)} runs in one job"] = led(federation, runs)
    for run in runs:
        assert files_of(federation, run) == expected(run), run


def test_each_hospital_has_listed_what_it_has_sent(federation: Federation) -> None:
    for name in HOSPITALS:
        path = federation.folder / name / "results" / "apart" / "clients" / name / "released.jsonl"
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert lines and {"time", "run", "round", "step", "sent", "bytes"} <= lines[0].keys()


def test_the_lead_has_no_image_no_table_and_no_path_of_a_hospital(federation: Federation) -> None:
    own = federation.folder / "lead"
    found = [p for p in own.rglob("*") if p.suffix in (".parquet", ".npy", ".png", ".csv") or p.name == "salt"]
    assert found == []
    texts = [p.read_bytes() for p in own.rglob("*") if p.is_file() and p.suffix in (".json", ".jsonl", ".log")]
    assert not any(str(federation.folder / name).encode() in text for text in texts for name in HOSPITALS)


def test_figures_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print("\n" + json.dumps({k: round(v, 1) for k, v in FIGURES.items()}))
    assert all(seconds > 0 for seconds in FIGURES.values())
