"""What every method must do when each hospital is a process of its own that holds its data: the network without wires.

`Hospital.answer` gets the very bytes that an engine brings. tests/network/ has the same over NVIDIA FLARE.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fdamed.cli.commands import init
from fdamed.cli.commands.federate import train_or_restore
from fdamed.config.base import digest_sections
from fdamed.config.loader import parse
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.messages import pack, unpack
from fdamed.federation.transport.wire import Wire, reply_body
from fdamed.pipeline.hospitals.facts import write_told
from fdamed.pipeline.hospitals.report_questions import RELEASED
from fdamed.pipeline.hospitals.resident import Hospital
from fdamed.pipeline.hospitals.site import Site, study_digest
from fdamed.pipeline.paths import Places
from fdamed.pipeline.selection import StudyRun
from tests.support.networks import every_run
from tests.support.small_studies import write_clients

HOSPITALS, TARGET = ("north", "east", "south"), "south"
RUNS = every_run()


def raw(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "study": "apart",
        "results": str(folder),
        "data": {"layout": "chexpert", "root": "nowhere", "salt": "x"},
        "split": {
            "by": "site",
            "clients": {name: name for name in HOSPITALS},
            "target": TARGET,
            "label": "Edema",
            "per_class": 12,
            "labeled": 8,
            "val": 4,
            "test": 8,
        },
        "image": {"size": 32},
        "privacy": {"public": True, "release": ["weights", "update", "statistic", "features", "scalar", "count"]},
        "model": {"width": 0.0625, "heads": ["sex"]},
        "train": {"rounds": 2, "source": {"lr": 0.01, "batch": 8}, "target": {"lr": 0.01, "batch": 4}, "device": "cpu"},
        "seeds": [0],
        "answers_mb": 0,
        "runs": RUNS,
    } | changes


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The study on one machine, with all clients' caches."""
    config = parse(raw(tmp_path_factory.mktemp("together")), "test")
    write_clients(config)
    return config


class Direct(Wire):
    """Hands the bytes to hospitals in this process; `meddle` may do something before each request."""

    def __init__(self, hospitals: dict[str, Hospital], meddle: Callable[[Direct, str, bytes], None] | None = None):
        self.hospitals, self.meddle = hospitals, meddle

    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes | DroppedOut]:
        out: dict[str, bytes | DroppedOut] = {}
        for client, request in requests.items():
            if self.meddle:
                self.meddle(self, client, request)
            out[client] = self.hospitals[client].answer(request)
        return out

    def close(self) -> None:
        assert self.hospitals, "the wire stays open for the next phase"


def apart(
    together: Config, folder: Path, settings: dict[str, Any] | None = None, **site: Any
) -> tuple[Config, dict[str, Hospital]]:
    """The lead's configuration, and hospitals that each have a folder with their own files alone."""
    train = {**raw(folder)["train"], "transport": "network"}
    changes = {"train": train, "network": {"host": "localhost"}} | (settings or {})
    lead = parse(raw(folder / "lead", **changes), "lead")
    hospitals = {}
    for name in HOSPITALS:
        own = folder / name / "apart" / "clients" / name
        shutil.copytree(Places.of(together).client(name), own)
        made = {
            "study": "",
            "client": name,
            "digest": study_digest(lead),
            "kit": "",
            "authority": "",
            "data": {"layout": "chexpert", "root": "nowhere"},
            "privacy": raw(folder)["privacy"],
            "results": str(folder / name),
        }
        hospitals[name] = Hospital(Site.model_validate(made | site), lead)
    init.write(lead, 0, Places.of(lead).init(0))
    return lead, hospitals


def greeted(lead: Config, wire: Wire) -> dict[str, dict[str, Any]]:
    request = pack({"study": study_digest(lead), "question": "hello"}, b"")
    replies = wire.exchange(dict.fromkeys(HOSPITALS, request))
    told = {name: unpack(reply)[0] for name, reply in replies.items()}
    write_told(lead, told)
    return told


def files(config: Config, run: str) -> dict[str, bytes]:
    folder = Places.of(config).run(run, TARGET, 0)
    names = ("theta.safetensors", "ledger.jsonl", "metrics.jsonl", "absences.jsonl")
    return {name: (folder / name).read_bytes() for name in names}


def scores(config: Config, run: str) -> bytes:
    return StudyRun.of(config, run, TARGET, 0).rounds().read_bytes()


def trained(config: Config, run: str, wire: Wire | None = None) -> dict[str, bytes]:
    train_or_restore(StudyRun.federated(config, run, TARGET, 0), 1, in_batch=False, wire=wire)
    return files(config, run) | {"scores": scores(config, run)}


@pytest.fixture(scope="module")
def expected(together: Config) -> Callable[[str], dict[str, bytes]]:
    """The files of a run on one machine, trained once."""
    torch.set_num_threads(1)
    return cache(partial(trained, together))


