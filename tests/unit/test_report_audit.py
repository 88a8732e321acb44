"""The page's section on the same patients: what is said there is what the audit found."""

from __future__ import annotations

import numpy as np
import pytest

from fdamed.evaluate.ranking import ranking
from fdamed.report import audited, leaks, subgroups


def pair(first: str, second: str, value: float, p: float) -> dict:
    return {
        "metric": "auc",
        "first": first,
        "second": second,
        "value": value,
        "low": value - 0.02,
        "high": value + 0.02,
        "p": p,
        "p_holm": p,
    }


def told(value: float) -> dict:
    return {"value": value, "low": value - 0.05, "high": value + 0.05}


@pytest.fixture
def audit() -> dict:
    return {
        "reference": "fedavg",
        "runs": {"fedavg": [0], "gp": [0], "oracle": [0]},
        "scores": {"auc": {"fedavg": told(0.6), "gp": told(0.7), "oracle": told(0.9)}},
        "pairs": [
            pair("fedavg", "gp", -0.1, 0.01),
            pair("fedavg", "oracle", -0.3, 0.001),
            pair("gp", "oracle", -0.2, 0.2),
        ],
        "groups": [
            {
                "by": ["sex"],
                "are": ["<b>Female"],
                "n": 1200,
                "runs": {"fedavg": {"auc": told(0.6), "gain": None}, "gp": {"auc": told(0.7), "gain": told(0.1)}},
            }
        ],
        "gaps": [
            {
                "by": "sex",
                "run": "gp",
                "metric": "auc",
                "best": "Male",
                "worst": "Female",
                "value": 0.1,
                "low": 0.02,
                "high": 0.2,
            }
        ],
        "calibration": {"gp": {"error": 0.05, "bins": [{"n": 30, "chance": 0.2, "rate": 0.3}]}},
    }


INDEX = {"fedavg": 0, "gp": 1, "oracle": 2}


def test_the_matrix_is_antisymmetric_and_counts_what_is_sure(audit) -> None:
    rows = {row["run"]: row for row in audited.matrix(audit, ["oracle", "gp", "fedavg"], "auc")}
    assert rows["gp"]["cells"][2]["points"] == pytest.approx(10)
    assert rows["fedavg"]["cells"][1]["points"] == pytest.approx(-10)
    assert (rows["gp"]["cells"][2]["low"], rows["gp"]["cells"][2]["high"]) == pytest.approx((8, 12))
    assert (rows["fedavg"]["cells"][1]["low"], rows["fedavg"]["cells"][1]["high"]) == pytest.approx((-12, -8))
    assert {r: (row["won"], row["tied"], row["lost"]) for r, row in rows.items()} == {
        "oracle": (1, 1, 0),
        "gp": (1, 1, 0),
        "fedavg": (0, 0, 2),
    }
    assert rows["gp"]["cells"][1] is None


def test_the_best_run_that_could_be_had_is_open(audit) -> None:
    methods = {"fedavg": "fedavg", "gp": "gp", "oracle": "oracle"}
    section = audited.block(audit, ["oracle", "gp", "fedavg"], methods, INDEX)
    assert [(f["run"], f["open"]) for f in section["forests"]] == [("oracle", False), ("gp", True)]
    assert [d["run"] for d in section["diagrams"]] == ["gp"]
    assert section["gaps"][0]["sure"]


def test_names_of_groups_are_text_and_not_markup(audit) -> None:
    drawn = subgroups.forest(audit, "gp", 1)
    assert "&lt;b&gt;Female" in drawn and "<b>Female" not in drawn
    assert "1,200 images" in drawn and "sex: &lt;b&gt;Female: +10.0 points, +5.0 to +15.0" in drawn


def test_ranks_are_taken_over_the_targets_that_were_told(audit) -> None:
    other = audit | {"scores": {"auc": {"fedavg": told(0.8), "gp": told(0.7), "oracle": told(0.9)}}}
    found = audited.ranked({"A": audit, "B": other, "C": audit | {"scores": {}}}, ["fedavg", "gp", "oracle"])
    assert (found.names, found.ranks, found.sets) == (("oracle", "fedavg", "gp"), (1.0, 2.5, 2.5), 2)
    assert audited.ranked({"A": audit}, ["fedavg", "gp"]) is None


def test_the_drawing_of_ranks_names_everybody_once() -> None:
    found = ranking([f"run{i}" for i in range(7)], np.arange(7 * 6).reshape(6, 7) % 11)
    drawn = audited.critical_difference(found)
    assert all(drawn.count(f">run{i} ") == 1 for i in range(7))
    assert f"critical difference {found.apart:.2f}" in drawn
