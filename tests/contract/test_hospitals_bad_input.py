"""A hospital with a full disk, other data or another clock: one clear line for the operator, and nothing is mixed."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest
import yaml

from fdamed.cli.commands import serve
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.locks import locked
from fdamed.federation.absences import DroppedOut
from fdamed.federation.messages import unpack
from fdamed.pipeline.hospitals import resident
from fdamed.pipeline.hospitals.facts import check_clocks
from fdamed.pipeline.hospitals.site import Site, network_study, shared_study, study_digest
from tests.contract.test_hospitals_apart import (
    Direct,
    apart,
    expected,  # noqa: F401  (a fixture)
    greeted,
    together,  # noqa: F401  (a fixture)
    trained,
)
from tests.faults.test_room import files_up_to
from tests.support.networks import DATA, study, write_images


class FullDisk(Direct):
    """North cannot write a state while it answers the steps of round 2."""

    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes | DroppedOut]:
        out: dict[str, bytes | DroppedOut] = {}
        for client, request in requests.items():
            head = unpack(request)[0]
            if client == "north" and head.get("round") == 2 and "step" in head:
                with files_up_to(20_000):
                    out[client] = self.hospitals[client].answer(request)
            else:
                out[client] = self.hospitals[client].answer(request)
        return out


def test_a_hospital_with_a_full_disk_sends_nothing_is_left_out(
    together: Config,  # noqa: F811
    tmp_path: Path,
) -> None:
    lead, hospitals = apart(together, tmp_path)
    wire = FullDisk(hospitals)
    greeted(lead, wire)
    found = trained(lead, "scaffold", wire)
    lines = [json.loads(line) for line in found["absences.jsonl"].decode().splitlines()]
    assert {(line["client"], line["round"], line["reason"]) for line in lines} == {("north", 2, "failed")}
    assert "cannot be written" in lines[0]["why"] and str(tmp_path) not in lines[0]["why"]
    sent = [json.loads(line) for line in found["ledger.jsonl"].decode().splitlines()]
    assert {line["round"] for line in sent if line["from"] == "north"} == {1}


def test_the_state_after_an_answer_that_could_not_be_kept_is_forgotten(
    together: Config,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Else the next answer would begin at a state that the server has never heard of."""
    lead, hospitals = apart(together, tmp_path / "whole")
    seen: list[bytes] = []
    wire = Direct(hospitals, lambda wire, client, request: seen.append(request) if client == "north" else None)
    greeted(lead, wire)
    trained(lead, "scaffold", wire)
    first = next(i for i, request in enumerate(seen) if "step" in unpack(request)[0])

    def answered(folder: Path, refused: bool) -> bytes:
        _, fresh = apart(together, folder)
        for request in seen[:first]:
            fresh["north"].answer(request)
        if refused:
            with files_up_to(20_000):
                assert unpack(fresh["north"].answer(seen[first]))[0]["ok"] is False
        return fresh["north"].answer(seen[first])

    assert answered(tmp_path / "full", refused=True) == answered(tmp_path / "not", refused=False)


def test_a_lead_without_data_needs_no_data_section(tmp_path: Path) -> None:
    raw = study(tmp_path, 8002)
    del raw["data"]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    config, network = network_study(tmp_path / "study.yaml")
    assert network.port == 8002 and study_digest(config) == study_digest(shared_study(tmp_path / "study.yaml"))


def test_a_hospital_whose_data_changed_stops_the_study(together: Config, tmp_path: Path) -> None:  # noqa: F811
    lead, hospitals = apart(together, tmp_path)
    wire = Direct(hospitals)
    greeted(lead, wire)
    path = hospitals["north"].folder / "order.parquet"
    pd.read_parquet(path).iloc[:-1].to_parquet(path)
    with pytest.raises(FdamedError, match="the data of north has changed since the study began") as error:
        greeted(lead, wire)
    assert "another `study`" in error.value.fix


def test_a_second_hospital_of_the_same_name_is_refused(together: Config, tmp_path: Path) -> None:  # noqa: F811
    """A copy of north's data, file and kit on another machine: after a fault it could answer in north's place."""
    lead, hospitals = apart(together, tmp_path / "first")
    _, others = apart(together, tmp_path / "second")
    wire = Direct(dict(hospitals))
    greeted(lead, wire)
    greeted(lead, wire)
    wire.hospitals["north"] = others["north"]
    with pytest.raises(FdamedError, match="two `fdamed serve` may run under its name"):
        greeted(lead, wire)


def test_a_folder_is_served_once(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(FdamedError, match="another run is writing to this folder"), locked(tmp_path):
        pass


def test_a_hospital_is_warned_if_its_tables_have_changed_since_they_were_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_images(tmp_path / "data", ("north",))
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study(tmp_path, 8002)), encoding="utf-8")
    raw = {
        "study": str(path),
        "client": "north",
        "digest": study_digest(shared_study(path)),
        "kit": "",
        "authority": "",
    }
    raw |= {"data": DATA | {"root": str(tmp_path / "data")}, "privacy": {"public": True}, "results": str(tmp_path)}
    site = Site.model_validate(raw)
    serve.prepare(site)
    cache = tmp_path / "apart" / "clients" / "north" / "order.parquet"
    before = cache.read_bytes()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fdamed"):
        serve.prepare(site)
        assert not caplog.records
        with open(tmp_path / "data" / "images.csv", "a", encoding="utf-8") as table:
            table.write("\n")
        serve.prepare(site)
    assert "the tables of north have changed since they were read" in caplog.records[0].getMessage()
    assert cache.read_bytes() == before


@pytest.mark.parametrize(("minutes", "words"), [(-5, "5 minutes behind"), (5, "5 minutes ahead of"), (0, "")])
def test_a_clock_that_is_minutes_off_is_one_line_and_changes_no_bit(
    minutes: int,
    words: str,
    together: Config,  # noqa: F811
    expected,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lead, hospitals = apart(together, tmp_path)
    now = datetime.now(UTC)
    monkeypatch.setattr(resident.time, "time", lambda: (now + timedelta(minutes=minutes)).timestamp())
    wire = Direct(hospitals)
    with caplog.at_level(logging.WARNING, "fdamed"):
        told = greeted(lead, wire)
        check_clocks(told, now.timestamp(), now.timestamp() + 1)
    lines = [record.getMessage() for record in caplog.records if "clock" in record.getMessage()]
    assert (len(lines) == 3 and all(words in line for line in lines)) if words else not lines
    if minutes < 0:
        assert trained(lead, "fedavg", wire) == expected("fedavg")
