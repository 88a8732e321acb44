"""Comparisons and subgroups inside a hospital: right numbers go out, and none that point at a person."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from fdamed.cli import main
from fdamed.evaluate.paired import Estimate
from fdamed.evaluate.subgroups import banded, gap, groups, standings

SMALLEST = 11


def patients(n: int = 400, seed: int = 0) -> pd.DataFrame:
    """Two images a patient; women are harder to judge for the first run and as easy as men for the second."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(n), 2)
    return pd.DataFrame(
        {
            "patient": [f"p{i:04d}" for i in owner],
            "sex": np.where(rng.random(n) < 0.5, "Female", "Male")[owner],
            "age": rng.uniform(20, 95, n)[owner],
            "race": pd.Series([None] * len(owner), dtype="str"),
            "view": np.where(np.arange(2 * n) % 2, "AP", "PA"),
            "scanner": np.where(np.arange(n) < 6, "Rare", "Common")[owner],
            "y": rng.integers(0, 2, n)[owner],
        }
    )


def judged(frame: pd.DataFrame, clear_for_women: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    clarity = np.where(frame["sex"] == "Female", clear_for_women, 2.0)
    return 1 / (1 + np.exp(-(clarity * (frame["y"] - 0.5) + rng.normal(0, 1, len(frame)))))


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return patients()


def test_ages_become_bands_and_unknown_ones_no_group() -> None:
    words = banded(pd.DataFrame({"age": [39.9, 40, 59, 80, 101, np.nan], "sex": ["F"] * 6, "race": [None] * 6}))
    assert words["age"].tolist() == ["under 40", "40 to 59", "40 to 59", "80 and over", "80 and over", None]
    assert list(words.columns) == ["sex", "age"]


def test_groups_are_of_one_attribute_and_of_two(frame) -> None:
    found = {(g.by, g.are): g for g in groups(frame, SMALLEST)}
    women = found[("sex",), ("Female",)]
    assert women.n == int((frame["sex"] == "Female").sum())
    assert set(frame["sex"].iloc[women.rows]) == {"Female"}
    both = found[("sex", "view"), ("Male", "AP")]
    assert len(both.rows) == int(((frame["sex"] == "Male") & (frame["view"] == "AP")).sum())
    assert not any("race" in by for by, _ in found)
    ages = [are[0] for by, are in found if by == ("age",)]
    assert ages == ["under 40", "40 to 59", "60 to 79", "80 and over"]


def test_a_small_group_is_not_shown_and_no_count_gives_it_away(frame) -> None:
    found = {(g.by, g.are): g for g in groups(frame, SMALLEST)}
    assert (("scanner",), ("Rare",)) not in found
    assert found[("scanner",), ("Common",)].n is None
    for (by, _), group in found.items():
        if "scanner" in by:
            assert group.n is None


def test_a_group_of_one_class_is_not_shown() -> None:
    frame = patients(100).assign(sex=lambda f: np.where(f["y"] == 1, "Male", f["sex"]))
    assert not [g for g in groups(frame, SMALLEST) if g.are == ("Female",)]


def test_standings_are_the_groups_own_scores(frame) -> None:
    chances = np.stack([judged(frame, 0.2, 1), judged(frame, 2.0, 2)])
    women = next(g for g in groups(frame, SMALLEST) if g.are == ("Female",))
    found = standings(women, frame, chances, {"fedavg": [0], "gp": [1]}, "fedavg")
    y = frame["y"].to_numpy()[women.rows]
    p = chances[:, women.rows]
    assert found["fedavg"].auc.value == pytest.approx(roc_auc_score(y, p[0]))
    assert found["gp"].gain.value == pytest.approx(roc_auc_score(y, p[1]) - roc_auc_score(y, p[0]))
    assert found["gp"].gain.low > 0.1 and found["fedavg"].gain is None
    assert found["gp"].sensitivity.value == pytest.approx((p[1][y == 1] >= 0.5).mean())
    assert found["gp"].false_alarms.value == pytest.approx((p[1][y == 0] >= 0.5).mean())
    assert found["gp"].brier == pytest.approx(((p[1] - y) ** 2).mean())


def test_a_gap_by_hand() -> None:
    def told(value: float, error: float) -> Estimate:
        return Estimate(value, error, None, 0, 0, 0, 1)

    found = gap({"a": told(0.9, 0.03), "b": told(0.7, 0.04), "c": told(0.8, 0.1)})
    assert (found.best, found.worst) == ("a", "b")
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.2 - 0.0979982, 0.2 + 0.0979982))
    assert gap({"a": told(0.9, 0.1)}) is None


