"""The report of a study whose hospitals are apart: one machine's numbers, from what hospitals let out alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fdamed.cli.commands import init, leakage, report
from fdamed.cli.commands.federate import train_or_restore
from fdamed.config.loader import parse
from fdamed.config.study import Config
from fdamed.core.counts import write_counts
from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json, read_lines, write_json
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.messages import pack, unpack
from fdamed.federation.transport.wire import Wire, reply_body
from fdamed.pipeline.analyses.attributes import infer
from fdamed.pipeline.analyses.comparison import compare
from fdamed.pipeline.analyses.membership import attack
from fdamed.pipeline.clients import resident
from fdamed.pipeline.hospitals.collection import collect
from fdamed.pipeline.hospitals.report_questions import RELEASED
from fdamed.pipeline.hospitals.resident import Hospital
from fdamed.pipeline.hospitals.site import own_split, study_digest
from fdamed.pipeline.paths import Places
from fdamed.pipeline.scoring import score
from fdamed.pipeline.selection import StudyRun, all_runs
from fdamed.results import load
from tests.contract.test_hospitals_apart import HOSPITALS, TARGET, Direct, apart, greeted, raw
from tests.support.small_studies import write_clients

RUNS = ("fedavg", "gp", "target_only", "fedbn")
TABLES = (
    "headline",
    "scores",
    "pairs",
    "subgroups",
    "gaps",
    "calibration",
    "attributes",
    "membership",
    "cohort",
    "rounds",
)
SETTINGS: dict[str, Any] = {"runs": {name: {} for name in RUNS}, "seeds": [0, 1], "audit": {"images": 100}}
SETTINGS["split"] = raw(Path())["split"] | {"per_class": 20, "test": 24}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The study on one machine, with its report."""
    torch.set_num_threads(1)
    config = parse(raw(tmp_path_factory.mktemp("together"), **SETTINGS), "test")
    places = Places.of(config)
    write_clients(config)
    init.write(config, 1, places.init(1))
    write_counts(places.root, "ingest.json", {"hash": "0", "rejected": {"NO_FILE": 3}})
    leakage.write(config, config.split, places)
    for one in all_runs(config):
        train_or_restore(one, 1, in_batch=False)
        score(one, TARGET, resident(config))
    write_json(places.root / "audit" / f"{TARGET}.json", compare(config, TARGET))
    write_json(places.root / "attributes" / f"{TARGET}.json", infer(config, TARGET))
    for client in HOSPITALS:
        write_json(places.root / "membership" / f"{client}.json", attack(config, client))
    report.write(config)
    return config


def hospitals_of(together: Config, folder: Path, **site: Any) -> tuple[Config, dict[str, Hospital]]:
    """The lead's study, and hospitals that have prepared their own data as `fdamed serve` does."""
    train = {**raw(folder)["train"], "transport": "network"}
    lead, hospitals = apart(together, folder, SETTINGS | {"train": train}, **site)
    init.write(lead, 1, Places.of(lead).init(1))
    for name, hospital in hospitals.items():
        for kept in ("predictions", "scores", "models", "rounds", "memory"):
            shutil.rmtree(hospital.folder / kept, ignore_errors=True)
        rejected = {"NO_FILE": 3} if name == "north" else {}
        write_counts(hospital.places.root, "ingest.json", {"hash": "0", "rejected": rejected})
        leakage.write(hospital.config, own_split(hospital.config, name), hospital.places)
    return lead, hospitals


def reported(lead: Config, wire: Wire) -> Path:
    greeted(lead, wire)
    for one in all_runs(lead):
        train_or_restore(one, 1, in_batch=False, wire=wire)
    collect(lead, wire)
    report.write(lead)
    return Places.of(lead).root


@pytest.fixture(scope="module")
def study(together: Config, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, dict[str, Hospital], Path]:
    lead, hospitals = hospitals_of(together, tmp_path_factory.mktemp("apart"))
    return lead, hospitals, reported(lead, Direct(hospitals))


def test_the_report_has_the_numbers_of_one_machine(together: Config, study) -> None:
    """Scores, intervals, paired differences, subgroups, calibration, rounds and both attacks."""
    _, _, root = study
    here, there = load(Places.of(together).root), load(root)
    assert set(TABLES) <= set(here.tables) and here.tables == there.tables
    for name in set(here.tables) - {"costs", "score_by_seconds"}:
        assert there.table(name).equals(here.table(name)), name
    assert read_json(root / "report" / "headline.json") == read_json(
        Places.of(together).root / "report" / "headline.json"
    )


def test_nothing_of_a_hospitals_folder_is_at_the_lead(study) -> None:
    _, hospitals, root = study
    found = {re.sub(r"/(north|east|south)/", "/*/", str(p.relative_to(root))) for p in root.rglob("*") if p.is_file()}
    below = {Path(name).parts[2] if name.count("/") > 1 else name for name in found if name.startswith("clients/")}
    assert below == {"facts.json", "counts.json", "scores", "rounds", "clients/leakage.json", "clients/ingest.json"}
    assert not [p for p in root.rglob("*") if p.suffix in (".parquet", ".npy", ".csv") and "report" not in p.parts]
    patients = {str(p) for h in hospitals.values() for p in _patients(h)}
    texts = [p.read_bytes() for p in root.rglob("*") if p.is_file()]
    assert patients and not any(patient.encode() in text for patient in patients for text in texts)


def _patients(hospital: Hospital) -> set[str]:
    import pandas as pd

    return set(pd.read_parquet(hospital.folder / "order.parquet")["patient"])


