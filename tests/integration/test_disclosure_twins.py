"""Two studies that differ only in what is held back are the same to everybody outside the clients' folders.

Whatever the page, its tables and figures, the audit, MLflow or `fdamed status` show is compared byte by byte, so that
no number in a text can be forgotten.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fdamed.cli.main import main
from fdamed.config.loader import load
from fdamed.core.counts import COUNTS
from fdamed.core.files import read_json, read_lines
from fdamed.core.run_record import study as read_runs
from fdamed.tracking.payload import run_entry
from tests.support.run_folders import edit, score_file, write_json, write_lines, write_predictions, write_study

TARGET, SMALLEST, SEEDS = "NC", 11, (0, 1)
RUNS = {"fedavg": {}, "finetune": {}, "gp": {"tune": {"beta": [0.2, 0.8]}}}
ROWS = ("fedavg", "finetune", "gp")


def write(folder: Path) -> Path:
    """A study of which nothing is held back."""
    clients = {"LO": "Lung Opacity", "ED": "Edema", TARGET: "Lung Lesion"}
    split = {"by": "condition", "clients": clients, "target": TARGET}
    config = write_study(folder, split=split, runs=RUNS, seeds=list(SEEDS), audit={"attributes": False})
    for seed in SEEDS:
        for run in ROWS:
            write_predictions(config.parent, run, TARGET, seed)
        names = [f"gp-beta-{beta}" for beta in (0.2, 0.8)]
        tuned = {"candidate": names[0], "values": {"beta": 0.2}, "of": dict.fromkeys(names), "clients": [TARGET]}
        edit(config.parent / "runs/gp" / TARGET / str(seed) / "run.json", tuned=tuned)
        write_json(
            config.parent / "clients" / TARGET / "tuning/gp" / TARGET / f"{seed}.json", dict.fromkeys(names, 0.75)
        )
    return config


def few_to_validate(config: Path, rng: np.random.Generator) -> None:
    """A small validation part: its counts, its scores of all rounds, and those by which a candidate was chosen."""
    home = config.parent / "clients" / TARGET
    resize(home, "val", rng)
    for path in home.glob("rounds/*/*/*.jsonl"):
        write_lines(path, [row | {"val/auc": rng.random(), "val/acc": rng.random()} for row in read_lines(path)])
    for path in home.glob("tuning/*/*/*.json"):
        write_json(path, {name: rng.random() for name in read_json(path)})


def few_to_test(config: Path, rng: np.random.Generator) -> None:
    """A small test part: its counts, scores and predictions."""
    home = config.parent / "clients" / TARGET
    images, positives, patients = resize(home, "test", rng)
    for path in home.glob("rounds/*/*/*.jsonl"):
        write_lines(path, [row | {"test/auc": rng.random(), "test/acc": rng.random()} for row in read_lines(path)])
    for run in ROWS:
        for seed in SEEDS:
            own = {name: rng.random() for name in ("acc", "auc", "balanced_acc", "brier")}
            counts = {"n": images, "positives": positives, "patients": patients}
            edit(score_file(config.parent, TARGET, run, TARGET, seed), **counts, **own)
            file = home / "predictions" / run / TARGET / f"{seed}.parquet"
            frame = pd.read_parquet(file).head(images)
            frame["y"], frame["patient"] = np.arange(images) < positives, [f"p{i % patients}" for i in range(images)]
            frame.assign(score=rng.random(images)).to_parquet(file)


def few_elsewhere(config: Path, rng: np.random.Generator) -> None:
    """Small val and test parts of a source, where models may be tested, too."""
    home = config.parent / "clients" / "ED"
    resize(home, "val", rng)
    images, positives, patients = resize(home, "test", rng)
    for path in home.glob("scores/*/*/*.json"):
        edit(path, n=images, positives=positives, patients=patients, auc=rng.random(), acc=rng.random())


def few_in_a_group(config: Path, rng: np.random.Generator) -> None:
    """Two small groups of the test part in changing shares; the others stay as they are."""
    drawn = int(rng.integers(6, 13))
    for file in (config.parent / "clients" / TARGET / "predictions").rglob("*.parquet"):
        frame = pd.read_parquet(file)
        frame["race"] = np.where(np.arange(len(frame)) % 3, "White", "Black")
        frame["age"], frame["sex"], frame["scanner"], frame["view"] = 50.0, "Female", "A", "frontal"
        frame.loc[:17, "race"] = ["Asian"] * drawn + ["Other"] * (18 - drawn)
        frame.to_parquet(file)


def few_left_out(config: Path, rng: np.random.Generator) -> None:
    """Few rows of the target without a label; all hospitals have the same rows, so that those of others tell them."""
    few, root = int(rng.integers(1, SMALLEST)), config.parent
    left_out, rows = {}, 5000 + few
    for home in sorted(path.parent for path in root.glob(f"clients/*/{COUNTS}")):
        rest = rows - sum(read_json(home / COUNTS)["images"].values())
        here = few if home.name == TARGET else rest
        left_out[home.name] = {"without a usable label": here, "beyond balance and sizes of the parts": rest - here}
    edit(root / "clients/cohort.json", left_out=left_out, rows=dict.fromkeys(left_out, rows))


def resize(home: Path, part: str, rng: np.random.Generator) -> tuple[int, int, int]:
    """Draw small numbers of images, positives and patients of a part."""
    images = int(rng.integers(4, SMALLEST))
    positives, patients = int(rng.integers(1, images)), int(rng.integers(2, images + 1))
    content = read_json(home / COUNTS)
    for what, n in (("images", images), ("positives", positives), ("patients", patients)):
        content[what][part] = n
    write_json(home / COUNTS, content)
    return images, positives, patients


def seen(config: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Everything that an outsider sees."""
    for words in (["audit", "--target", TARGET], ["report"]):
        assert main([*words, "--config", str(config)]) == 0
    capsys.readouterr()
    assert main(["status", "--config", str(config), "--json"]) == 0
    home = str(config.parents[2])
    out: dict[str, Any] = {"status": capsys.readouterr().out.replace(home, "")}
    for path in config.parent.rglob("*"):
        if path.is_file() and "clients" not in path.relative_to(config.parent).parts and path.name != "config.json":
            out[str(path.relative_to(config.parent))] = path.read_bytes().replace(home.encode(), b"")
    records, _ = read_runs(
        config.parent / "runs", [(run, TARGET, seed) for run in ROWS for seed in SEEDS], load(config).smallest_cell
    )
    out["mlflow"] = [
        (entry.tags, entry.digest, entry.content()) for r in records for entry in [run_entry(r, SMALLEST, {})]
    ]
    return out


CHANGES = (few_to_validate, few_to_test, few_elsewhere, few_in_a_group, few_left_out)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_is_held_back_changes_nothing_outside(
    tmp_path: Path,
    change: Callable[[Path, np.random.Generator], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    twins = []
    for seed in range(3):
        config = write(tmp_path / str(seed))
        change(config, np.random.default_rng(seed))
        twins.append(seen(config, capsys))
    assert {"report/index.html", f"audit/{TARGET}.json", "report/tables/tuning.csv"} <= twins[0].keys()
    for other in twins[1:]:
        differ = sorted(k for k in twins[0].keys() | other.keys() if twins[0].get(k) != other.get(k))
        assert differ == []


def test_the_twins_would_differ_if_nothing_were_held_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison is able to see each of the numbers."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for change in CHANGES:
        twins = []
        for seed in range(2):
            config = write(tmp_path / change.__name__ / str(seed))
            edit(config, privacy="public")
            change(config, np.random.default_rng(seed))
            twins.append(seen(config, capsys))
        assert twins[0]["report/index.html"] != twins[1]["report/index.html"], change.__name__
