"""The report's pairwise comparisons show what the audit found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fdamed.evaluation.comparison.run_pairs import ranking
from fdamed.export import model_card
from fdamed.report.plots.ranks import critical_difference
from fdamed.report.sections import attribute_inference, calibration, comparison, subgroups
from fdamed.report.study import NONE, Row, View


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


def entry(value: float) -> dict:
    return {"value": value, "low": value - 0.05, "high": value + 0.05}


BINS = [{"n": 30, "probability": p, "rate": 0.3} for p in (0.2, 0.5, 0.8)]


@pytest.fixture
def audit() -> dict:
    return {
        "reference": "fedavg",
        "runs": {"fedavg": [0], "gp": [0], "oracle": [0]},
        "scores": {"auc": {"fedavg": entry(0.6), "gp": entry(0.7), "oracle": entry(0.9)}},
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
                "runs": {
                    "fedavg": {"auc": entry(0.6), "gains": {}},
                    "gp": {"auc": entry(0.7), "brier": entry(0.2), "gains": {"auc": entry(0.1)}},
                },
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
        "calibration": {"gp": {"error": 0.05, "bins": BINS}},
    }


INDEX = {"fedavg": 0, "gp": 1, "oracle": 2, "gp_aux": 3}


def test_the_matrix_is_antisymmetric_and_counts_what_is_sure(audit) -> None:
    rows = {row["run"]: row for row in comparison.matrix(audit, ["oracle", "gp", "fedavg"], "auc")}
    assert rows["gp"]["cells"][2]["points"] == pytest.approx(10)
    assert rows["fedavg"]["cells"][1]["points"] == pytest.approx(-10)
    assert (rows["gp"]["cells"][2]["low"], rows["gp"]["cells"][2]["high"]) == pytest.approx((8, 12))
    assert (rows["fedavg"]["cells"][1]["low"], rows["fedavg"]["cells"][1]["high"]) == pytest.approx((-12, -8))
    assert {r: (row["won"], row["undecided"], row["lost"]) for r, row in rows.items()} == {
        "oracle": (1, 1, 0),
        "gp": (1, 1, 0),
        "fedavg": (0, 0, 2),
    }
    assert rows["gp"]["cells"][1] is None


def study(**audits: dict) -> Any:
    """The parts of a study that the sections about audits look at; the oracle is the best run."""
    methods = {"oracle": "oracle", "gp": "gp", "gp_aux": "gp", "fedavg": "fedavg"}
    rows = [
        Row(i, run, method, {"auc": NONE}, {}, NONE, None, None, "") for i, (run, method) in enumerate(methods.items())
    ]
    views = [View(target, rows, ()) for target in audits]
    return SimpleNamespace(audits=audits, views=views, methods=methods, index=INDEX, plain=methods)


def test_the_best_run_that_is_no_upper_bound_is_open(audit) -> None:
    shown = subgroups.shown(study(A=audit))["A"]
    assert [(one["run"], one["open"]) for one in shown["runs"]] == [("oracle", False), ("gp", True)]
    assert [one["run"] for one in calibration.diagrams(study(A=audit))["A"]] == ["gp"]
    assert shown["gaps"][0]["significant"]


@pytest.mark.parametrize("bins", [BINS[:2], [*BINS[:2], BINS[2] | {"n": 19}]], ids=["two bins", "19 images"])
def test_a_diagram_of_few_bins_or_few_images_is_not_drawn_and_one_line_says_so(audit, bins) -> None:
    assert calibration.too_small(study(A=audit)) == ""
    audit["calibration"]["gp"]["bins"] = bins
    assert calibration.diagrams(study(A=audit)) == {}
    assert "at least 20 test images" in calibration.too_small(study(A=audit))


def test_a_diagram_has_a_band_where_the_audit_has_intervals(audit) -> None:
    assert "<polygon" not in calibration.plots(study(A=audit))["calibration_gp_A"]
    audit["calibration"]["gp"]["bins"] = [b | {"low": 0.2, "high": 0.4} for b in BINS]
    assert calibration.plots(study(A=audit))["calibration_gp_A"].count("<polygon") == 1


def test_names_of_groups_are_text_and_not_markup(audit) -> None:
    drawn = subgroups.forest(audit, "gp", 1)
    assert "&lt;b&gt;Female" in drawn and "<b>Female" not in drawn
    assert "1,200 images" in drawn and "sex: &lt;b&gt;Female: gain over fedavg in points +10.0, +5.0 to +15.0" in drawn


def test_ranks_are_taken_over_the_targets_that_have_scores(audit) -> None:
    other = audit | {"scores": {"auc": {"fedavg": entry(0.8), "gp": entry(0.7), "oracle": entry(0.9)}}}
    found = comparison.ranked({"A": audit, "B": other, "C": audit | {"scores": {}}}, ["fedavg", "gp", "oracle"])
    assert (found.names, found.ranks, found.sets) == (("oracle", "fedavg", "gp"), (1.0, 2.5, 2.5), 2)
    assert comparison.ranked({"A": audit}, ["fedavg", "gp"]) is None


def test_the_drawing_of_ranks_names_everybody_once() -> None:
    found = ranking([f"run{i}" for i in range(7)], np.arange(7 * 6).reshape(6, 7) % 11)
    drawn = critical_difference(found)
    assert all(drawn.count(f">run{i} ") == 1 for i in range(7))
    assert f"critical difference {found.apart:.2f}" in drawn


def probe() -> dict:
    area = {"value": 0.7, "low": 0.6, "high": 0.8, "shuffled": 0.51}
    apart = {"run": "gp_aux", "base": "gp", "heads": ["sex"], "value": 0.2, "low": 0.1, "high": 0.3}
    other = apart | {"value": -0.01, "low": -0.1, "high": 0.08}
    return {
        "images": 400,
        "runs": {"untrained": [0], "gp": [0], "gp_aux": [0]},
        "attributes": {
            "age": {
                "classes": ["under 60", "60 and over"],
                "runs": {"untrained": area, "gp": area | {"r2": 0.1}, "gp_aux": area},
                "heads": [other],
            },
            "sex": {"classes": ["<i>F", "M"], "runs": {"gp": area, "gp_aux": area}, "heads": [apart]},
        },
    }


def test_attribute_inference_is_drawn_and_heads_are_ordered_by_their_effect(audit) -> None:
    whole = study(A=audit | {"runs": {"gp_aux": [0], "gp": [0]}, "attributes": probe()})
    shown = attribute_inference.shown(whole)["A"]
    assert [(h["attribute"], h["significant"]) for h in shown["heads"]] == [("sex", True), ("age", False)]
    drawn = attribute_inference.plots(whole)["attributes_A"]
    assert "gp_aux: sex 0.700, 0.600 to 0.800" in drawn and drawn.count('class="mark') == 5
    assert drawn.count('class="cross') == 5 and "&lt;i&gt;" not in drawn
    for nothing in (None, {"attributes": {}, "images": 0}):
        assert attribute_inference.shown(study(A=audit | {"attributes": nothing})) == {}


def test_audits_of_all_targets_are_in_the_tables(audit) -> None:
    seeds = audit | {"pairs": [p | {"seeds": 1} for p in audit["pairs"]], "attributes": probe()}
    modules = (attribute_inference, calibration, comparison, subgroups)
    sheets = {name: sheet for m in modules for name, sheet in m.tables(study(A=seeds, B=seeds)).items()}
    assert len(sheets["pairs"]) == 6 and set(sheets["pairs"]["target"]) == {"A", "B"}
    assert sheets["attributes"].set_index(["target", "attribute", "run"]).loc[("A", "age", "gp"), "r2"] == 0.1
    assert sheets["attributes_heads"]["heads"].tolist() == ["sex"] * 4
    assert set(sheets["subgroups"]["metric"]) >= {"auc", "brier", "calibration_error"}
    assert len(sheets["gaps"]) == 2 and len(sheets["calibration"]) == 2
    assert all(sheet.empty for m in modules for sheet in m.tables(study()).values())


def test_an_audit_written_before_there_were_limits_and_probes_can_still_be_shown(audit) -> None:
    assert attribute_inference.probed(study(A=audit)) == {}
    assert calibration.diagrams(study(A=audit))["A"][0]["limit"] is None
    assert comparison.context(study(A=audit))["shown"]["A"]["metrics"] == ["AUC"]
    assert subgroups.shown(study(A=audit))["A"]["runs"][1]["rows"][0]["gain"]["value"] == 0.1


def test_a_card_calls_hidden_what_a_group_must_not_reveal() -> None:
    hidden = {"auc": {"value": 0.8, "low": 0.7, "high": 0.9}, "calibration_error": None}
    audit = {"groups": [{"by": ["sex"], "are": ["F"], "n": None, "runs": {"gp": hidden}}], "gaps": []}
    assert model_card.group_rows(audit, "gp") == [
        ["sex: F", "hidden", "0.80 (0.70 to 0.90)", "hidden", "hidden", "hidden"]
    ]
