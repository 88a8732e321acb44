"""Runs in MLflow: imported once, complete, and without anything that identifies a person or a machine."""

from __future__ import annotations

import getpass
import json
import shutil
import socket
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import ViewType

sys.path.insert(0, str(Path(__file__).parents[1]))

from fdamed.cli.commands.track import models, run_entries
from fdamed.cli.main import main
from fdamed.config.loader import load
from fdamed.core.counts import counts_of
from fdamed.core.errors import FdamedError
from fdamed.core.run_record import read, study
from fdamed.tracking.models import Candidate, offered, register
from fdamed.tracking.payload import Entry, params, points, tags
from fdamed.tracking.store import Store, connect, place
from tests.support.run_folders import edit, without_auc, write_run, write_study

STUDY = {
    "runs": {"fedavg": {}, "gp": {}},
    "train": {"rounds": 3},
    "seeds": [0, 1],
    "tracking": {"models": False},  # these run folders hold no weights
}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that is in MLflow, below this folder; made once, for a new database takes seconds."""
    folder = tmp_path_factory.mktemp("tracked")
    assert main(["track", "--config", str(write_study(folder, **STUDY))]) == 0
    return folder


def runs_of(folder: Path) -> list[Any]:
    client = connect(Store(f"sqlite:///{folder}/results/mlflow/mlflow.db"))
    experiment = client.get_experiment_by_name("demo")
    return list(client.search_runs([experiment.experiment_id], "tags.level = 'run'"))


def test_tracking_twice_changes_nothing_and_a_retrained_run_is_replaced(
    tracked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tracked, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "results/demo/config.json"
    edit(config, results=str(tmp_path / "results"))  # results/ may be moved: nothing in the store knows its place
    first = runs_of(tmp_path)
    assert len(first) == 4
    assert main(["track", "--config", str(config)]) == 0
    assert "0 new, 0 replaced, 5 kept" in capsys.readouterr().err
    assert {r.info.run_id for r in runs_of(tmp_path)} == {r.info.run_id for r in first}

    write_run(config.parent, "gp", "gp", "NC", 1, ["LO", "CO", "ED", "AT", "NC"], 3, nudge=0.05)
    assert main(["track", "--config", str(config)]) == 0
    assert "0 new, 1 replaced, 4 kept" in capsys.readouterr().err
    second = runs_of(tmp_path)
    assert sorted(r.info.run_name for r in second) == ["fedavg-NC-s0", "fedavg-NC-s1", "gp-NC-s0", "gp-NC-s1"]
    assert len({r.info.run_id for r in second} & {r.info.run_id for r in first}) == 3
    assert len(list((tmp_path / "results/mlflow/artifacts/demo").iterdir())) == 5
    summary = json.loads((config.parent / "tracked.json").read_text())
    assert (summary["experiment"], summary["runs"], summary["missing"]) == ("demo", 4, 0)
    assert "viewStateShareKey" in summary["open"]


def test_what_was_shown_once_and_is_hidden_now_is_not_kept_among_deleted_runs(tracked: Path, tmp_path: Path) -> None:
    """MLflow only marks a deleted run, and serves it to whoever asks for deleted ones."""
    shutil.copytree(tracked, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "results/demo/config.json"
    edit(config, results=str(tmp_path / "results"))
    counts = config.parent / "clients/NC/counts.json"
    database = tmp_path / "results/mlflow/mlflow.db"
    before = len([r for r in runs_of(tmp_path) if "val/auc" in r.data.metrics])
    edit(counts, positives=json.loads(counts.read_text())["positives"] | {"val": 4})
    assert before == 4 and b"val/auc" in database.read_bytes()
    assert main(["track", "--config", str(config)]) == 0
    client = connect(Store(f"sqlite:///{database}"))
    experiment = client.get_experiment_by_name("demo").experiment_id
    assert client.search_runs([experiment], run_view_type=ViewType.DELETED_ONLY) == []
    assert not any("val/auc" in r.data.metrics for r in runs_of(tmp_path))
    with closing(sqlite3.connect(database)) as tables:
        kept = [key for (key,) in tables.execute("select key from metrics union select key from latest_metrics")]
    assert kept and not [key for key in kept if key.startswith("val/") or key == "test/acc"]
    assert b"val/acc" not in database.read_bytes(), "nor in the free pages of the file"


def test_nothing_in_the_store_names_a_login_a_place_or_a_secret(tracked: Path) -> None:
    run = next(r for r in runs_of(tracked) if r.info.run_name == "gp-NC-s0")
    assert run.info.user_id == "fdamed"
    assert run.data.tags["mlflow.user"] == "fdamed"
    assert run.info.status == "FINISHED"
    everything = [p.read_bytes() for p in (tracked / "results/mlflow").rglob("*") if p.is_file()]
    for secret in ("a-secret-salt", "/secret/place", str(tracked), str(Path.cwd()), str(Path.home()) + "/"):
        assert not any(secret.encode() in content for content in everything), secret
    if getpass.getuser() not in {"root", "fdamed"}:
        assert getpass.getuser() not in json.dumps([run.data.tags, run.data.params])
    kept = tracked / "results/mlflow/artifacts/demo" / run.info.run_id / "artifacts"
    assert json.loads((kept / "config.json").read_text())["study"] == "demo"


def test_the_experiment_opens_as_a_table_of_results(tracked: Path) -> None:
    client = connect(Store(f"sqlite:///{tracked}/results/mlflow/mlflow.db"))
    experiment = client.get_experiment_by_name("demo")
    assert experiment.artifact_location == "mlflow-artifacts:/demo"
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert "Synthetic phantoms" in experiment.tags["mlflow.note.content"]
    assert json.loads(experiment.tags["mlflow.sharedViewState.fdamed"])["orderByKey"] == "metrics.`test/auc`"


def test_a_run_becomes_flat_params_and_one_value_a_round(tmp_path: Path) -> None:
    folder = write_study(tmp_path, **STUDY).parent / "runs/gp/NC/0"
    edit(folder / "../../../../clients/NC/scores/gp/NC/0.json", auc=0.9, acc=None, why={"acc": "x"})
    record = read(folder, 11)
    assert record is not None
    found = params(record)
    assert (found["method"], found["beta"], found["lr_target"], found["sources"]) == (
        "gp",
        "0.5",
        "0.0002",
        "LO, CO, ED, AT",
    )
    assert record.key == "demo/gp/NC/0"
    assert tags(record)["level"] == "run"
    values = points(record)
    auc = [(step, value) for key, value, _, step in values if key == "test/auc"]
    assert [step for step, _ in auc] == [1, 2, 3]
    assert auc[-1][1] == 0.9  # the final score, in the place of the last round's
    assert [key for key, *_ in values].count("test/acc") == 3  # an undefined score hides no round
    assert {key.split("/")[0] for key, *_ in values} == {"train", "val", "test", "comm", "runtime"}
    sent = {key: value for key, value, _, _ in values}["comm/mb_out"]
    assert sent == pytest.approx(4 * 3 * 2_800_008 / 1e6)
    assert min(when for *_, when, _ in values) > 1_700_000_000_000  # from the files, in milliseconds
    assert len({(key, step) for key, _, _, step in values}) == len(values)


def test_scores_over_few_images_do_not_reach_mlflow(tmp_path: Path) -> None:
    folder = write_study(tmp_path, **STUDY).parent / "runs/gp/NC/0"
    edit(folder / "../../../../clients/NC/scores/gp/NC/0.json", n=40, positives=4)
    record = read(folder, 11)
    assert record is not None
    keys = {key for key, *_ in points(record)}
    assert not {k for k in keys if k.startswith("test/") and k.count("/") == 1}
    assert "test/LO/auc" in keys


def test_scores_on_a_small_validation_part_do_not_reach_mlflow(tmp_path: Path) -> None:
    path = write_study(tmp_path, **STUDY)
    config = load(path)
    counts = path.parent / "clients/NC/counts.json"

    def entry() -> Entry:
        records, _ = study(path.parent / "runs", [("gp", "NC", 0)], 11)
        return run_entries(config, records)[0]

    large = entry()
    edit(counts, positives=json.loads(counts.read_text())["positives"] | {"val": 4})
    small = entry()
    assert large.digest != small.digest
    kept, rest = ({key for key, *_ in one.content().points} for one in (large, small))
    at_target = {key for key in kept if key.startswith(("val/", "test/")) and key.count("/") == 1}
    assert {"val/auc", "val/acc", "test/acc"} <= kept
    assert kept - rest == at_target - {"test/auc"}, "from the accuracy the positives of the test part would follow"
    counts.unlink()
    hidden = {key for key, *_ in entry().content().points if key.startswith("val/")}
    assert not hidden, "a part whose counts are not known counts as small"


def test_scores_of_several_classes_are_suppressed_by_their_images_alone(tmp_path: Path) -> None:
    folder = write_study(tmp_path, **STUDY).parent / "runs/gp/NC/0"
    without_auc(folder)
    for n, shown in ((40, True), (10, False)):
        edit(folder / "../../../../clients/NC/scores/gp/NC/0.json", n=n)
        record = read(folder, 11)
        assert record is not None
        assert ("test/acc" in {key for key, *_ in points(record)}) is shown


def test_no_model_is_registered_where_validation_cannot_carry_the_choice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_study(tmp_path, **STUDY | {"tracking": {}})
    config = load(path)
    records, _ = study(path.parent / "runs", [("gp", "NC", 0), ("gp", "NC", 1)], 11)
    cohort = {"NC": counts_of(path.parent, "NC")}
    assert [model.name for model in models(config, records, cohort)] == ["demo-NC"]
    cohort["NC"] |= {"images": {"val": 7}, "patients": {"val": 7}, "positives": {"val": 3}}
    assert models(config, records, cohort) == []
    assert "no model is registered for NC: its validation part is too small" in caplog.text


def test_the_note_of_the_experiment_says_what_the_report_says(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    assert main(["report", "--config", str(config)]) == 0
    assert main(["track", "--config", str(config)]) == 0
    heading = json.loads((config.parent / "report/headline.json").read_text())["NC"]["sentences"][0]
    client = connect(Store(f"sqlite:///{tmp_path}/results/mlflow/mlflow.db"))
    note = client.get_experiment_by_name("demo").tags["mlflow.note.content"]
    assert heading.startswith("No method can be called best") and note.startswith(f"**{heading}**")


def test_paths_in_a_runs_options_stay_local(tmp_path: Path) -> None:
    folder = write_study(tmp_path, **STUDY).parent / "runs/gp/NC/0"
    edit(folder / "run.json", options={"teacher": "/home/somebody/w.pth", "beta": 0.5})
    record = read(folder, 11)
    assert record is not None
    assert params(record)["teacher"] == "(kept local)"
    assert params(record)["beta"] == "0.5"


def test_a_server_that_is_away_is_an_error_within_ten_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uri = f"http://user:password@127.0.0.1:{port}"
    config = write_study(tmp_path, **STUDY | {"tracking": {"uri": uri, "models": False}})
    begin = time.monotonic()
    assert main(["track", "--config", str(config)]) == 2
    assert time.monotonic() - begin < 10
    said = capsys.readouterr().err
    assert "does not answer" in said
    assert "safe in files" in said
    assert "password" not in said
    assert not (config.parent / "tracked.json").exists()


def test_a_database_that_is_none_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_study(tmp_path, **STUDY)
    (tmp_path / "results/mlflow").mkdir()
    (tmp_path / "results/mlflow/mlflow.db").write_bytes(b"not a database" * 100)
    assert main(["track", "--config", str(config)]) == 2
    assert "safe in files" in capsys.readouterr().err


def test_a_study_without_finished_runs_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_study(tmp_path, **STUDY | {"seeds": [0]})
    for done in config.parent.glob("runs/*/*/*/done"):
        done.unlink()
    assert main(["track", "--config", str(config)]) == 2
    assert "no run of this study is finished" in capsys.readouterr().err


def test_a_printed_address_has_no_password() -> None:
    assert place("https://user:word@host:81/x?token=1") == "https://host:81/x"


def test_the_default_store_lies_below_results(tmp_path: Path) -> None:
    store = Store.of(load(write_study(tmp_path, **STUDY | {"seeds": [0]})))
    assert store.uri == f"sqlite:///{tmp_path.resolve()}/results/mlflow/mlflow.db"
    assert store.artifacts == tmp_path.resolve() / "results/mlflow/artifacts"


def test_errors_of_the_store_are_for_the_user_to_fix() -> None:
    with pytest.raises(FdamedError):
        connect(Store("http://127.0.0.1:9"))


def test_the_report_is_kept_as_an_artifact(tracked: Path, tmp_path: Path) -> None:
    shutil.copytree(tracked, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "results/demo/config.json"
    edit(config, results=str(tmp_path / "results"))
    page = config.parent / "report/index.html"
    page.parent.mkdir(exist_ok=True)
    page.write_text("<!doctype html><title>the report</title>")
    assert main(["track", "--config", str(config)]) == 0
    client = connect(Store(f"sqlite:///{tmp_path}/results/mlflow/mlflow.db"))
    experiment = client.get_experiment_by_name("demo").experiment_id
    (study,) = client.search_runs([experiment], "tags.level = 'study'")
    kept = tmp_path / "results/mlflow/artifacts/demo"
    assert (kept / study.info.run_id / "artifacts/report/index.html").read_text() == page.read_text()


def test_the_offered_model_is_chosen_by_validation_over_all_seeds_and_never_by_a_test_score(tmp_path: Path) -> None:
    config = load(write_study(tmp_path, runs={"fedavg": {}, "gp": {}, "oracle": {}}, train={"rounds": 3}, seeds=[0, 1]))
    scores = {"fedavg": (0.7, 0.6), "gp": (0.5, 0.9), "oracle": (0.99, 0.99)}  # means: 0.65, 0.70
    records = []
    for run, values in scores.items():
        for seed, value in enumerate(values):
            folder = tmp_path / f"results/demo/runs/{run}/NC/{seed}"
            edit(folder / "../../../../clients/NC/scores/gp/NC/0.json", auc=1.0 if run == "fedavg" else 0.1)
            record = read(folder, 11)
            assert record is not None
            records.append(replace(record, rounds=(*record.rounds[:-1], record.rounds[-1] | {"val/auc": value})))
    (model,) = offered(config, records, ["NC"])
    assert (model.name, model.record.key) == ("demo-NC", "demo/gp/NC/1")
    assert model.why == "gp, seed 1: best mean val/auc over the seeds, on the validation part."


def test_a_model_that_any_phase_has_trained_on_every_label_of_the_target_is_never_offered(tmp_path: Path) -> None:
    runs = {"fedavg": {}, "late": {"method": "oracle", "then": "finetune_head"}}
    config = load(write_study(tmp_path, runs=runs, train={"rounds": 3}, seeds=[0]))
    records = []
    for run, value in (("fedavg", 0.6), ("late", 0.99)):
        record = read(tmp_path / f"results/demo/runs/{run}/NC/0", 11)
        assert record is not None
        then = [{"method": "oracle"}, {"method": "finetune_head"}] if run == "late" else None
        rounds = (*record.rounds[:-1], record.rounds[-1] | {"val/auc": value})
        records.append(replace(record, rounds=rounds, facts=record.facts | {"phases": then}))
    (model,) = offered(config, records, ["NC"])
    assert model.record.key == "demo/fedavg/NC/0"


def test_a_model_is_registered_once_and_again_when_its_weights_change(tracked: Path, tmp_path: Path) -> None:
    shutil.copytree(tracked, tmp_path, dirs_exist_ok=True)
    client = connect(Store(f"sqlite:///{tmp_path}/results/mlflow/mlflow.db"))
    artifacts = tmp_path / "results/mlflow/artifacts/demo"
    run = runs_of(tmp_path)[0]

    def save(record: object, folder: Path, identity: str) -> None:
        folder.mkdir()
        (folder / "MLmodel").write_text(identity)

    record = read(tmp_path / "results/demo/runs/gp/NC/0", 11)
    assert record is not None
    first, second = (Candidate("demo-NC", replace(record, weights=digest), "why") for digest in ("abc", "def"))
    found = [
        register(client, run.info.experiment_id, candidate, save, run.info.run_id, artifacts)
        for candidate in (first, first, second)
    ]
    assert found == [1, 1, 2]
    assert client.get_model_version_by_alias("demo-NC", "adapted").version == 2
    assert register(client, run.info.experiment_id, first, save, run.info.run_id, artifacts) == 1
    assert client.get_model_version_by_alias("demo-NC", "adapted").version == 1  # the one that is offered now
    kept = list((tmp_path / "results/mlflow/artifacts/demo/models").glob("*/artifacts/MLmodel"))
    assert sorted(p.read_text() for p in kept) == sorted(p.parts[-3] for p in kept)
    assert len(kept) == 2


def test_the_model_card_of_a_replaced_run_is_not_kept(tracked: Path, tmp_path: Path) -> None:
    """With another `smallest_cell` the same weights are imported anew: the old card may have small counts."""
    shutil.copytree(tracked, tmp_path, dirs_exist_ok=True)
    client = connect(Store(f"sqlite:///{tmp_path}/results/mlflow/mlflow.db"))
    artifacts = tmp_path / "results/mlflow/artifacts/demo"
    before, after = (run.info for run in runs_of(tmp_path)[:2])
    record = read(tmp_path / "results/demo/runs/gp/NC/0", 11)
    assert record is not None
    offer = Candidate("demo-NC", replace(record, weights="abc"), "why")

    def save_card(text: str) -> Callable[[object, Path, str], None]:
        def save(record: object, folder: Path, identity: str) -> None:
            folder.mkdir()
            (folder / "MLmodel").write_text(identity)
            (folder / "model_card.md").write_text(text)

        return save

    register(client, before.experiment_id, offer, save_card("3 patients"), before.run_id, artifacts)
    version = register(client, after.experiment_id, offer, save_card("<11 patients"), after.run_id, artifacts)
    (kept,) = client.search_model_versions("name = 'demo-NC'")
    assert int(kept.version) == version == 2
    assert client.get_model_version_by_alias("demo-NC", "adapted").version == 2
    assert [p.read_text() for p in artifacts.rglob("model_card.md")] == ["<11 patients"]


def test_a_larger_smallest_cell_takes_scores_back_that_are_already_in_mlflow(tracked: Path, tmp_path: Path) -> None:
    shutil.copytree(tracked, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "results/demo/config.json"
    policy = json.loads(config.read_text())["privacy"] | {"smallest_cell": 100_000}
    edit(config, results=str(tmp_path / "results"), privacy=policy)
    assert any("test/auc" in run.data.metrics for run in runs_of(tmp_path))
    assert main(["track", "--config", str(config)]) == 0
    assert not any("test/auc" in run.data.metrics for run in runs_of(tmp_path))
