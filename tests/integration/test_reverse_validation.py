"""Reverse validation chooses among candidates without a label of the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import save_file

from fdamed.cli.main import main
from fdamed.config.loader import load, parse
from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json
from fdamed.models.flat import named_tensors
from fdamed.pipeline.clients import resident
from fdamed.pipeline.selection import StudyRun, all_candidates
from tests.support.idx_files import write_idx
from tests.support.small_studies import write_clients

RAW: dict[str, Any] = {
    "study": "reverse",
    "data": {
        "layout": "benchmark",
        "domains": {
            "plain": {"kind": "idx", "root": ""},
            "hazy": {"kind": "idx", "root": "", "shift": {"contrast": 0.8, "brightness": 0.1}},
        },
    },
    "split": {"by": "domain", "domains": ["plain", "hazy"], "target": "hazy", "per_source": 200, "labeled": 20},
    "image": {"size": 28},
    "model": {"backbone": "cnn", "side": 28, "classes": 10},
    "train": {"device": "cpu", "rounds": 4, "source": {"lr": 3e-3, "batch": 16}, "target": {"lr": 3e-3, "batch": 16}},
    "runs": {"fdann": {"select": "reverse", "tune": {"weight": [1000.0, 0.1]}}},
    "seeds": [0],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A study whose candidates are trained."""
    write_idx(tmp_path / "idx", train=400, test=60)
    for domain in RAW["data"]["domains"].values():
        domain["root"] = str(tmp_path / "idx")
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(RAW | {"results": str(tmp_path / "results")}, sort_keys=False))
    write_clients(load(file))
    for one in all_candidates(load(file)):
        arguments = ["--config", str(file), "--run", one.name, "--target", "hazy", "--seed", "0"]
        assert main(["federate", *arguments]) == 0
    return file


def chosen(path: Path) -> dict[str, Any]:
    assert main(["choose", "--config", str(path), "--run", "fdann", "--target", "hazy", "--seed", "0"]) == 0
    return dict(read_json(path.parent / "results/reverse/runs/fdann/hazy/0/run.json")["tuned"])


def test_labels_that_teach_are_chosen_and_the_targets_own_labels_do_not_matter(path: Path) -> None:
    first = chosen(path)
    assert first["values"] == {"weight": 0.1} and first["candidate"] == "fdann-weight-0.1"
    assert first["clients"] == ["plain"]  # the sources judge
    scores = path.parent / "results/reverse/clients/plain/tuning/fdann/hazy/0.json"
    before = read_json(scores)
    assert before["fdann-weight-0.1"] > 0.5 > before["fdann-weight-1000.0"]
    order = path.parent / "results/reverse/clients/hazy/order.parquet"
    rows = pd.read_parquet(order)
    rows.assign(y=(rows["y"] + 3) % 10).astype(rows.dtypes.to_dict()).to_parquet(order)
    assert chosen(path) == first and read_json(scores) == before


def test_a_candidate_that_gives_one_label_to_everything_is_not_chosen(path: Path) -> None:
    """Its reverse network learns that label alone: the share of one class among the sources."""
    one = next(c for c in all_candidates(load(path)) if c.name == "fdann-weight-1000.0")
    model = resident(one.config)
    constant = torch.zeros_like(model.read())
    model.load(constant)
    model.module.head.bias.data[3] = 50.0  # type: ignore[operator, union-attr, index]
    save_file(named_tensors(model.read(), model.layout), one.folder / "theta.safetensors")
    assert chosen(path)["candidate"] == "fdann-weight-0.1"
    scores = read_json(path.parent / "results/reverse/clients/plain/tuning/fdann/hazy/0.json")
    assert scores["fdann-weight-1000.0"] == pytest.approx(0.1, abs=0.06)


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ({"fdann": {"select": "reverse"}}, "there is no `tune`"),
        ({"finetune": {"select": "reverse", "tune": {"lr": [0.1, 0.2]}}}, "whose validation part can choose"),
    ],
)
def test_reverse_validation_is_for_tuned_runs_without_target_labels(runs: dict[str, Any], said: str) -> None:
    with pytest.raises(FdamedError, match=said):
        parse(RAW | {"runs": runs}, "study.yaml")


def test_a_run_of_the_study_knows_how_it_is_chosen(path: Path) -> None:
    assert StudyRun.of(load(path), "fdann", "hazy", 0).spec.select == "reverse"
