"""Tuned runs: validation images choose among the candidates, and the test part is read for the chosen one alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from safetensors.torch import load_file, save_file

from fdamed.cli.main import main
from fdamed.config.base import without_defaults
from fdamed.config.loader import load, parse
from fdamed.core import run_record
from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json, read_lines, write_json
from fdamed.core.parts import TRAINED
from fdamed.data import loader
from fdamed.pipeline import clients as clients_of_runs
from fdamed.pipeline.batching import FILES
from fdamed.pipeline.finished_runs import by_folder
from fdamed.pipeline.selection import StudyRun, all_candidates
from fdamed.pipeline.tuning import choice as tuning
from fdamed.pipeline.tuning.validation_parts import choosers
from tests.support.small_studies import write_clients

RUNS = {
    "fedavg": {},
    "gp": {
        "auxiliary": {"heads": ["sex"]},
        "warmup": 1,
        "then": {"method": "finetune_head", "rounds": 1},
        "tune": {"beta": [0.2, 0.8], "lr": [0.001, 0.01]},
    },
    "prox": {"method": "fedprox", "tune": {"mu": [0.01, 1.0]}},
    "bn": {"method": "fedbn", "sweep": {"labeled": [8, 16]}, "tune": {"target.lr": ["1e-3", 0.01]}},
}
RAW: dict[str, Any] = {
    "study": "tuned",
    "data": {"layout": "chexpert", "root": "raw", "salt": "x"},
    "split": {
        "by": "race",
        "label": "Edema",
        "clients": {"white": "White", "black": "Black", "asian": "Asian"},
        "target": "asian",
        "per_class": 12,
        "labeled": 16,
        "val": 44,
        "test": 20,
    },
    "image": {"size": 32},
    "privacy": {"smallest_images": 1, "smallest_steps": 1},
    "model": {"width": 0.0625, "heads": ["sex"]},
    "train": {"rounds": 2, "device": "cpu", "source": {"lr": 0.001, "batch": 8}, "target": {"lr": 0.001, "batch": 8}},
    "seeds": [0],
    "runs": RUNS,
}


def study(folder: Path, **changes: Any) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(RAW | {"results": str(folder / "results")} | changes, sort_keys=False))
    return path


def command(path: Path, name: str, run: str, *more: str) -> int:
    return main([name, "--config", str(path), "--run", run, "--target", "asian", *more])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, ...]]]:
    """A study with trained candidates, and the parts that were read for them."""
    folder = tmp_path_factory.mktemp("tuned")
    path, read = study(folder), []
    config = load(path)
    write_clients(config)

    def spy(place: Path, parts: tuple[str, ...], **more: Any) -> Any:
        read.append(parts)
        return loader.load(place, parts=parts, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients_of_runs, "load", spy)
        patch.setattr(tuning, "load", spy)
        for one in all_candidates(config):
            assert command(path, "federate", one.name, "--seed", "0") == 0
        for run in ("gp", "prox", "bn-labeled-8", "bn-labeled-16"):
            assert command(path, "choose", run, "--seed", "0") == 0
    return path, read


@pytest.fixture
def copy(trained: tuple[Path, Any], tmp_path: Path) -> Path:
    """A copy of that study, to change."""
    shutil.copytree(trained[0].parent / "results", tmp_path / "results")
    return study(tmp_path)


def facts(path: Path, run: str) -> dict[str, Any]:
    return dict(read_json(path.parent / "results/tuned/runs" / run / "asian/0/run.json"))


def flip(path: Path, clients: tuple[str, ...], part: str) -> None:
    """Exchange the two classes of a part."""
    for client in clients:
        file = path.parent / "results/tuned/clients" / client / "order.parquet"
        rows = pd.read_parquet(file)
        rows.loc[rows["split"] == part, "y"] = 1 - rows.loc[rows["split"] == part, "y"]
        rows.to_parquet(file, index=False)


def test_candidates_and_their_choice_never_read_the_test_part(trained: tuple[Path, list[tuple[str, ...]]]) -> None:
    path, read = trained
    assert ("val",) in read
    assert {part for parts in read for part in parts} == {"val", *TRAINED}
    for one in all_candidates(load(path)):
        assert {key for row in read_lines(one.rounds()) for key in row} == {"round", "val/acc", "val/auc"}


def test_only_the_chosen_candidate_gets_test_scores_and_as_the_tuned_run(copy: Path) -> None:
    for run in ("gp", "prox", "bn-labeled-8", "bn-labeled-16"):
        assert command(copy, "evaluate", run, "--client", "asian") == 0
        assert command(copy, "evaluate", facts(copy, run)["tuned"]["candidate"], "--client", "asian") == 2
    scored = {p.parts[-3] for p in (copy.parent / "results").rglob("scores/*/*/*.json")}
    assert scored == {"gp", "prox", "bn-labeled-8", "bn-labeled-16"}
    assert scored == {p.parts[-3] for p in (copy.parent / "results").rglob("predictions/*/*/*.parquet")}


def test_the_choice_does_not_depend_on_test_labels(copy: Path) -> None:
    before = {run: facts(copy, run) for run in ("gp", "prox")}
    flip(copy, ("white", "black", "asian"), "test")
    for run in before:
        assert command(copy, "choose", run, "--seed", "0") == 0
        assert facts(copy, run) == before[run]


def test_without_target_labels_the_sources_choose_and_the_targets_labels_do_not_matter(copy: Path) -> None:
    before = facts(copy, "prox")
    assert before["tuned"]["clients"] == ["white", "black"]
    flip(copy, ("asian",), "val")
    assert command(copy, "choose", "prox", "--seed", "0") == 0
    assert facts(copy, "prox") == before
    chosen = before["tuned"]["candidate"]
    flip(copy, ("white", "black"), "val")  # now the worst is the best
    assert command(copy, "choose", "prox", "--seed", "0") == 0
    assert facts(copy, "prox")["tuned"]["candidate"] != chosen


@pytest.mark.parametrize("best", ["gp-beta-0.2-lr-0.001", "gp-beta-0.8-lr-0.01"])
def test_the_candidate_with_the_best_validation_score_becomes_the_run(copy: Path, best: str) -> None:
    """All candidates but one get the same model with its two classes exchanged: their AUC is 1 minus the best one's."""
    config, runs = load(copy), copy.parent / "results/tuned/runs"
    weights = load_file(runs / best / "asian/0/theta.safetensors")
    head = [name for name, tensor in weights.items() if tensor.shape[:1] == (2,)]
    assert len(head) == 2  # weight and bias of the main head
    turned = {name: tensor.flip(0).contiguous() if name in head else tensor for name, tensor in weights.items()}
    own = tuning.choose(StudyRun.of(config, "gp", "asian", 0), clients_of_runs.resident(config))
    score = read_json(copy.parent / "results/tuned/clients/asian/tuning/gp/asian/0.json")[best]
    assert own in config.trained_runs() and score != 0.5
    for one in all_candidates(config):
        if one.candidate_of == "gp":
            save_file(weights if (one.name == best) == (score > 0.5) else turned, one.folder / "theta.safetensors")
    assert command(copy, "choose", "gp", "--seed", "0") == 0
    found = read_json(copy.parent / "results/tuned/clients/asian/tuning/gp/asian/0.json")
    high, low = max(score, 1 - score), min(score, 1 - score)
    assert found == pytest.approx({name: high if name == best else low for name in found})
    chosen = facts(copy, "gp")
    assert chosen["tuned"]["candidate"] == best and chosen["run"] == "gp"
    assert f"gp-beta-{chosen['options']['beta']}-lr-{chosen['train']['source']['lr']}" == best
    assert all(
        (runs / "gp/asian/0" / name).read_bytes() == (runs / best / "asian/0" / name).read_bytes()
        for name in FILES
        if name != "run.json"
    )


