"""The model card: one template, as Markdown and as a page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fdamed.config.loader import load
from fdamed.core.run_record import study
from fdamed.export.model_card import MANY, render
from tests.support.run_folders import edit, write_study


def card(config: Path, run: str, target: str, **changes: Any) -> tuple[str, str]:
    """The card of seed 0, for a model.json without a file behind it."""
    (record,), _ = study(config.parent / "runs", [(run, target, 0)], 11)
    of = {"study": "demo", "run": run, "method": record.method, "title": "GP", "options": {}, "target": target}
    about = {
        "study": of | {"seed": 0, "rounds": 4, "trained": "2026-03-01T08:00:00", "synthetic": True} | changes,
        "input": {"name": "image", "shape": ["batch", 1, 32, 32]},
        "output": {"name": "probability", "classes": ["no Edema", "Edema"], "meaning": "", "positive": "Edema"}
        | {"threshold": 0.5},
        "preprocessing": None,
        "network": {"backbone": "resnet18", "width": 1.0},
        "parity": {"images": 10, "random": 8, "max_difference": {"safetensors": 0.0}},
        "digests": {"run": "abc"},
        "files": {"model.safetensors": "def"},
        "versions": {"trained_with": None, "fdamed": "0.1.0", "commit": None},
    }
    return render(load(config), record, about, kept=False)


def test_a_study_of_many_hospitals_shows_some_and_counts_the_others(tmp_path: Path) -> None:
    """The target sends nothing here, so it has no row among the senders."""
    clients = {f"h{i:02}": f"h{i:02}" for i in range(MANY + 10)}
    split = {"by": "site", "label": "Edema", "clients": clients, "target": "h29"}
    config = write_study(tmp_path, runs={"fedavg": {}}, split=split, train={"rounds": 2}, seeds=[0])
    markdown, _ = card(config, "fedavg", "h29")
    data, sent = (markdown.split(f"## {name}")[1].split("\n## ")[0] for name in ("Training and", "What left"))
    assert data.count("| source |") == MANY - 1 and "| h29 | target |" in data and "- 10 more hospitals" in data
    assert sent.count("\n| h") == MANY and "h29" not in sent and "- 9 more hospitals" in sent


def test_names_from_data_are_text_in_both_forms(tmp_path: Path) -> None:
    config = write_study(tmp_path, runs={"gp": {}}, train={"rounds": 2}, seeds=[0, 1])
    group = {"auc": {"value": 0.8, "low": 0.7, "high": 1.2}, "calibration_error": 0.1}
    evil = "<script>x</script> | [a](http://b)"
    audit = {"groups": [{"by": ["scanner"], "are": [evil], "n": 120, "runs": {"gp": group}}], "gaps": []}
    (config.parent / "audit").mkdir()
    (config.parent / "audit/NC.json").write_text(json.dumps(audit))
    markdown, page = card(config, "gp", "NC", trained=None)
    assert "0.800 (0.700 to 1.000) | not measured | not measured | 0.100 |" in markdown
    assert "<script" not in page and "href" not in page and "&lt;script&gt;x&lt;/script&gt; | [a](http://b)" in page
    assert "Trained at an unknown time in 4 rounds" in markdown and "<h2>Limits</h2>" in page


def test_the_card_warns_of_a_model_that_guesses_or_reveals_its_members(tmp_path: Path) -> None:
    config = write_study(tmp_path, runs={"gp": {}}, train={"rounds": 2}, seeds=[0])
    assert (
        "Caution" not in card(config, "gp", "NC")[0]
        and "Membership inference: not measured" in card(config, "gp", "NC")[0]
    )
    found = {"value": 0.55, "low": 0.46, "high": 0.64}
    for place, content in {
        "audit/NC.json": {"scores": {"auc": {"gp": found}}},
        "membership/NC.json": {
            "untrained": {"auc": {"value": 0.5, "low": 0.4, "high": 0.6}},
            "targets": {
                "NC": {"runs": {"gp": {"loss": {"auc": found | {"value": 0.8, "low": 0.7}}, "calibrated": None}}}
            },
        },
    }.items():
        (config.parent / place).parent.mkdir(exist_ok=True)
        (config.parent / place).write_text(json.dumps(content))
    markdown, page = card(config, "gp", "NC")
    assert "the AUC of gp cannot be distinguished from guessing (0.5): 0.550 (0.460 to 0.640 over" in markdown
    assert "recognizes training patients of NC" in markdown and "should not be released as it is" in page
    assert "| NC | 0.800 (0.700 to 0.640) | not measured | 0.500 (0.400 to 0.600) | yes |" in markdown


def test_the_card_says_what_differential_privacy_cost_or_that_there_was_none(tmp_path: Path) -> None:
    config = write_study(tmp_path, runs={"gp": {}}, train={"rounds": 2}, seeds=[0])
    assert (
        "- No noise was added at the sources: this model is not differentially private." in card(config, "gp", "NC")[0]
    )
    cost = {"epsilon": 3.2149, "delta": 1e-4, "spent": []}
    sources = {"a": cost, "b": cost | {"epsilon": 7.0}} | {f"c{i}": cost | {"epsilon": 1.0} for i in range(MANY)}
    edit(config.parent / "runs/gp/NC/0/run.json", privacy={"unit": "patient", "mode": "secure", "sources": sources})
    text = card(config, "gp", "NC")[0]
    assert "each patient of a source" in text and "b 7.00 (delta 1.0e-04), a 3.21 (delta 1.0e-04), c0 1.00" in text
    assert " and at most as much at 2 others. Secure: " in text and "nobody can repeat" in text
