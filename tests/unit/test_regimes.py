"""The map of regimes: winners and ties, what rules that choose runs lose, and sweeps that share a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fdamed.cli.main import main
from fdamed.config.loader import load, parse
from fdamed.core.errors import FdamedError
from fdamed.evaluation.ablations import sweeps
from fdamed.evaluation.comparison.regimes import Decision, regime, regrets
from tests.support.run_folders import configuration, write_json, write_predictions, write_study

ROOT = Path(__file__).parents[2]
RUNS = {"gp": "gp-20", "fedavg": "fedavg", "finetune": "finetune-20"}
SCORES = {"gp": 0.80, "fedavg": 0.70, "finetune": 0.79}


def pair(first: str, second: str, p: float) -> dict[str, Any]:
    return {"first": first, "second": second, "p": p}


# --- winners and ties ------------------------------------------------------------------------------------------------


def test_the_best_run_leads_by_its_points_over_the_second() -> None:
    sure = [pair("gp-20", "finetune-20", 0.001), pair("gp-20", "fedavg", 0.001), pair("fedavg", "finetune-20", 0.001)]
    here = regime((20, 0.1), RUNS, SCORES, sure)
    assert here is not None
    assert (here.winner, here.second, here.leaders) == ("gp", "finetune", ("gp",))
    assert here.lead == pytest.approx(1.0) and here.p == pytest.approx(0.003)


def test_runs_that_the_test_does_not_separate_from_the_best_are_listed_after_holms_correction() -> None:
    """Holm over the three pairs of the cell: 0.018 * 3 = 0.054 is not below 0.05, alone it would be."""
    pairs = [pair("finetune-20", "gp-20", 0.018), pair("fedavg", "gp-20", 0.02), pair("fedavg", "finetune-20", 0.3)]
    here = regime((20, 0.1), RUNS, SCORES, [*pairs, pair("gp-20", "gp-60", 1e-9), pair("gp-60", "fedavg", 1e-9)])
    assert here is not None
    assert here.leaders == ("gp", "finetune", "fedavg") and here.p == pytest.approx(0.054)


def test_without_a_test_the_winner_stands_and_is_called_untested() -> None:
    here = regime((20, 0.1), RUNS, SCORES, [])
    assert here is not None and here.leaders == ("gp",) and here.p is None


def test_a_cell_needs_two_scores() -> None:
    assert regime((20, 0.1), RUNS, {"gp": 0.8, "fedavg": None}, []) is None


# --- regret ----------------------------------------------------------------------------------------------------------


def decision(first: str, clear: bool, **scores: list[float]) -> Decision:
    return Decision("NC", 20, 0.0, pd.DataFrame(scores), first, clear)


def test_regret_is_what_the_best_run_of_each_cell_has_more_than_the_chosen_one() -> None:
    """Cell 1: a is best by 10 points; cell 2: b is best by 4. The advice takes a in both and is sure in the first."""
    found = regrets(
        [
            decision("a", True, a=[0.8, 0.9], b=[0.7, 0.8]),
            decision("a", False, a=[0.50, 0.54], b=[0.56, 0.56]),
        ]
    )
    table = {r.rule: (r.cells, r.best, r.lost.mean) for r in found}
    assert table == {
        "advice": (2, 1, pytest.approx(2.0)),
        "advice, where clear": (1, 1, pytest.approx(0.0)),
        "always a": (2, 1, pytest.approx(2.0)),
        "always b": (2, 1, pytest.approx(5.0)),
    }
    assert found[0].lost.half == pytest.approx(12.706 * 2.0, rel=1e-3), "t of one degree: cells lose 0 and 4"
    assert [r.rule for r in found[2:]] == ["always a", "always b"], "least regret first"


def test_the_regret_of_one_cell_has_its_interval_over_the_seeds() -> None:
    (advice, *_) = regrets([decision("b", False, a=[0.8, 0.9], b=[0.7, 0.7])])
    assert advice.lost.mean == pytest.approx(15.0) and advice.lost.n == 2


def test_a_constant_rule_is_a_run_that_every_cell_has() -> None:
    rules = regrets([decision("a", True, a=[0.8], b=[0.7]), decision("a", True, a=[0.8], c=[0.7])])
    assert [r.rule for r in rules] == ["advice", "advice, where clear", "always a"]
    assert regrets([]) == []


# --- the sweep -------------------------------------------------------------------------------------------------------

MAP = {"labeled": [20, 60], "noise": [0, 0.1]}


def test_a_run_without_labels_of_the_target_is_one_run_for_all_their_numbers(tmp_path: Path) -> None:
    """FedAvg and Oracle do not use the few labels; FedAvg with a second phase that does, does."""
    runs = {
        "fedavg": {"sweep": MAP},
        "gp": {"sweep": MAP},
        "oracle": {"sweep": {"labeled": [20, 60]}},
        "tuned": {"method": "fedavg", "then": "finetune_head", "sweep": {"labeled": [20, 60]}},
    }
    study = parse(configuration(tmp_path, runs=runs), "test")
    assert list(study.expanded_runs()) == [
        "fedavg-noise-0",
        "fedavg-noise-0.1",
        *(f"gp-labeled-{n}-noise-{s}" for n in (20, 60) for s in (0, 0.1)),
        "oracle",
        "tuned-labeled-20",
        "tuned-labeled-60",
    ]
    both, labels = sweeps(study.sweeps())
    assert both.options == ("labeled", "noise")
    assert {both.runs["fedavg"][n, 0.1] for n in (20, 60)} == {"fedavg-noise-0.1"}
    assert len(both.runs["fedavg"]) == len(both.runs["gp"]) == 4
    assert labels.runs["oracle"] == {(20,): "oracle", (60,): "oracle"}


@pytest.mark.parametrize("cohort", ["chexpert_phantom", "mimic_phantom", "midrc_phantom"])
def test_the_map_of_regimes_can_be_laid_over_every_phantom_study(cohort: str) -> None:
    study = load(ROOT / f"config/{cohort}.yaml", ROOT / "config/papers/healthcare/regimes.yaml")
    (sweep,) = sweeps(study.sweeps())
    assert set(sweep.runs) == {"fedavg", "finetune", "gp", "fedgp", "target_only", "half_step"}
    assert len(sweep.values) == 16 and all(len(cells) == 16 for cells in sweep.runs.values())
    assert len(study.expanded_runs()) == 5 * 16 + 4, "nothing but the map, FedAvg once for each noise"
    assert len(study.seeds) == 5


def test_a_run_of_an_earlier_file_is_removed_by_null(tmp_path: Path) -> None:
    assert list(parse(configuration(tmp_path, runs={"gp": None, "fedavg": {}}), "test").runs) == ["fedavg"]
    with pytest.raises(FdamedError, match="runs"):
        parse(configuration(tmp_path, runs={"gp": None}), "test")


# --- the page --------------------------------------------------------------------------------------------------------


def study_with_a_map(folder: Path, **changes: Any) -> Path:
    runs = {name: {"sweep": MAP} for name in ("fedavg", "finetune", "gp", "oracle")}
    config = write_study(folder, runs=runs, train={"rounds": 2}, **changes)
    for run in parse(configuration(folder, runs=runs), "test").expanded_runs():
        for seed in (0, 1, 2):
            write_predictions(config.parent, run, "NC", seed)
    assert main(["audit", "--config", str(config), "--target", "NC"]) == 0
    return config


def test_the_report_draws_one_map_for_each_target_with_names_in_its_cells(tmp_path: Path) -> None:
    config = study_with_a_map(tmp_path)
    assert main(["report", "--config", str(config)]) == 0
    folder = config.parent / "report"
    table = pd.read_csv(folder / "tables/regimes.csv")
    assert list(table["values"]) == ["20; 0", "20; 0.1", "60; 0", "60; 0.1"]
    assert set(table["best"]) <= {"fedavg", "finetune", "gp"}, "oracle trains on all labels and does not compete"
    svg = (folder / "figures/regimes_labeled_noise.svg").read_text()
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert {"noise 0", "noise 0.1", "20", "60", "labeled"} <= set(texts)
    assert sum(text in {"fedavg", "finetune", "gp"} for text in texts) == 4, "the winner's name in every cell"
    tied = table["not_separated"].str.contains(";")
    assert svg.count('class="hatch"') == int(tied.sum())
    assert 'id="regimes"' in (folder / "index.html").read_text(encoding="utf-8")


def test_a_sweep_over_one_option_has_no_map(tmp_path: Path) -> None:
    config = write_study(tmp_path, runs={n: {"sweep": {"noise": [0, 0.1]}} for n in ("gp", "fedavg")})
    assert main(["report", "--config", str(config)]) == 0
    assert 'id="regimes"' not in (config.parent / "report/index.html").read_text(encoding="utf-8")


def test_the_advice_stands_in_the_cells_and_its_regret_in_one_sentence(tmp_path: Path) -> None:
    from tests.unit.test_report_advice import advice, cell

    config = study_with_a_map(tmp_path, advise=True)
    given = advice() | {
        "cells": [
            cell(n, s, {f"gp-labeled-{n}-noise-{s}": 0.2, f"fedavg-noise-{s}": 0.1}, clear=n == 20)
            for n in MAP["labeled"]
            for s in MAP["noise"]
        ]
    }
    write_json(config.parent / "advice/NC.json", given)
    assert main(["report", "--config", str(config)]) == 0
    folder = config.parent / "report"
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert page.count(">advised: gp<") == 2 and page.count(">advised: gp?<") == 2
    assert re.search(r"The advice names the best run, or one not separated from it, in \d of 4 cells.", page)
    assert "the best constant rule, always " in page
    regret = pd.read_csv(folder / "tables/regret.csv")
    assert list(regret["rule"])[:2] == ["advice", "advice, where clear"]
    assert set(regret["rule"][2:]) == {"always gp", "always fedavg"}
    assert list(regret["cells"]) == [4, 2, 4, 4]