def test_among_equals_the_first_of_the_configuration_is_chosen(copy: Path) -> None:
    config = load(copy)
    same = [one for one in all_candidates(config) if one.candidate_of == "prox"]
    shutil.copyfile(same[0].folder / "theta.safetensors", same[1].folder / "theta.safetensors")
    assert command(copy, "choose", "prox", "--seed", "0") == 0
    assert facts(copy, "prox")["tuned"]["candidate"] == "prox-mu-0.01"


def test_a_tuned_run_is_exported_with_its_chosen_options_and_a_candidate_is_not(copy: Path) -> None:
    runs = copy.parent / "results/tuned/runs"
    write_json(copy.parent / "results/tuned/clients/config.0.json", without_defaults(load(copy)))
    one = by_folder(runs / "gp/asian/0")
    assert one.run.spec.options["beta"] == facts(copy, "gp")["tuned"]["values"]["beta"]
    with pytest.raises(FdamedError, match="was not found"):
        by_folder(runs / "gp-beta-0.2-lr-0.001/asian/0")


def shown(path: Path, smallest: int) -> run_record.Record:
    record = run_record.read(path.parent / "results/tuned/runs/gp/asian/0", smallest)
    assert record is not None
    return record


def test_validation_scores_of_candidates_are_held_back_like_all_others(trained: tuple[Path, Any]) -> None:
    assert set(shown(trained[0], 11).validation or ()) == {
        f"gp-beta-{beta}-lr-{lr}" for beta in (0.2, 0.8) for lr in (0.001, 0.01)
    }
    assert shown(trained[0], 1000).validation is None
    outside = [p for p in (trained[0].parent / "results/tuned").rglob("*") if p.is_file() and "clients" not in p.parts]
    score = str(next(iter((shown(trained[0], 1).validation or {}).values())))
    assert len(score) > 5
    assert not [p for p in outside if score.encode() in p.read_bytes()]


