"""The calibration of a twin: both ends of the study, each point once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks import calibrate_phantoms

TINY = Path(__file__).resolve().parents[1] / "workflow" / "tiny.yaml"


def test_a_grid_is_every_combination_of_its_knobs() -> None:
    grid = calibrate_phantoms.grid_of(["subtlety=0.6,0.8", "concept=1"])
    assert grid == [{"subtlety": 0.6, "concept": 1.0}, {"subtlety": 0.8, "concept": 1.0}]


def test_a_point_is_the_study_with_its_knobs_and_seed_and_both_ends_alone() -> None:
    raw = yaml.safe_load(TINY.read_text())
    study = calibrate_phantoms.point(raw, {"concept": 0.5}, 101, None)
    assert set(study["runs"]) == {"fedavg", "oracle"}
    assert study["phantom"] == raw["phantom"] | {"concept": 0.5, "seed": 101}
    assert (study["seeds"], study["train"], study["split"]) == ([101], raw["train"], raw["split"])


def test_a_finished_point_is_kept_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "points.jsonl"
    command = ["calibrate", str(TINY), "--knobs", "subtlety=0.2", "--out", str(out), "--seeds"]
    monkeypatch.setattr(sys, "argv", [*command, "100"])
    calibrate_phantoms.main()
    (line,) = map(json.loads, out.read_text().splitlines())
    assert line["seed"] == 100 and "subtlety=0.2" in line["setting"]
    assert {name: len(curve) for name, curve in line["curves"].items()} == {"fedavg": 2, "oracle": 2}
    assert line["auc"] == {name: curve[-1] for name, curve in line["curves"].items()}
    before = out.read_text()
    capsys.readouterr()
    calibrate_phantoms.main()
    assert out.read_text() == before
    assert "subtlety=0.2" in capsys.readouterr().out
