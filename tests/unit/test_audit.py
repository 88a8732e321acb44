"""Comparisons and subgroups inside a client: the released numbers are right, and none identifies a person."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, binomtest
from sklearn.metrics import roc_auc_score

from fdamed.cli.main import main
from fdamed.core.disclosure import auc_decimals
from fdamed.core.files import write_json
from fdamed.evaluation.comparison.paired_tests import Influence, auc_influence, auc_of, contrast, difference
from fdamed.evaluation.metrics import TWO, scores
from fdamed.evaluation.subgroups import banded, gap, groups, standings

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
    assert words["age"].tolist()[:5] == ["under 40", "40 to 59", "40 to 59", "80 and over", "80 and over"]
    assert words["age"].isna().tolist() == [False] * 5 + [True]
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
    probabilities = np.stack([judged(frame, 0.2, 1), judged(frame, 2.0, 2)])
    women = next(g for g in groups(frame, SMALLEST) if g.are == ("Female",))
    found = standings(women, frame, probabilities, {"fedavg": {0: 0}, "gp": {0: 1}})
    y = frame["y"].to_numpy()[women.rows]
    p = probabilities[:, women.rows]
    assert found["fedavg"].estimate("auc").value == pytest.approx(roc_auc_score(y, p[0]))
    gain = found["gp"].gain("auc", found["fedavg"])
    assert gain.value == pytest.approx(roc_auc_score(y, p[1]) - roc_auc_score(y, p[0])) and gain.low > 0.1
    assert found["gp"].estimate("sensitivity").value == pytest.approx((p[1][y == 1] >= 0.5).mean())
    assert found["gp"].estimate("false_alarms").value == pytest.approx((p[1][y == 0] >= 0.5).mean())
    assert found["gp"].estimate("brier").value == pytest.approx(((p[1] - y) ** 2).mean())
    assert found["gp"].estimate("bias").value == pytest.approx(p[1].mean() - y.mean())


def test_gains_and_changed_gaps_are_of_the_seeds_that_both_runs_have(study: Path, frame) -> None:
    for run, seed in (("fedavg", 0), ("gp", 2)):
        (study / f"c/clients/B/predictions/{run}/B/{seed}.parquet").unlink()
    assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 0
    audit = json.loads((study / "c/audit/B.json").read_text())
    assert audit["runs"] == {"fedavg": [1, 2], "gp": [0, 1]}
    a, b = (pd.read_parquet(study / f"c/clients/B/predictions/{run}/B/1.parquet") for run in ("fedavg", "gp"))
    area = {
        sex: [roc_auc_score(f["y"][f["sex"] == sex], f["score"][f["sex"] == sex]) for f in (a, b)]
        for sex in ("Female", "Male")
    }
    women = next(g for g in audit["groups"] if g["are"] == ["Female"])["runs"]["gp"]["gains"]["auc"]
    assert women["value"] == pytest.approx(area["Female"][1] - area["Female"][0], abs=1e-4)
    assert women["seeds_error"] is None, "one seed is common"
    apart = next(g for g in audit["gaps"] if (g["by"], g["run"], g["metric"]) == ("sex", "gp", "auc"))
    before, after = (area[apart["best"]][i] - area[apart["worst"]][i] for i in (0, 1))
    assert apart["change"]["value"] == pytest.approx(after - abs(before), abs=2e-4)


def test_runs_without_a_common_seed_have_no_gain(study: Path) -> None:
    for run, seed in (("fedavg", 0), ("gp", 1), ("gp", 2)):
        (study / f"c/clients/B/predictions/{run}/B/{seed}.parquet").unlink()
    assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 0
    audit = json.loads((study / "c/audit/B.json").read_text())
    assert all(g["runs"]["gp"]["gains"] == {} for g in audit["groups"])
    assert all(g["change"] is None for g in audit["gaps"])


def test_influences_give_the_variance_of_delong_and_obuchowski(frame) -> None:
    """Only the correction for few patients is simpler: one K / (K - 1) for all parts."""
    probabilities = np.stack([judged(frame, 0.2, 1), judged(frame, 2.0, 2)])
    names, owner = np.unique(frame["patient"], return_inverse=True)
    full = auc_of(frame["y"], probabilities, frame["patient"])
    one = contrast([(1, auc_influence(frame["y"], probabilities, owner, len(names)).rows([0]))])
    assert (one.value, one.patients) == pytest.approx((full.value[0], np.sqrt(full.covariance[0, 0])), rel=5e-3)
    both = auc_influence(frame["y"], probabilities, owner, len(names))
    apart, known = contrast([(1, both.rows([0])), (-1, both.rows([1]))]), difference(full, [0], [1])
    assert (apart.value, apart.patients) == pytest.approx((known.value, known.patients), rel=5e-3)


def test_a_gap_by_hand() -> None:
    """Groups of two patients each, values 0.9 and 0.7: variances 2 x 0.02^2 and 2 x 0.01^2, times 4 / 3."""
    a = Influence(np.array([0.9]), np.array([[0.02, -0.02, 0, 0]]))
    b = Influence(np.array([0.7]), np.array([[0, 0, 0.01, -0.01]]))
    found = gap({"a": a, "b": b, "c": Influence(np.array([0.8]), a.of)}, None)
    half = 1.959964 * np.sqrt(4 / 3 * (0.0008 + 0.0002))
    assert (found["best"], found["worst"], found["change"]) == ("a", "b", None)
    assert (found["value"], found["low"], found["high"]) == pytest.approx((0.2, 0.2 - half, 0.2 + half), rel=1e-5)
    assert gap({"a": a, "b": b}, None, lower=True)["best"] == "b"
    assert gap({"a": a}, None) is None


def test_a_patient_in_both_groups_moves_both_and_a_gap_says_how_it_changed() -> None:
    """The same patients stand in both views and move both scores alike: the gap is sure, whoever comes."""
    same = np.array([[0.05, -0.05, 0.02, -0.02]])
    views = {"AP": Influence(np.array([0.6]), same), "PA": Influence(np.array([0.8]), same)}
    before = {"AP": Influence(np.array([0.75]), same), "PA": Influence(np.array([0.8]), 3 * same)}
    found = gap(views, {view: (views[view], before[view]) for view in views})
    assert (found["low"], found["value"], found["high"]) == pytest.approx((0.2, 0.2, 0.2))
    assert found["change"]["value"] == pytest.approx(0.15)
    turned = {"AP": (views["AP"], before["PA"]), "PA": (views["PA"], before["AP"])}
    change = gap(views, turned)["change"]
    assert change["value"] == pytest.approx(0.15), "0.2 apart now, 0.05 before, the other way round"
    assert found["change"]["patients"] == pytest.approx(np.sqrt(4 / 3 * 4 * (same**2).sum()))


@pytest.fixture
def study(tmp_path: Path, frame) -> Path:
    """The predictions of two methods and three seeds, as evaluate leaves them."""
    config = {
        "study": "c",
        "results": str(tmp_path),
        "data": {"layout": "chexpert", "root": "nowhere"},
        "split": {"by": "condition", "clients": {"A": "Edema", "B": "Pneumonia"}, "target": "B"},
        "privacy": {"smallest_steps": 7},
        "runs": {"fedavg": {}, "gp": {}},
        "seeds": [0, 1, 2],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for i, run in enumerate(("fedavg", "gp")):
        for seed in range(3):
            path = tmp_path / "c/clients/B/predictions" / run / "B" / f"{seed}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            score = judged(frame, (0.2, 2.0)[i], 10 * i + seed)
            frame.assign(score=score.astype(np.float32)).to_parquet(path, index=False)
    write_json(tmp_path / "c/clients/B/counts.json", counts(frame))
    return tmp_path


def counts(frame: pd.DataFrame, positives_of_val: int = 40) -> dict:
    """The counts of the client, whose validation part has 80 images."""
    test = {"images": len(frame), "patients": frame["patient"].nunique(), "positives": int(frame["y"].sum())}
    val = {"images": 80, "patients": 40, "positives": positives_of_val}
    return {what: {"test": test[what], "val": val[what]} for what in test}


def test_where_the_positives_are_hidden_the_audit_has_only_coarse_aucs(study: Path, frame) -> None:
    """Seven positives of the validation part are small, and parts are alike: those of the test part are hidden, too."""
    write_json(study / "c/clients/B/counts.json", counts(frame, 7))
    assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 0
    audit = json.loads((study / "c/audit/B.json").read_text())
    assert set(audit["scores"]) == {"auc"} and {p["metric"] for p in audit["pairs"]} == {"auc"}
    assert audit["calibration"] == {}, "the bins would add up to the positives"
    assert audit["groups"] and all(g["n"] is None for g in audit["groups"])
    assert {g["metric"] for g in audit["gaps"]} == {"auc"}
    for run in (run for g in audit["groups"] for run in g["runs"].values()):
        assert not {"sensitivity", "false_alarms", "bias", "brier"} & (run.keys() | run["gains"].keys())
    decimals = auc_decimals(len(frame), SMALLEST)
    (pair,) = audit["pairs"]
    assert pair["value"] == round(pair["value"], decimals) and pair["p_holm"] == 0.01


@pytest.mark.parametrize(
    ("images", "smallest", "decimals"), [(22, 11, 2), (73, 11, 2), (73, 5, 2), (800, 11, 3), (10, 5, 1)]
)
def test_an_auc_is_shown_so_coarsely_that_it_fits_every_number_of_positives(images, smallest, decimals) -> None:
    assert auc_decimals(images, smallest) == decimals
    for positives in range(smallest, images - smallest + 1):
        pairs = positives * (images - positives)
        shown = np.arange(0, 10**decimals + 1) / 10**decimals
        assert (np.abs(np.round(shown * pairs) / pairs - shown) <= 0.5 / 10**decimals + 1e-9).all()


def test_the_audit_shows_who_gains_and_names_no_patient(study: Path) -> None:
    assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 0
    text = (study / "c/audit/B.json").read_text()
    assert "p0001" not in text
    audit = json.loads(text)
    (pair,) = [p for p in audit["pairs"] if p["metric"] == "auc"]
    assert (pair["first"], pair["second"], pair["seeds"]) == ("fedavg", "gp", 3)
    assert pair["value"] < 0 and pair["p_holm"] == pair["p"] < 0.001
    gain = {tuple(g["are"]): g["runs"]["gp"]["gains"]["auc"]["value"] for g in audit["groups"] if g["by"] == ["sex"]}
    assert gain["Female",] > 0.15 > abs(gain["Male",])
    gaps = {(g["by"], g["run"], g["metric"]): g for g in audit["gaps"]}
    assert gaps["sex", "fedavg", "auc"]["worst"] == "Female" and gaps["sex", "fedavg", "auc"]["low"] > 0
    assert gaps["sex", "gp", "auc"]["low"] < 0
    for run in ("fedavg", "gp"):
        assert all(b["n"] >= SMALLEST for b in audit["calibration"][run]["bins"])


def test_every_score_is_reported_and_compared_with_the_reference(study: Path) -> None:
    assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 0
    audit = json.loads((study / "c/audit/B.json").read_text())
    assert set(audit["scores"]) == set(TWO)
    for metric, by_run in audit["scores"].items():
        for run, score in by_run.items():
            values = [
                scores(f["y"], f["score"])[metric]
                for seed in range(3)
                if (f := pd.read_parquet(study / f"c/clients/B/predictions/{run}/B/{seed}.parquet")) is not None
            ]
            assert score["value"] == pytest.approx(np.mean(values), abs=1e-6), (metric, run)
            assert score["low"] < score["value"] < score["high"] and "p" not in score
    assert {p["metric"] for p in audit["pairs"]} == set(TWO)
    acc = next(p for p in audit["pairs"] if p["metric"] == "acc")
    assert acc["mcnemar"] is None, "two images a patient"


def test_the_audit_says_how_often_it_drew_patients(study: Path, monkeypatch) -> None:
    for work, times in ((2_000_000_000, 1000), (6 * 800 * 300, 300), (1, 200)):
        monkeypatch.setattr("fdamed.evaluation.bootstrap.WORK", work)
        assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 0
        assert json.loads((study / "c/audit/B.json").read_text())["replicates"] == times


def test_mcnemar_is_reported_where_every_patient_has_one_image(study: Path, frame) -> None:
    for path in (study / "c/clients/B/predictions").rglob("*.parquet"):
        pd.read_parquet(path).drop_duplicates("patient").to_parquet(path, index=False)
    assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 0
    audit = json.loads((study / "c/audit/B.json").read_text())
    acc = next(p for p in audit["pairs"] if p["metric"] == "acc")
    by_seed = []
    for seed in range(3):
        a, b = (pd.read_parquet(study / f"c/clients/B/predictions/{r}/B/{seed}.parquet") for r in ("fedavg", "gp"))
        first, second = ((f["score"] >= 0.5) == (f["y"] == 1) for f in (a, b))
        only = int((first & ~second).sum()), int((second & ~first).sum())
        by_seed.append(binomtest(min(only), sum(only)).pvalue - binom.pmf(min(only), sum(only), 0.5))
    assert acc["mcnemar"] == pytest.approx(max(by_seed))


def test_groups_report_gains_calibration_and_how_gaps_changed(study: Path) -> None:
    assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 0
    audit = json.loads((study / "c/audit/B.json").read_text())
    women = next(g for g in audit["groups"] if g["are"] == ["Female"])
    assert set(women["runs"]["gp"]["gains"]) == {"auc", "sensitivity", "false_alarms", "brier", "bias"}
    assert women["runs"]["fedavg"]["gains"] == {}
    brier = women["runs"]["gp"]["brier"]
    assert brier["low"] < brier["value"] < brier["high"]
    hidden = [g for g in audit["groups"] if g["n"] is None]
    assert hidden and all("calibration" not in g for g in hidden), "bins would reveal the number that is hidden"
    closer = next(g for g in audit["gaps"] if (g["by"], g["run"], g["metric"]) == ("sex", "gp", "auc"))
    assert closer["change"]["high"] < 0, "the gap between the sexes has closed"
    alarms = [g for g in audit["gaps"] if g["metric"] == "false_alarms"]
    assert alarms and all(g["value"] >= 0 for g in alarms)


def test_groups_have_four_decimals_and_where_their_number_is_hidden_two_and_no_shares(study: Path) -> None:
    assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 0
    audit = json.loads((study / "c/audit/B.json").read_text())
    counted = [g["runs"]["gp"] for g in audit["groups"] if g["n"] is not None]
    assert all(r["sensitivity"]["value"] == round(r["sensitivity"]["value"], 4) for r in counted)
    hidden = [g["runs"]["gp"] for g in audit["groups"] if g["n"] is None]
    assert counted and hidden
    for run in hidden:
        assert not {"sensitivity", "false_alarms", "bias"} & (run.keys() | run["gains"].keys())
        assert run["calibration_error"] is run["calibration_limit"] is None
        assert "brier" not in run, "of a model that finds all images negative, it is their share of positives"
        values = [*run["auc"].values(), *run["gains"]["auc"].values()]
        assert all(v == round(v, 2) for v in values)


def test_an_attribute_that_all_share_makes_no_groups(frame) -> None:
    same = frame.assign(view="frontal")
    assert not any("view" in g.by for g in groups(same, SMALLEST))


def test_several_classes_are_compared_by_accuracy_and_calibrated_by_the_class_that_was_named(study: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 200)
    for i, path in enumerate(sorted((study / "c/clients/B/predictions").rglob("*.parquet"))):
        p = rng.dirichlet([1, 1, 1], 200) + 0.5 * (i % 2) * np.eye(3)[y]
        p /= p.sum(axis=1, keepdims=True)
        frame = pd.DataFrame({"patient": np.arange(200).astype(str), "y": y})
        frame.assign(**{f"score_{c}": p[:, c] for c in range(3)}).to_parquet(path, index=False)
    assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 0
    audit = json.loads((study / "c/audit/B.json").read_text())
    assert set(audit["scores"]) == {"acc", "balanced_acc", "brier"} and audit["groups"] == []
    assert all(b["probability"] >= 1 / 3 for b in audit["calibration"]["gp"]["bins"]), (
        "the largest of three probabilities"
    )


def test_runs_that_were_judged_on_other_images_are_not_compared(study: Path, capsys) -> None:
    path = study / "c/clients/B/predictions/gp/B/1.parquet"
    pd.read_parquet(path).iloc[1:].to_parquet(path, index=False)
    assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 2
    assert "scored on other images" in capsys.readouterr().err


def test_a_target_with_few_images_of_a_class_lets_nothing_out(study: Path) -> None:
    for path in (study / "c/clients/B/predictions").rglob("*.parquet"):
        few = pd.read_parquet(path)
        pd.concat([few[few["y"] == 1].head(4), few[few["y"] == 0]]).to_parquet(path, index=False)
    assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 0
    audit = json.loads((study / "c/audit/B.json").read_text())
    assert audit["pairs"] == audit["groups"] == audit["gaps"] == [] and audit["scores"] == audit["calibration"] == {}
    assert audit["suppressed"] == "fewer than 11 patients, or images of a class"


def test_nothing_to_compare_is_one_clear_error(study: Path, tmp_path: Path, capsys) -> None:
    for path in (study / "c/clients/B/predictions").rglob("*.parquet"):
        path.unlink()
    assert main(["audit", "--config", str(study / "config.json"), "--target", "B"]) == 2
    assert "fdamed evaluate" in capsys.readouterr().err