@pytest.mark.parametrize("run", RUNS)
def test_hospitals_apart_give_the_same_bits_the_same_ledger_and_the_same_scores(
    run: str, together: Config, expected: Callable[[str], dict[str, bytes]], tmp_path: Path
) -> None:
    lead, hospitals = apart(together, tmp_path)
    wire = Direct(hospitals)
    greeted(lead, wire)
    assert trained(lead, run, wire) == expected(run)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_the_server_takes_no_gpu_and_needs_none(
    device: str, together: Config, expected: Callable[[str], dict[str, bytes]], tmp_path: Path, monkeypatch
) -> None:
    """Neither where there is none nor where hospitals train on one; the study, and its digests, are the same."""
    lead, hospitals = apart(together, tmp_path)
    wire = Direct(hospitals)
    greeted(lead, wire)
    train = lead.train.model_copy(update={"device": device})
    server = lead.model_copy(update={"train": train})
    run = next(run for run in RUNS if "then" in RUNS[run])

    def unexpected(jobs: int) -> None:
        raise AssertionError("a GPU was leased")

    monkeypatch.setattr("fdamed.pipeline.devices.lease", unexpected)
    as_hospitals = study_digest(lead)  # which have a CPU here
    monkeypatch.setattr("fdamed.pipeline.phases.study_digest", lambda config: as_hospitals)
    found = trained(server, run, wire)
    assert found == expected(run)
    facts = json.loads((Places.of(server).run(run, TARGET, 0) / "run.json").read_text())
    assert facts["device"] == "cpu" and facts["train"]["device"] == device
    assert facts["digests"]["settings"] == digest_sections(server.model, server.train, server.expanded_runs()[run])


@pytest.mark.parametrize("run", RUNS)
def test_a_hospital_started_again_before_every_question_gives_the_same_bits(
    run: str, together: Config, expected: Callable[[str], dict[str, bytes]], tmp_path: Path
) -> None:
    def restart(wire: Direct, client: str, request: bytes) -> None:
        wire.hospitals[client] = Hospital(wire.hospitals[client].site, lead)

    lead, hospitals = apart(together, tmp_path)
    wire = Direct(hospitals, restart)
    greeted(lead, wire)
    assert trained(lead, run, wire) == expected(run)


@pytest.mark.parametrize("run", RUNS)
def test_a_reply_that_was_lost_is_asked_for_again_and_changes_no_bit(
    run: str, together: Config, expected: Callable[[str], dict[str, bytes]], tmp_path: Path
) -> None:
    """Killed after its answer was computed, before it was sent: the question comes a second time, to a new process."""

    def twice(wire: Direct, client: str, request: bytes) -> None:
        wire.hospitals[client].answer(request)
        wire.hospitals[client] = Hospital(wire.hospitals[client].site, lead)

    lead, hospitals = apart(together, tmp_path)
    wire = Direct(hospitals, twice)
    greeted(lead, wire)
    assert trained(lead, run, wire) == expected(run)


class Gone(Exception):
    """The server is killed here."""


@pytest.mark.parametrize("run", ["fedavg", "scaffold", "gp_heads", "gp_then", "fedbn"])
def test_a_server_killed_at_any_question_resumes_with_the_same_bits(
    run: str, together: Config, expected: Callable[[str], dict[str, bytes]], tmp_path: Path
) -> None:
    lead, hospitals = apart(together, tmp_path)
    left = [0]

    def kill(wire: Direct, client: str, request: bytes) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Gone

    wire = Direct(hospitals, kill)
    greeted(lead, wire)
    for question in range(7, 400, 17):
        left[0] = question
        try:
            found = trained(lead, run, wire)
        except Gone:
            continue
        assert {k: v for k, v in found.items() if k != "metrics.jsonl"} == {
            k: v for k, v in expected(run).items() if k != "metrics.jsonl"
        }
        return
    raise AssertionError("it never ended")


# --- refusals ---------------------------------------------------------------------------------------------------------


def refused(hospital: Hospital, head: dict[str, Any], body: bytes = b"") -> FdamedError:
    with pytest.raises(FdamedError) as error:
        reply_body("north", hospital.answer(pack(head, body)))
    return error.value


def address(hospital: Hospital, run: str = "fedavg") -> dict[str, Any]:
    return {"study": hospital.digest, "run": f"{run}/{TARGET}/0", "phase": "main"}


def test_a_hospital_refuses_another_study(together: Config, tmp_path: Path) -> None:
    _, hospitals = apart(together, tmp_path)
    error = refused(hospitals["north"], address(hospitals["north"]) | {"study": "0123", "question": "hello"})
    assert "has agreed to the study" in error.what


def test_a_hospital_refuses_a_method_that_its_file_does_not_list(together: Config, tmp_path: Path) -> None:
    _, hospitals = apart(together, tmp_path, methods=["fedavg"])
    error = refused(hospitals["north"], address(hospitals["north"], "gp") | {"question": "check", "file": "x"})
    assert "north takes no part in gp" in error.what


