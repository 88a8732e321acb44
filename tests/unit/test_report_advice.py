"""Advice in the report: the recommendation before training, and whether it was right."""

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
from fdamed.evaluation.intervals import reach
from fdamed.report.advice import decision_map, evaluate, sentences, sources, together
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
        "target": {"labeled": 60, "sigma2": about(1.0), "norm2": about(0.8), "m": 10.0},
        "weak": False,
        "best_beta": {"fedda": 0.4, "fedgp": 0.6},
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
    return evaluate(told, scores(**runs), "auc", "AUC")


def test_what_was_lost_is_the_paired_difference_to_the_best_run() -> None:
    after = hindsight(advice(), fedgp=[0.6, 0.7], fedavg=[0.8, 0.9], target_only=[0.5, 0.6])
    assert [r.run for r in after.rows] == ["fedgp", "fedavg", "target_only"], "by predicted error"
    assert [r.lost.mean for r in after.rows] == pytest.approx([0.2, 0.0, 0.3])
    assert after.rows[0].lost.half == pytest.approx(0.0, abs=1e-9)
    assert after.verdict == "No."
    assert after.sentence == (
        "Of the 3 runs that it covers, the theory ranks fedgp first; fedavg was the best, 0.200 ± 0.000 in AUC above "
        "fedgp."
    )


def test_a_loss_within_the_noise_of_the_seeds_is_not_called_wrong() -> None:
    after = hindsight(advice(), fedgp=[0.6, 0.8], fedavg=[0.9, 0.6])
    assert after.verdict == "Not the best run, but not significantly worse."
    assert "fedavg was the best" in after.sentence


def test_right_advice_is_right_only_as_far_as_its_lead_goes() -> None:
    sure = hindsight(advice(), fedgp=[0.8, 0.81, 0.8], fedavg=[0.6, 0.61, 0.61], target_only=[0.5, 0.5, 0.5])
    assert sure.verdict == "Yes." and sure.rows[0].lost.mean == 0.0
    assert "in AUC above fedavg." in sure.sentence, "the runner-up"
    assert hindsight(advice(), fedgp=[0.8, 0.6], fedavg=[0.6, 0.7]).verdict == "Yes, but not significantly."
    one = hindsight(advice(), fedgp=[0.8], fedavg=[0.6])
    assert one.verdict == "Yes, but not significantly." and "±" not in one.sentence


def test_only_covered_runs_and_seeds_that_all_of_them_have_are_compared() -> None:
    after = hindsight(advice(), fedgp=[0.7, 0.1], fedavg=[0.6], gp=[0.8, 0.8])
    assert [(r.run, r.score.mean) for r in after.rows] == [("fedgp", 0.7), ("fedavg", 0.6)]


def test_without_two_runs_to_compare_the_question_stays_open() -> None:
    assert hindsight(advice(), gp=[0.8]).verdict == "Open."
    assert hindsight(advice(), fedgp=[0.8], gp=[0.8]).verdict == "Open."
    assert together({"NC": hindsight(advice(), fedgp=[0.8])}, "AUC") == ""


def test_a_rival_that_is_best_more_often_is_named() -> None:
    told = advice() | {"recommended": {"method": "fedgp_auto", "beta": {"LO": 0.2, "CO": 0.6, "ED": 0.4}}}
    told["ranking"] = [row("fedgp_auto", "fedgp_auto", None, 0.1, 0.4), row("fedgp(0.5)", "fedgp", 0.5, 0.2, 0.6)]
    assert "fedgp(0.5) is best in 60% of them, more often than the recommended one." in " ".join(sentences(told))
    assert [s["beta"] for s in sources(told)] == [0.6, 0.4, 0.2]


def test_the_sentences_name_method_beta_and_interval() -> None:
    text = " ".join(sentences(advice()))
    assert "fedgp with β = 0.5: predicted error 0.200 (0.100 to 0.300), the smallest of 2 in 70% of 200" in text
    assert "The best fixed β is 0.4 for FedDA and 0.6 for FedGP." in text
    assert reach({"value": -0.5, "low": -1.0, "high": 120.0}) == "−0.500 (−1.00 to 120)"


def test_sources_come_most_helpful_first() -> None:
    assert [(s["name"], s["verdict"]) for s in sources(advice())] == [
        ("CO", "helps"),
        ("ED", "unclear"),
        ("LO", "hurts"),
    ]


def test_the_map_describes_each_source_with_the_rule_of_its_region() -> None:
    """sigma = 1: at d = 2 FedDA has 1/4 + 1 and FedGP about 1/4 (1 + ...) + 1/4 * 0.9 * 2 = 0.79 < 1."""
    words = re.search("<desc>(.*?)</desc>", str(decision_map(advice())))
    assert words is not None
    assert words[1] == "LO: d = 2, FedGP; CO: d = 0.5, source only; ED: d = 1, FedGP."


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
    assert (tables / "advice_judged.csv").read_text().splitlines()[1].startswith("NC,auc,fedgp,0.2,")


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
