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
from fdamed.config.runs import Swept
from fdamed.evaluation.comparison.regimes import regrets
from fdamed.evaluation.intervals import reach
from fdamed.report.advice import decision_map, decisions, rule_of, sentences, sources, verdict
from fdamed.report.plots.decision_map import Spot, landscape
from fdamed.report.plots.figure import standalone
from tests.support.run_folders import CLIENTS, edit, write_json, write_study


def about(value: float, spread: float = 0.5) -> dict[str, float]:
    return {"value": value, "low": value - spread * abs(value), "high": value + spread * abs(value)}


def cell(labeled: int, noise: float, drops: dict[str, float], clear: bool = True) -> dict[str, Any]:
    """A cell whose runs have these drops, best first."""
    first = max(drops.values())
    order = sorted(drops, key=lambda run: -drops[run])
    rows = [
        {"run": run, "drop": about(drops[run]), "best_share": 0.7 if run == order[0] else 0.3}
        | {"behind": about(first - drops[run])}
        for run in order
    ]
    return {
        "labeled": labeled,
        "noise": noise,
        "ranking": rows,
        "winner": order[0] if clear else None,
        "not_separated": order[:1] if clear else order,
    }


def advice(target: str = "NC", clear: bool = True, **drops: float) -> dict[str, Any]:
    """Advice in which fedgp wins."""
    all_drops = {"fedgp": 0.2, "fedavg": 0.1, "target_only": 0.05} | drops
    return {
        "study": "demo",
        "target_name": target,
        "seed": 0,
        "warmup": 2,
        "cost": {"images": 400, "images_of_one_run": 10_000, "share": 0.04, "runs": 6},
        "cells": [cell(100, 0.0, all_drops, clear)],
        "predicted": {"fedavg": about(0.4)},
        "sources": [
            {"source": s, "verdict": v, "gain": about(g), "d2": about(d2), "tau2": about(0.5)}
            | {"delta": about(0.9), "cosine": about(0.3)}
            for s, v, g, d2 in (("LO", "hurts", -0.1, 4.0), ("CO", "helps", 0.2, 0.25), ("ED", "unclear", 0.01, 1.0))
        ],
        "target": {"labeled": 60, "sigma2": about(1.0), "norm2": about(0.8), "m": 10.0},
        "weak": False,
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


def hindsight(advice: dict[str, Any], **runs: list[float]) -> Any:
    return decisions(advice, scores(**runs), "auc", {})


def test_what_was_lost_is_the_paired_difference_to_the_best_run_in_points() -> None:
    (one,) = hindsight(advice(), fedgp=[0.6, 0.7], fedavg=[0.8, 0.9], target_only=[0.5, 0.6])
    assert (one.first, one.best, one.clear) == ("fedgp", "fedavg", True)
    assert one.lost("fedgp").mean == pytest.approx(20.0) and one.lost("fedgp").half == pytest.approx(0.0, abs=1e-9)
    assert one.lost("fedavg").mean == 0.0
    assert verdict(regrets([one]), "AUC") == (
        "Over 1 cell, the advice chose the best run in 0 and lost 20.0 ± 0.0 points of AUC; the best constant rule, "
        "always fedavg, lost 0.0 ± 0.0."
    )


def test_only_runs_that_were_tried_and_seeds_that_all_of_them_have_are_compared() -> None:
    (one,) = hindsight(advice(), fedgp=[0.7, 0.1], fedavg=[0.6], gp=[0.8, 0.8])
    assert list(one.scores) == ["fedgp", "fedavg"] and len(one.scores) == 1


def test_where_the_first_run_is_missing_the_next_one_is_judged_and_not_as_a_winner() -> None:
    (one,) = hindsight(advice(), fedavg=[0.6], target_only=[0.7])
    assert (one.first, one.clear, one.best) == ("fedavg", False, "target_only")


def test_without_two_runs_to_compare_there_is_nothing_to_judge() -> None:
    assert hindsight(advice(), gp=[0.8]) == [] and hindsight(advice(), fedgp=[0.8], gp=[0.8]) == []
    assert verdict([], "AUC") == ""


def test_a_run_has_one_name_in_all_cells() -> None:
    swept = {
        "gp-labeled-20-beta-0.5": Swept("gp", {"labeled": 20, "beta": 0.5}),
        "fedavg-noise-0.1": Swept("fedavg", {"noise": 0.1}),
    }
    assert [rule_of(run, swept) for run in (*swept, "oracle")] == ["gp-beta-0.5", "fedavg", "oracle"]


def test_the_sentences_name_the_run_its_drop_and_its_lead() -> None:
    text = " ".join(sentences(advice(), {}))
    assert "fedgp is recommended: one round lowers the held-out loss by 0.200 (0.100 to 0.300)" in text
    assert "0.100 (0.0500 to 0.150) more than fedavg; it is first in 70%" in text
    assert reach({"value": -0.5, "low": -1.0, "high": 120.0}) == "−0.500 (−1.00 to 120)"


def test_no_clear_winner_is_reported_with_the_runs_that_are_near() -> None:
    text = " ".join(sentences(advice(clear=False), {}))
    assert "no clear winner" in text and "recommended" not in text
    assert "The folds do not separate fedgp, fedavg, target_only." in text
    assert "nothing is recommended" in " ".join(sentences(advice() | {"cells": []}, {}))


def test_a_cell_that_was_not_tried_is_named_with_the_reason() -> None:
    skipped = [{"labeled": 20, "noise": 0.1, "why": "a fold has fewer than 100 images"}]
    text = sentences(advice() | {"skipped": skipped}, {})
    assert text[-1] == "Not tried: 20 labeled images, noise 0.1; a fold has fewer than 100 images." and len(text) > 1
    assert "no cell has folds that are large enough" in sentences(advice() | {"cells": [], "skipped": skipped}, {})[0]


def test_several_cells_are_counted() -> None:
    cells = [cell(20, s, {f"gp-noise-{s}": 0.2, "fedavg": 0.1}, clear=s < 0.3) for s in (0.0, 0.2, 0.4)]
    swept = {f"gp-noise-{s}": Swept("gp", {"noise": s}) for s in (0.0, 0.2, 0.4)}
    assert sentences(advice() | {"cells": cells}, swept) == ["At NC, of 3 cells: gp in 2, no clear winner in 1."]


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
    svg = str(decision_map(advice()))
    assert 'role="img"' in svg and 'aria-label="NC: τ² = 0.50' in svg
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert {"target only", "source only", "LO", "CO", "ED"} <= set(texts)
    assert "<style" not in svg, "a style inside the page would change the whole page"
    heights = sorted(float(y) for y in re.findall(r'y="([\d.]+)" text-anchor="(?:start|end)">(?:LO|CO|ED)<', svg))
    assert len(heights) == 3 and all(b - a >= 14.9 for a, b in itertools.pairwise(heights))


def test_a_map_as_a_file_has_its_colors_written_out_and_escapes_names() -> None:
    spots = [Spot("<b>&", (1.0, 0.5, 2.0), (1.0, 1e-9, 2.0))]
    svg = standalone(landscape(lambda sigma, d: "fedgp" if d < sigma else "target_only", spots, "t"))
    assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert ".c2 { color: #009e73; }" in svg and "var(" not in svg and "light-dark" not in svg
    assert "<b>" not in svg and "&lt;b&gt;&amp;" in svg
    assert svg.count('class="half') == 4, "two regions and their entries in the legend"


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
    assert "At NC fedgp is recommended" in text
    assert "4.0% of the 10,000 of one training run" in text
    assert "Does the advice pay?" in text and "always target_only" in text
    tables = config.parent / "report/tables"
    assert (tables / "advice.csv").read_text().splitlines()[1] == "NC,100,0,fedgp,0.2,0.1,0.3,0.7,True,"
    assert (tables / "advice.csv").read_text().splitlines()[2].endswith(",False,0.4")
    assert (tables / "advice_judged.csv").read_text().splitlines()[1].startswith("NC,100,0,auc,fedgp,True,")
    assert (tables / "regret.csv").read_text().splitlines()[1].startswith("advice,auc,1,")


def test_missing_and_weak_advice_are_reported(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY, advise=True)
    assert "There is no recommendation for NC." in words(config)
    write_json(config.parent / "advice/NC.json", advice() | {"weak": True})
    assert "Weak evidence." in words(config)


def test_each_target_has_its_own_advice_and_regret_is_over_all(tmp_path: Path) -> None:
    cut = {"by": "condition", "clients": dict(list(CLIENTS.items())[:3]), "target": "each"}
    config = write_study(tmp_path, **STUDY, split=cut, advise=True)
    for target in ("LO", "CO"):
        write_json(config.parent / f"advice/{target}.json", advice(target))
    text = words(config)
    assert "At LO fedgp is recommended" in text and "At CO fedgp is recommended" in text
    assert "There is no recommendation for ED." in text
    assert "Over 2 cells, the advice chose the best run in" in text
