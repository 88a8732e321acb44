"""The phases of one run: what each may read and change, and that it can be killed anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from fdamed.cli.commands import federate as stage
from fdamed.cli.main import main
from fdamed.config import loader as configfile
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.data.loader import Labeled
from fdamed.federation.storage.checkpoint import Checkpoints
from fdamed.pipeline import clients
from fdamed.pipeline.paths import Places
from fdamed.pipeline.selection import StudyRun
from tests.support.idx_files import write_idx

TRAIN = {
    "device": "cpu",
    "rounds": 3,
    "source": {"lr": 0.003, "batch": 16},
    "target": {"lr": 0.005, "batch": 8, "weight_decay": 1e-4},
}
RUNS = {
    "plain": {"method": "fedavg"},
    "head": {"method": "fedavg", "then": "finetune_head"},
    "short": {"method": "fedavg", "then": {"method": "finetune_head", "rounds": 2, "head": "kept"}},
    "warm": {"method": "gp", "warmup": 2, "then": {"method": "finetune_head", "rounds": 1}},
    "fedbn": {"warmup": 1},
    "adapted": {"method": "finetune", "then": {"method": "adabn", "fedavg": False, "rounds": 1}},
    "tuned": {"method": "kd3a", "heads": "average", "warmup": {"method": "finetune", "rounds": 1}},
    "whole": {"method": "kd3a", "heads": "average", "then": {"method": "finetune_whole", "rounds": 1}},
}


def raw(folder: Path, **changes: object) -> dict:
    base = {"kind": "idx", "root": str(folder / "idx")}
    return {
        "study": "two",
        "results": str(folder / "results"),
        "data": {
            "layout": "benchmark",
            "domains": {"plain": base, "dark": base | {"shift": {"invert": True, "rotate": 20}}},
        },
        "split": {
            "by": "classes", "n_clients": 4, "classes_each": 3, "sources": "plain", "target": "dark", "labeled": 30,
        },
        "image": {"size": 28},
        "model": {"backbone": "resnet18", "width": 0.125, "hidden": 16, "classes": 10},
        "train": TRAIN,
        "runs": RUNS,
        "seeds": [0],
    } | changes  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> tuple[Config, list[str]]:
    folder = tmp_path_factory.mktemp("two")
    write_idx(folder / "idx", train=400, test=40)
    config = configfile.parse(raw(folder), "here")
    (folder / "config.json").write_text(config.model_dump_json())
    given = ["--config", str(folder / "config.json")]
    assert main(["partition", *given]) == 0 and main(["init", *given, "--seed", "0"]) == 0
    for run in RUNS:
        assert main(["federate", *given, "--run", run, "--target", "dark", "--seed", "0"]) == 0
        assert main(["evaluate", *given, "--run", run, "--target", "dark", "--client", "dark", "--seeds", "0"]) == 0
    return config, given


def folder(config: Config, run: str) -> Path:
    return Places.of(config).run(run, "dark", 0)


def lines(config: Config, run: str, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder(config, run) / f"{name}.jsonl").read_text().splitlines()]


def test_the_second_phase_leaves_the_extractor_as_it_is_to_the_bit(study) -> None:
    config, _ = study
    before, after = (load_file(folder(config, run) / "theta.safetensors") for run in ("plain", "head"))
    assert any(name.endswith("running_var") for name in before)
    for name, tensor in before.items():
        assert tensor.equal(after[name]) != name.startswith("head."), name


def test_the_rounds_of_the_phases_are_numbered_on_in_every_file(study) -> None:
    config, _ = study
    for name in ("metrics", "timing"):
        assert [line["round"] for line in lines(config, "head", name)] == [1, 2, 3, 4, 5, 6]
        assert [line["round"] for line in lines(config, "short", name)] == [1, 2, 3, 4, 5]
    assert [line["round"] for line in lines(config, "whole", "metrics")] == [1, 2, 3, 4]
    assert lines(config, "head", "metrics")[:3] == lines(config, "plain", "metrics")
    talkers = {r: {x["to"] for x in lines(config, "head", "ledger") if x["round"] == r} for r in range(1, 7)}
    assert talkers[3] == {"C0", "C1", "C2", "C3", "server"} and talkers[4] == talkers[6] == {"dark", "server"}


def test_run_json_says_what_the_phases_were(study) -> None:
    config, _ = study
    facts = json.loads((folder(config, "short") / "run.json").read_text())
    assert facts["rounds"] == 5 and facts["method"] == "fedavg" and facts["title"] == "FedAvg, then fine-tuned head"
    assert [(p["method"], p["rounds"]) for p in facts["phases"]] == [("fedavg", 3), ("finetune_head", 2)]
    assert facts["phases"][1]["options"] == {"head": "kept", "optimizer": "kept"}
    assert "phases" not in json.loads((folder(config, "plain") / "run.json").read_text())


def test_the_rounds_of_a_warm_up_are_the_first_of_the_run_and_those_of_its_method(study) -> None:
    config, _ = study
    steps = [{x["step"] for x in lines(config, "warm", "ledger") if x["round"] == r} for r in (1, 2, 3, 4)]
    assert steps == [{"train_locally"}, {"train_locally"}, {"compute_update"}, {"finetune_head"}]
    assert lines(config, "warm", "metrics")[:2] == lines(config, "plain", "metrics")[:2]
    asked = [{x["to"] for x in lines(config, "warm", "ledger") if x["round"] == r} for r in (2, 3)]
    assert "dark" not in asked[0] and "dark" in asked[1]


def test_a_second_phase_of_adabn_changes_statistics_alone(study) -> None:
    config, _ = study
    assert {x["step"] for x in lines(config, "adapted", "ledger") if x["round"] == 4} == {"adabn.measure"}
    kept = Places.of(config).client("dark") / "rounds/adapted/dark/0.jsonl"
    scores = [json.loads(line)["test/acc"] for line in kept.read_text().splitlines()]
    assert len(scores) == 4 and all(0.0 <= score <= 1.0 for score in scores)


def test_run_json_is_about_the_runs_own_method_and_names_the_warm_up(study) -> None:
    config, _ = study
    facts = json.loads((folder(config, "warm") / "run.json").read_text())
    assert facts["rounds"] == 4 and facts["method"] == "gp" and facts["options"]["beta"] == 0.5
    assert facts["title"] == "FedAvg_Finetune_GP, then fine-tuned head"
    phases = [(p["phase"], p["method"], p["rounds"]) for p in facts["phases"]]
    assert phases == [("warmup", "fedavg", 2), ("main", "gp", 1), ("then", "finetune_head", 1)]


def test_the_score_is_the_last_phases(study) -> None:
    config, _ = study
    for run in RUNS:
        kept = Places.of(config).client("dark")
        score = json.loads((kept / f"scores/{run}/dark/0.json").read_text())
        last = (kept / f"rounds/{run}/dark/0.jsonl").read_text().splitlines()[-1]
        assert score["acc"] == json.loads(last)["test/acc"]


def test_only_the_second_phase_sees_the_targets_labels(study, monkeypatch) -> None:
    config, given = study
    seen: list[tuple[str, bool, int]] = []
    build = clients.build_client

    def watched(*arguments, **options):
        client = build(*arguments, **options)
        if client.name == "dark":
            seen.append((arguments[1].method, isinstance(client.data, Labeled), len(client.data)))
        return client

    monkeypatch.setattr(clients, "build_client", watched)
    for run in ("whole", "tuned"):
        (folder(config, run) / "done").unlink()
        assert main(["federate", *given, "--run", run, "--target", "dark", "--seed", "0"]) == 0
    whole = [("kd3a", False, 40), ("finetune_whole", True, 30)]
    assert seen == [*whole, ("finetune", True, 30), ("kd3a", False, 40)]


@pytest.mark.parametrize(
    ("run", "killed_in", "last"),
    [("head", n, f"{min(n, 3)} of 3") for n in range(1, 7)] + [("warm", n, f"{min(n, 2)} of 2") for n in range(1, 5)],
)
def test_a_run_killed_in_any_round_of_any_phase_ends_with_the_same_bits(
    study, run, killed_in, last, monkeypatch, capsys
) -> None:
    config, _ = study
    place = folder(config, run)
    digest, metrics, ledger = ((place / n).read_text() for n in ("done", "metrics.jsonl", "ledger.jsonl"))
    save, count = Checkpoints.save, [0]

    class Killed(BaseException):
        pass

    def kill(*arguments) -> None:
        save(*arguments)
        count[0] += 1
        if count[0] == killed_in:
            raise Killed

    (place / "done").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", kill)
        with pytest.raises(Killed):
            stage.federate(StudyRun.of(config, run, "dark", 0), 1)
    assert not (place / "done").exists()
    stage.federate(StudyRun.of(config, run, "dark", 0), 1)
    assert f"resumed after round {last}" in capsys.readouterr().err
    assert (place / "done").read_text() == digest
    assert (place / "metrics.jsonl").read_text() == metrics and (place / "ledger.jsonl").read_text() == ledger
    assert not [p for p in (place / "state").rglob("*") if p.is_file()], "a finished run keeps no state"
    assert not list(Places.of(config).clients.rglob("memory/**/*.safetensors"))


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        ("finetune_haed", "did you mean `finetune_head`"),
        ({"method": "finetune_head", "rate": 3}, r"runs\.x\.then\.rate"),
        ({"method": "finetune_head", "head": "old"}, "should be one of new, kept"),
        ({"method": "target_only", "warmup": 3}, r"runs\.x\.then\.warmup"),
        ({"method": "fedrf_tca"}, "ends with one model for each client"),
        ({"method": "finetune_head", "rounds": 0}, "greater than or equal to 1"),
        ({"rounds": 2}, "missing key `runs.x.then.method`"),
    ],
)
def test_a_second_phase_that_does_not_fit_is_refused_before_anything_starts(tmp_path, then, reason) -> None:
    with pytest.raises(FdamedError, match=reason):
        configfile.parse(raw(tmp_path, runs={"x": {"method": "fedavg", "then": then}}), "here")


def test_a_policy_that_forbids_the_second_phase_stops_the_first(study, capsys, tmp_path) -> None:
    config, _ = study
    closed = config.model_dump(mode="json") | {"privacy": {"release": ["update", "statistic", "scalar", "count"]}}
    closed["runs"] = {"x": {"method": "fada", "then": "finetune_head"}}
    (tmp_path / "closed.json").write_text(json.dumps(closed))
    given = ["--config", str(tmp_path / "closed.json"), "--run", "x", "--target", "dark", "--seed", "0"]
    assert main(["federate", *given]) == 2
    assert "finetune_head asks C0" in capsys.readouterr().err
    assert not (folder(config, "x") / "state").exists()


def test_a_run_of_two_phases_on_a_public_set_can_be_exported_and_takes_no_files(study, tmp_path: Path, capsys) -> None:
    pytest.importorskip("onnxruntime", reason="pip install 'fdamed[export]'")
    config, given = study
    names = ["--run", "short", "--target", "dark", "--seed", "0", "--out", str(tmp_path / "out")]
    assert main(["export", *given, *names, "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["study"]["title"] == "FedAvg, then fine-tuned head" and about["preprocessing"] is None
    assert about["output"]["classes"] == [str(n) for n in range(10)] and about["output"]["threshold"] is None
    assert about["parity"]["max_difference"]["ONNX"] < 1e-4 and about["parity"]["images"] == 40
    card = (tmp_path / "out" / "model_card.md").read_text()
    kept = Places.of(config).client("dark") / "scores/short/dark/0.json"
    accuracy = json.loads(kept.read_text())["acc"]
    assert f"| accuracy | {accuracy:.3f} |" in card and "fine-tuned head" in card
    assert main(["predict", "--model", str(tmp_path / "out"), "x.png"]) == 2
    assert "public benchmark set" in capsys.readouterr().err
