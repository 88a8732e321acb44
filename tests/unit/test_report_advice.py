"""Advice in the report: what was promised before training, and whether it came true."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


from fdamed.cli.main import main
from fdamed.evaluation.formatting import reach
from fdamed.report.advice import decision_map, ranking, sentences, sources
from fdamed.report.advice_evaluation import by_chance, evaluate, together
from fdamed.report.plots.decision_map import Spot, landscape
from fdamed.report.plots.figure import standalone
from tests.support.run_folders import CLIENTS, edit, write_json, write_study

NAMES = {"fedgp": ("fedgp", 0.5), "fedavg": ("fedavg", None), "target_only": ("target_only", None)}


def about(value: float, spread: float = 0.5) -> dict[str, float]:
    return {"value": value, "low": value - spread * abs(value), "high": value + spread * abs(value)}


def row(name: str, method: str, beta: float | None, error: float, share: float) -> dict[str, Any]:
    return {"name": name, "method": method, "beta": beta, "best_share": share, "error": about(error)}


def advice(target: str = "NC", **errors: float) -> dict[str, Any]:
    """Advice in which fedgp(0.5) wins; `errors` of runs of the study: fedgp 0.2, fedavg 0.4, target_only 0.8."""
    told = {"fedgp": 0.2, "fedavg": 0.4, "target_only": 0.8} | errors
    order = [row("fedgp(0.5)", "fedgp", 0.5, 0.2, 0.7), row("fedavg", "fedavg", None, 0.4, 0.3)]
    return {
        "study": "demo",
        "target_name": target,
        "seed": 0,
        "cost": {"images": 400, "images_of_one_run": 10_000, "share": 0.04},
        "recommended": {"method": "fedgp", "beta": 0.5},
        "ranking": order,
        "runs": {run: row(run, *NAMES[run], error, 0.3) for run, error in told.items()},
        "sources": [
            {"source": s, "verdict": v, "gain": about(g), "d2": about(d2), "tau2": about(0.5)}
            | {"delta": about(0.9), "cosine": about(0.3)}
            for s, v, g, d2 in (("LO", "hurts", -0.1, 4.0), ("CO", "helps", 0.2, 0.25), ("ED", "unclear", 0.01, 1.0))
        ],
        "target": {"labeled": 60, "sigma2": about(1.0), "norm2": about(0.8), "m": 10.0, "pooled_d2": about(0.4)},
        "weak": False,
        "best_beta": {"fedda": 0.4, "fedgp": 0.6},
        "points": 1,
        "resamples": 200,
        "level": 0.9,
    }


def scores(**runs: list[float]) -> pd.DataFrame:
    """AUC by seed at NC."""
    rows = [
        (run, run, "NC", seed, "NC", "test", "auc", value, "")
        for run, found in runs.items()
        for seed, value in enumerate(found)
    ]
    return pd.DataFrame(rows, columns=["run", "method", "target", "seed", "client", "split", "metric", "value", "why"])


def hindsight(told: dict[str, Any], **runs: list[float]) -> Any:
    return evaluate(told, scores(**runs), "auc", "AUC", {run: run for run in runs})


def test_what_was_lost_is_the_paired_difference_to_the_best_run() -> None:
    after = hindsight(advice(), fedgp=[0.6, 0.7], fedavg=[0.8, 0.9], target_only=[0.5, 0.6])
    assert (after.recommended, after.best) == ("fedgp", "fedavg")
    assert after.lost.mean == pytest.approx(0.2) and after.lost.half == pytest.approx(0.0, abs=1e-9)
    assert after.verdict == "No."
    assert [(r.run, r.predicted_rank, r.rank) for r in after.rows] == [
        ("fedgp", 1, 2),
        ("fedavg", 2, 1),
        ("target_only", 3, 3),
    ]
    text = " ".join(after.sentences)
    assert "Following the recommendation lost 0.200 ± 0.000, a significant difference over seeds." in text
    # Losses 0.2, 0 and 0.3: 0.5 / 3.
    assert "picked at random among them would have lost 0.167" in text
    # Of three pairs one is turned round: (2 - 1) / 3; of the six orders three have one inversion or none.
    assert after.agreement == pytest.approx(1 / 3)
    assert "a random order of 3 runs agrees as well in 50% of cases" in text


def test_a_loss_within_the_noise_of_the_seeds_is_not_called_wrong() -> None:
    after = hindsight(advice(), fedgp=[0.6, 0.8], fedavg=[0.9, 0.6])
    assert after.best == "fedavg"
    assert after.verdict == "Not the best run, but not significantly worse."
    assert "which is not significant" in " ".join(after.sentences)


def test_right_advice_is_right_only_as_far_as_its_lead_goes() -> None:
    sure = hindsight(advice(), fedgp=[0.8, 0.81, 0.8], fedavg=[0.6, 0.61, 0.61])
    assert sure.verdict == "Yes." and sure.lost.mean == 0.0
    assert hindsight(advice(), fedgp=[0.8, 0.6], fedavg=[0.6, 0.7]).verdict == "Yes, but not significantly."
    one = hindsight(advice(), fedgp=[0.8], fedavg=[0.6])
    assert one.verdict == "Yes, but not significantly."
    assert "one seed cannot test" in " ".join(one.sentences)


def test_only_seeds_that_all_compared_runs_have_are_compared() -> None:
    after = hindsight(advice(), fedgp=[0.7, 0.1], fedavg=[0.6])
    assert after.best == "fedgp" and after.rows[0].score.mean == 0.7


def test_runs_outside_the_theory_are_named_when_they_are_better_but_the_upper_bound_is_not() -> None:
    after = hindsight(advice(), fedgp=[0.7, 0.7], fedavg=[0.6, 0.6], gp=[0.8, 0.8], oracle=[0.9, 0.9])
    text = " ".join(after.sentences)
    assert "does not cover gp, which scored higher: AUC 0.800" in text and "oracle" not in text
    assert {r.run for r in after.rows} == {"fedgp", "fedavg"}


def test_without_two_runs_to_compare_the_question_stays_open() -> None:
    assert hindsight(advice(), gp=[0.8]).verdict == "Open."
    assert "only finished run" in hindsight(advice(), fedgp=[0.8], gp=[0.8]).sentences[0]
    assert together({"NC": hindsight(advice(), fedgp=[0.8])}, "AUC") == []


def test_a_recommended_method_that_was_not_run_is_said() -> None:
    told = advice() | {"recommended": {"method": "fedgp_auto", "beta": {"LO": 0.2, "CO": 0.6, "ED": 0.4}}}
    told["ranking"] = [row("fedgp_auto", "fedgp_auto", None, 0.1, 0.4), row("fedgp(0.5)", "fedgp", 0.5, 0.2, 0.6)]
    after = hindsight(told, fedgp=[0.8, 0.8], fedavg=[0.6, 0.6])
    assert after.sentences[0] == "fedgp_auto itself was not run."
    text = " ".join(sentences(told))
    assert "fedgp(0.5) is best in 60% of them, more often than the recommended one." in text
    assert "expected values are 0.20 to 0.60" in text


@pytest.mark.parametrize(
    ("agreement", "runs", "share"), [(1.0, 3, 1 / 6), (-1.0, 4, 1.0), (1 / 3, 4, 9 / 24), (0.1, 3, None)]
)
def test_how_well_a_random_order_does(agreement: float, runs: int, share: float | None) -> None:
    """Orders of 4 with 0, 1, 2 inversions: 1 + 3 + 5 of 24; tau = 1/3 is two inversions of six pairs."""
    assert by_chance(agreement, runs) == (None if share is None else pytest.approx(share))


def test_the_sentences_name_method_beta_interval_and_sources() -> None:
    text = " ".join(sentences(advice()))
    assert "fedgp with β = 0.5: predicted error 0.200 (0.100 to 0.300), the smallest of 2 in 70% of 200" in text
    assert "The best fixed β is 0.4 for FedDA and 0.6 for FedGP." in text
    assert "CO is expected to help. LO is expected to hurt. Whether ED helps is uncertain." in text
    assert reach({"value": -0.5, "low": -1.0, "high": 120.0}) == "−0.500 (−1.00 to 120)"


def test_a_rule_is_matched_with_the_run_that_is_the_same_rule() -> None:
    assert [r["runs"] for r in ranking(advice())] == [["fedgp"], ["fedavg"]]
    other = advice(fedgp=0.21)  # same method and beta, other weighting: another prediction
    assert ranking(other)[0]["runs"] == []


def test_sources_stand_in_the_region_of_the_rule_with_the_smallest_error() -> None:
    """sigma = 1: at d = 2 FedDA has 1/4 + 1 and FedGP about 1/4 (1 + ...) + 1/4 * 0.9 * 2 = 0.79 < 1."""
    places = {s["name"]: s["region"] for s in sources(advice())}
    assert places == {"CO": "source only", "ED": "FedGP", "LO": "FedGP"}
    assert [s["name"] for s in sources(advice())] == ["CO", "ED", "LO"]


def test_the_map_names_its_regions_and_spreads_the_names_of_sources() -> None:
    picture = str(decision_map(advice()))
    assert 'role="img"' in picture and 'aria-label="NC: τ² = 0.50' in picture
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    assert {"target only", "source only", "LO", "CO", "ED"} <= set(texts)
    assert "<style" not in picture, "a style inside the page would change the whole page"
    heights = sorted(float(y) for y in re.findall(r'y="([\d.]+)" text-anchor="(?:start|end)">(?:LO|CO|ED)<', picture))
    assert len(heights) == 3 and all(b - a >= 14.9 for a, b in itertools.pairwise(heights))


def test_a_map_as_a_file_has_its_colors_written_out_and_escapes_names() -> None:
    spots = [Spot("<b>&", (1.0, 0.5, 2.0), (1.0, 1e-9, 2.0))]
    picture = standalone(landscape(lambda sigma, d: "fedgp" if d < sigma else "target_only", spots, "t"))
    assert picture.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert ".c2 { color: #009e73; }" in picture and "var(" not in picture and "light-dark" not in picture
    assert "<b>" not in picture and "&lt;b&gt;&amp;" in picture
    assert picture.count('class="half') == 4, "two regions and their entries in the legend"


def words(config: Path) -> str:
    assert main(["report", "--config", str(config)]) == 0
    page = (config.parent / "report/index.html").read_text(encoding="utf-8")
    return " ".join(re.sub(r"(?s)<(style|script)>.*?</\1>|<[^>]+>", " ", page).split())


STUDY: dict[str, Any] = {
    "runs": {"fedavg": {}, "fedgp": {}, "target_only": {}},
    "train": {"rounds": 2},
    "seeds": [0, 1],
}


def test_the_report_shows_advice_only_where_the_configuration_asks_for_it(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    write_json(config.parent / "advice/NC.json", advice())
    assert "Recommendation before training" not in words(config)
    edit(config, advise=True)
    text = words(config)
    assert "Recommendation before training" in text and "Was it right?" in text
    assert "theory recommends fedgp with β = 0.5" in text
    assert "4.0% of the 10,000 of one training run" in text
    tables = config.parent / "report/tables"
    assert (tables / "advice.csv").read_text().splitlines()[1].startswith("NC,fedgp,0.5,0.2,")
    assert (tables / "advice_judged.csv").read_text().splitlines()[1].startswith("NC,auc,fedgp,fedgp,0,")


def test_missing_and_weak_advice_are_said(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY, advise=True)
    assert "There is no recommendation for NC." in words(config)
    write_json(config.parent / "advice/NC.json", advice() | {"weak": True})
    assert "Weak evidence." in words(config)


def test_each_target_has_its_own_advice_and_all_are_counted_together(tmp_path: Path) -> None:
    cut = {"by": "condition", "clients": dict(list(CLIENTS.items())[:3]), "target": "each"}
    config = write_study(tmp_path, **STUDY, split=cut, advise=True)
    for target in ("LO", "CO"):
        write_json(config.parent / f"advice/{target}.json", advice(target))
    text = words(config)
    assert "At LO the theory recommends" in text and "At CO the theory recommends" in text
    assert "There is no recommendation for ED." in text
    assert "best of the runs that it covers at 2 of 2 targets; following it lost 0.000 in AUC" in text