@pytest.fixture
def study(tmp_path: Path, frame) -> Path:
    """The predictions of two methods and three seeds, as evaluate leaves them."""
    config = {
        "cohort": "c",
        "results": str(tmp_path),
        "data": {"layout": "chexpert", "root": "nowhere"},
        "cut": {"by": "condition", "parties": {"A": "Edema", "B": "Pneumonia"}, "target": "B"},
        "privacy": {"smallest_steps": 7},
        "runs": {"fedavg": {}, "gp": {}},
        "seeds": [0, 1, 2],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for i, run in enumerate(("fedavg", "gp")):
        for seed in range(3):
            path = tmp_path / "c/parties/B/predictions" / run / "B" / f"{seed}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            score = judged(frame, (0.2, 2.0)[i], 10 * i + seed)
            frame.assign(score=score.astype(np.float32)).to_parquet(path, index=False)
    return tmp_path


def test_the_audit_tells_who_gains_and_names_no_patient(study: Path) -> None:
    assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 0
    text = (study / "c/audit/B.json").read_text()
    assert "p0001" not in text
    told = json.loads(text)
    (pair,) = [p for p in told["pairs"] if p["metric"] == "auc"]
    assert (pair["first"], pair["second"], pair["seeds"]) == ("fedavg", "gp", 3)
    assert pair["value"] < 0 and pair["p_holm"] == pair["p"] < 0.001
    gain = {tuple(g["are"]): g["runs"]["gp"]["gain"]["value"] for g in told["groups"] if g["by"] == ["sex"]}
    assert gain["Female",] > 0.15 > abs(gain["Male",])
    gaps = {(g["by"], g["run"], g["metric"]): g for g in told["gaps"]}
    assert gaps["sex", "fedavg", "auc"]["worst"] == "Female" and gaps["sex", "fedavg", "auc"]["low"] > 0
    assert gaps["sex", "gp", "auc"]["low"] < 0
    for run in ("fedavg", "gp"):
        assert all(b["n"] >= SMALLEST for b in told["calibration"][run]["bins"])


def test_runs_that_were_judged_on_other_images_are_not_compared(study: Path, capsys) -> None:
    path = study / "c/parties/B/predictions/gp/B/1.parquet"
    pd.read_parquet(path).iloc[1:].to_parquet(path, index=False)
    assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 2
    assert "judged on other images" in capsys.readouterr().err


def test_a_target_with_few_images_of_a_class_lets_nothing_out(study: Path) -> None:
    for path in (study / "c/parties/B/predictions").rglob("*.parquet"):
        few = pd.read_parquet(path)
        pd.concat([few[few["y"] == 1].head(4), few[few["y"] == 0]]).to_parquet(path, index=False)
    assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 0
    told = json.loads((study / "c/audit/B.json").read_text())
    assert told["pairs"] == told["groups"] == told["gaps"] == [] and told["scores"] == told["calibration"] == {}
    assert told["suppressed"] == "fewer than 11 images of a class"


def test_nothing_to_compare_is_one_clear_error(study: Path, tmp_path: Path, capsys) -> None:
    for path in (study / "c/parties/B/predictions").rglob("*.parquet"):
        path.unlink()
    assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 2
    assert "fdamed evaluate" in capsys.readouterr().err