def test_a_hospital_lists_what_it_has_let_out_for_the_report(study) -> None:
    _, hospitals, _ = study
    asked = [line for line in read_lines(hospitals[TARGET].folder / RELEASED) if "question" in line]
    assert {line["question"] for line in asked} == {"model", "score", "cohort", "audit", "attributes", "membership"}
    assert all(line["sent"] == [] for line in asked if line["question"] == "model")
    assert {line["question"] for line in read_lines(hospitals["north"].folder / RELEASED) if "question" in line} == {
        "model",
        "cohort",
        "membership",
    }


def test_what_the_target_withholds_is_one_line_of_the_report(together: Config, tmp_path: Path) -> None:
    """Its policy lets updates out, but no scalar: no score, no comparison, no attack is shown."""
    policy = {"public": True, "release": ["weights", "update", "statistic", "features", "scalar", "count"]}
    lead, hospitals = hospitals_of(together, tmp_path, privacy=policy)
    wire = Direct(hospitals)
    greeted(lead, wire)
    for one in all_runs(lead):
        train_or_restore(one, 1, in_batch=False, wire=wire)
    target = hospitals[TARGET]
    silent = target.site.model_copy(update={"privacy": target.site.privacy.model_copy(update={"release": ("count",)})})
    wire.hospitals[TARGET] = Hospital(silent, lead)
    collect(lead, wire)
    report.write(lead)
    root = Places.of(lead).root
    page = (root / "report" / "index.html").read_text(encoding="utf-8")
    assert "the target releases no scalar" in page and "south releases no scalar (privacy.release)" in page
    assert load(root).scores["value"].isna().all()
    assert read_json(root / "membership" / "north.json")["targets"][TARGET]["runs"]


def test_small_groups_stay_at_the_hospital_by_its_own_policy(together: Config, tmp_path: Path) -> None:
    """The study is public, so that the lead would show everything; this hospital shows no cell below 100."""
    policy = {"release": raw(tmp_path)["privacy"]["release"], "smallest_images": 1, "smallest_steps": 1}
    lead, hospitals = hospitals_of(together, tmp_path, privacy=policy | {"smallest_cell": 100, "smallest_batch": 1})
    root = reported(lead, Direct(hospitals))
    counts = read_json(root / "clients" / TARGET / "counts.json")
    assert counts["images"]["test"] is None and set(counts["positives"].values()) == {None}
    assert load(root).scores["value"].isna().all()
    assert all(not read_json(root / "audit" / f"{TARGET}.json")[key] for key in ("pairs", "groups", "scores"))
    assert "holds back small counts" in (root / "report" / "index.html").read_text(encoding="utf-8")
    assert not [row for record in all_runs(lead) for row in read_lines(record.rounds()) if len(row) > 1]


def test_a_source_that_gives_no_answer_is_a_line_and_a_target_that_gives_none_stops_the_report(
    together: Config, study, tmp_path: Path
) -> None:
    class Silent(Direct):
        silent = "north"

        def exchange(self, requests):
            out = super().exchange(requests)
            head = unpack(next(iter(requests.values())))[0]
            if self.silent in out and head.get("question") in ("membership", "score"):
                out[self.silent] = DroppedOut(self.silent, "no answer in time", Reason.LATE)
            return out

    lead, hospitals, root = study
    wire = Silent(hospitals)
    collect(lead, wire)
    report.write(lead)
    assert "North gave no answer" in (root / "report" / "index.html").read_text(encoding="utf-8")
    wire.silent = TARGET
    with pytest.raises(FdamedError, match="no report: south gave no answer"):
        collect(lead, wire)


@pytest.mark.parametrize(
    "head",
    [
        {"question": "model", "run": "init/7"},
        {"question": "model", "run": "../../x/0"},
        {"question": "score", "run": f"unknown/{TARGET}/0"},
        {"question": "score", "run": f"fedavg/{TARGET}/9"},
    ],
)
def test_a_hospital_takes_no_model_of_a_run_that_the_study_does_not_have(head: dict[str, str], study) -> None:
    _, hospitals, _ = study
    hospital = hospitals[TARGET]
    before = {p for p in hospital.places.root.rglob("*") if p.is_file()}
    with pytest.raises(FdamedError):
        reply_body(TARGET, hospital.answer(pack({"study": hospital.digest} | head, b"x")))
    assert {p for p in hospital.places.root.rglob("*") if p.is_file()} == before


def test_a_source_scores_no_model(study) -> None:
    """Only the target of a run has the test part on which its scores are compared."""
    _, hospitals, _ = study
    head = {"study": study_digest(study[0]), "question": "score", "run": f"fedavg/{TARGET}/0"}
    assert unpack(hospitals["north"].answer(pack(head, b"")))[0]["ok"] is False


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"pairs": NaN}', b"{", json.dumps({"pairs": "x"}).encode()])
def test_an_audit_that_cannot_be_read_stops_the_report_or_is_a_line_of_it(content: bytes, study) -> None:
    class Strange(Direct):
        def exchange(self, requests):
            head = unpack(next(iter(requests.values())))[0]
            if head.get("question") == "audit":
                return dict.fromkeys(requests, pack({"ok": True}, content))
            return super().exchange(requests)

    lead, hospitals, root = study
    try:
        collect(lead, Strange(hospitals))
    except FdamedError as error:
        assert "cannot be read" in error.what
    else:
        assert "suppressed" in read_json(root / "audit" / f"{TARGET}.json")
        report.write(lead)


def test_runs_are_found_by_their_own_names(study) -> None:
    """What the target says of itself in a score is replaced by what the lead knows."""
    lead, _, _ = study
    found = read_json(StudyRun.of(lead, "gp", TARGET, 1).scores(TARGET))
    assert (found["run"], found["seed"], found["client"], "n" in found) == ("gp", 1, TARGET, False)