def test_the_hospitals_policy_holds_whatever_the_study_says(together: Config, tmp_path: Path) -> None:
    """The study lets weights out; this hospital does not, and notes that it was asked."""
    lead, hospitals = apart(together, tmp_path, privacy={"public": True, "release": ["scalar", "count"]})
    wire = Direct(hospitals)
    greeted(lead, wire)
    with pytest.raises(FdamedError, match="does not release"):
        trained(lead, "fedavg", wire)
    hospital = hospitals["north"]
    error = refused(hospital, address(hospital) | {"step": "train_locally", "round": 1, "nth": 0})
    assert "weights" in error.what
    assert json.loads((hospital.folder / RELEASED).read_text().splitlines()[-1])["sent"] == []


@pytest.mark.parametrize("name", ["../../x.safetensors", "/etc/x.safetensors", "memory/x.txt", "order.parquet", ""])
def test_a_question_cannot_name_a_file_outside_the_hospitals_states(
    name: str, together: Config, tmp_path: Path
) -> None:
    _, hospitals = apart(together, tmp_path)
    for question in ("check", "save", "prune", "keep"):
        hospital = hospitals["north"]
        hospital.answer(pack(address(hospital) | {"question": "load", "file": ""}, b""))
        head = address(hospital) | {"question": question, "file": name, "names": []}
        reply, _ = unpack(hospital.answer(pack(head, b"")))
        assert not reply["ok"] or question == "save", question  # an empty state is not written


@pytest.mark.parametrize("request_bytes", [b"", b"\xff" * 40, pack({"study": 1}, b""), pack({"question": "x"}, b"")])
def test_a_hospital_always_answers(request_bytes: bytes, together: Config, tmp_path: Path) -> None:
    _, hospitals = apart(together, tmp_path)
    assert unpack(hospitals["north"].answer(request_bytes))[0]["ok"] is False


def test_an_error_of_a_hospital_names_none_of_its_files(together: Config, tmp_path: Path) -> None:
    _, hospitals = apart(together, tmp_path)
    north = hospitals["north"]
    shutil.rmtree(north.folder)
    error = refused(north, address(north) | {"question": "check", "file": "memory/a.safetensors"})
    assert str(tmp_path) not in f"{error.what}{error.where}{error.fix}" and "missing" in error.what


def test_hello_tells_no_count_but_that_of_training_images(together: Config, tmp_path: Path) -> None:
    _, hospitals = apart(together, tmp_path)
    told, _ = unpack(hospitals["north"].answer(pack({"study": hospitals["north"].digest, "question": "hello"}, b"")))
    assert set(told["counts"]["images"]) <= {"train", "adapt"} and told["facts"]["positives"] is None
    assert set(told["counts"]) <= {"hash", "content", "images"}


def test_scores_of_small_parts_stay_at_the_target(together: Config, tmp_path: Path) -> None:
    policy = {"release": ["weights", "update", "scalar", "count"], "smallest_images": 1, "smallest_steps": 1}
    lead, hospitals = apart(together, tmp_path, privacy=policy)
    wire = Direct(hospitals)
    greeted(lead, wire)
    trained(lead, "fedavg", wire)
    assert scores(lead, "fedavg") == b""


def test_a_policy_that_changes_between_rounds_holds_from_the_next_question_on(together: Config, tmp_path: Path) -> None:
    """North withholds weights from round 2 on: it is left out, and the others go on."""
    lead, hospitals = apart(together, tmp_path)

    def narrowed(wire: Direct, client: str, request: bytes) -> None:
        head, north = unpack(request)[0], wire.hospitals["north"]
        if client == "north" and head.get("round") == 2 and "weights" in north.site.privacy.release:
            policy = north.site.privacy.model_copy(update={"release": ("scalar", "count")})
            wire.hospitals["north"] = Hospital(north.site.model_copy(update={"privacy": policy}), lead)

    wire = Direct(hospitals, narrowed)
    greeted(lead, wire)
    lines = trained(lead, "fedavg", wire)["absences.jsonl"].decode().splitlines()
    (absence,) = map(json.loads, lines)
    assert (absence["client"], absence["round"], absence["reason"]) == ("north", 2, "failed")
    assert "which it does not release" in absence["why"]


def test_a_hospital_that_does_not_answer_in_time_is_left_out_and_comes_back(together: Config, tmp_path: Path) -> None:
    class Hanging(Direct):
        def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes | DroppedOut]:
            out = super().exchange(requests)
            if "east" in out and unpack(requests["east"])[0].get("round") == 1:
                out["east"] = DroppedOut("east", "no answer in time", Reason.LATE)
            return out

    lead, hospitals = apart(together, tmp_path)
    wire = Hanging(hospitals)
    greeted(lead, wire)
    found = trained(lead, "fedavg", wire)
    (absence,) = map(json.loads, found["absences.jsonl"].decode().splitlines())
    assert (absence["client"], absence["round"], absence["reason"]) == ("east", 1, "late")
    assert any(json.loads(line)["from"] == "east" for line in found["ledger.jsonl"].decode().splitlines())