@pytest.mark.parametrize(("val", "flipped"), [(12, False), (44, True)])
def test_candidates_are_not_trained_if_validation_cannot_choose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], val: int, flipped: bool
) -> None:
    path = study(tmp_path, split=RAW["split"] | {"val": val})
    config = load(path)
    write_clients(config)
    if flipped:
        counts = tmp_path / "results/tuned/clients/asian/counts.json"
        content = read_json(counts)
        content["positives"]["val"] = content["images"]["val"]
        write_json(counts, content)
    assert command(path, "federate", "gp-beta-0.2-lr-0.001", "--seed", "0") == 2
    said = capsys.readouterr().err
    assert "the validation part of asian is too small to choose by, or of one class" in said
    assert "runs.gp.tune" in said and "split.val" in said
    assert not (tmp_path / "results/tuned/runs/gp-beta-0.2-lr-0.001/asian/0/done").exists()


def test_the_class_of_a_validation_part_is_named_only_where_positives_may_be_shown() -> None:
    config = parse(RAW, "study")
    images = {"train": 60, "adapt": 40, "val": 44, "test": 40}
    for adapted, named in ((5, False), (20, True)):
        positives = {"train": 30, "adapt": adapted, "val": 0, "test": 20}
        with pytest.raises(FdamedError) as error:
            choosers(config, "gp", "asian", {"asian": {"images": images, "patients": images, "positives": positives}})
        assert ("all of one class" in error.value.what) == named


def test_commands_name_what_a_tuned_run_needs(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(copy, "federate", "gp", "--seed", "0") == 2
    assert "Train its candidates (gp-beta-0.2-lr-0.001, " in capsys.readouterr().err
    assert command(copy, "choose", "fedavg", "--seed", "0") == 2
    assert "fedavg is not tuned" in capsys.readouterr().err
    (copy.parent / "results/tuned/runs/prox-mu-1.0/asian/0/done").unlink()
    assert command(copy, "choose", "prox", "--seed", "0") == 2
    assert "fdamed federate --runs prox-mu-1.0/asian/0" in capsys.readouterr().err
