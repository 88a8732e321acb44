"""Parts of the report's page: the answer at a glance, score against time, sections, policy, marks."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from fdamed.cli.main import main
from fdamed.config.loader import parse
from fdamed.core.errors import FdamedError
from fdamed.core.run_record import study
from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.time_to_score import by_round, on_cpu
from fdamed.report import sections
from fdamed.report.headline import Card, cards
from fdamed.report.svg import COLORS, DASHES, MARKS, Line, color, curves, dash, key, shape
from fdamed.report.target_view import Findings, Row, View, view
from tests.support.run_folders import edit, write_study

STUDY = {"runs": {"fedavg": {}, "gp": {}}, "train": {"rounds": 4}}
RUNS = [("fedavg", "NC", s) for s in (0, 1, 2)] + [("gp", "NC", s) for s in (0, 1, 2)]


@pytest.fixture(autouse=True)
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdamed.report.export_figures.pictures", lambda *_: iter(()))


def report(config: Path) -> str:
    assert main(["report", "--config", str(config)]) == 0
    return (config.parent / "report/index.html").read_text(encoding="utf-8")


# --- the answer at a glance ------------------------------------------------------------------------------------------


def row(run: str, score: Interval, mb: float | None = 12.0) -> Row:
    none = Interval(None, None, 0)
    ceiling = run == "oracle"
    return Row(0, run, run, {"auc": score, "acc": none}, {}, "", none, None, mb, ceiling, "")  # type: ignore[arg-type]


def glance(*rows: Row, pairs: list[dict[str, object]] | None = None) -> dict[str, Card]:
    view = View("NC", rows, (), (), "", "", ())  # type: ignore[arg-type]
    audit = None if pairs is None else {"pairs": pairs}
    return {card.label: card for card in cards(view, "auc", "AUC", audit)}


def test_the_glance_tells_the_best_method_what_it_brings_and_what_it_costs() -> None:
    told = glance(
        row("oracle", Interval(0.9, 0.01, 3)),
        row("gp", Interval(0.8, 0.01, 3)),
        row("fedda", Interval(0.75, 0.01, 3)),
        row("target_only", Interval(0.7, 0.2, 3)),
    )
    assert (told["Best method"].value, told["Best method"].note) == ("gp", "AUC 0.800 ± 0.010, 3 seeds")
    assert told["How sure"] == Card(
        "How sure", "a clear lead", "+0.050 over fedda; the 95 % intervals over seeds are apart"
    )
    assert told["What the others bring"].value == "+0.100" and told["What the others bring"].doubt
    assert told["Still missing"].value == "0.100"
    assert told["Left the hospitals"].value == "12 MB"


def test_the_paired_test_on_the_same_patients_goes_before_intervals_over_seeds() -> None:
    apart = (row("gp", Interval(0.8, 0.001, 3)), row("target_only", Interval(0.7, 0.001, 3)))
    pair = {"metric": "auc", "first": "target_only", "second": "gp", "value": -0.1, "low": -0.3, "high": 0.1}
    pair["p_holm"] = 0.4
    told = glance(*apart, pairs=[pair])
    assert told["How sure"].value == "may be chance" and told["How sure"].doubt
    assert "+10.0 points of AUC (−10.0 to +30.0) over target_only" in told["How sure"].note
    assert told["What the others bring"].doubt and "p = 0.4" in told["What the others bring"].note
    sure = glance(*apart, pairs=[pair | {"high": -0.05, "value": -0.175, "p_holm": 1e-5}])
    assert sure["How sure"].value == "a clear lead" and "p < 0.001" in sure["How sure"].note


def test_one_seed_cannot_be_sure_and_without_a_score_nothing_is_best() -> None:
    told = glance(row("gp", Interval(0.8, None, 1)), row("fedavg", Interval(0.7, None, 1)))
    assert told["How sure"].value == "cannot be told" and "one seed" in told["Best method"].note
    assert glance(row("gp", Interval(None, None, 0))) == {}


# --- score against time ----------------------------------------------------------------------------------------------


def test_seconds_are_those_of_the_cpu_only_where_every_run_has_them(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    runs = config.parent / "runs"
    for run, target, seed in RUNS:
        folder = runs / run / target / str(seed)
        edit(folder / "run.json", device="cpu", train={"transport": "in_process"})
        lines = [
            {"round": r, "seconds": 5.0, "cpu": 1.0 + seed, "started": "2026-03-01T08:00:00"} for r in (1, 2, 3, 4)
        ]
        (folder / "timing.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    records, _ = study(runs, RUNS)
    frame = by_round(records)
    assert all(on_cpu(r) for r in records) and set(frame["clock"]) == {"CPU"}
    assert list(frame[frame["run"] == "gp"]["seconds"]) == [2.0, 4.0, 6.0, 8.0], "mean of 1, 2 and 3 a round, added up"
    edit(runs / "gp/NC/0/run.json", device="cuda")
    frame = by_round(study(runs, RUNS)[0])
    assert set(frame["clock"]) == {"wall"} and frame["seconds"].max() == 20.0


def test_scores_stand_against_seconds_on_the_page_and_in_a_table(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    page = report(config)
    assert 'aria-label="AUC at NC against time"' in page and "<title>gp: 10 s</title>" in page
    lines = (config.parent / "report/tables/score_by_seconds.csv").read_text().splitlines()
    assert lines[0] == "target,run,round,seconds,clock,metric,mean,low,high,seeds"
    assert [line.split(",")[3] for line in lines[1:5]] == ["2.5", "5", "7.5", "10"]


# --- sections and policy ---------------------------------------------------------------------------------------------


def test_every_section_has_its_template_its_place_and_its_entry_in_the_contents(tmp_path: Path) -> None:
    page = report(write_study(tmp_path, **STUDY))
    found = re.findall(r'<section id="(\w+)">', page)
    assert re.findall(r'<li><a href="#(\w+)">', page) == found
    folder = Path(sections.__file__).parent
    for section in sections.SECTIONS:
        assert (folder / section.template).is_file() or (folder / "sections" / section.template).is_file()
    always = [s.name for s in sections.SECTIONS if not s.needs]
    assert [name for name in found if name in always] == always


def test_the_policy_names_the_script_the_style_and_every_paint_by_its_hash(tmp_path: Path) -> None:
    page = report(write_study(tmp_path, **STUDY))
    told = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert told is not None and "unsafe-inline" not in told[1]
    rules = dict(rule.split(" ", 1) for rule in told[1].replace("&#39;", "'").split("; "))

    def allowed(text: str, rule: str) -> bool:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in rules[rule]

    assert rules["default-src"] == "'none'"
    for tag, rule in (("script", "script-src"), ("style", "style-src-elem")):
        parts = re.findall(rf"(?s)<{tag}>(.*?)</{tag}>", page)
        assert len(parts) == 1 and allowed(parts[0], rule)
    paints = set(re.findall(r' style="([^"]*)"', page))
    assert len(paints) == 4 and all(allowed(paint, "style-src-attr") for paint in paints)


def test_a_hospital_cannot_be_called_a_script_and_would_be_text_if_it_were(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    config = write_study(tmp_path, **STUDY)
    raw = json.loads(config.read_text())
    raw["split"]["clients"][evil] = "x"
    with pytest.raises(FdamedError):
        parse(raw, "test")
    path = config.parent / "cohort.json"
    cohort = json.loads(path.read_text())
    cohort["clients"][evil] = cohort["clients"]["LO"]
    path.write_text(json.dumps(cohort))
    for ledger in config.parent.glob("runs/*/NC/*/ledger.jsonl"):
        ledger.write_text(ledger.read_text().replace('"from": "LO"', f'"from": "{evil}"'))
    for layers in config.parent.glob("runs/gp/NC/*/layers.jsonl"):
        layers.write_text(layers.read_text().replace('"source": "LO"', f'"source": "{evil}"'))
    page = report(config)
    assert page.count("<script>") == 1 and "alert(1)</script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


# --- drawings --------------------------------------------------------------------------------------------------------


def test_forty_runs_have_forty_looks_and_shapes_differ_where_colors_come_again() -> None:
    looks = {(color(i), shape(i), dash(i)) for i in range(COLORS * len(DASHES))}
    assert len(looks) == COLORS * len(DASHES)
    assert len({shape(i) for i in range(COLORS)}) == len(MARKS)
    assert shape(0) != shape(COLORS) and color(0) == color(COLORS)
    assert 'aria-hidden="true"' in key(3), "the name stands beside it"


def test_a_drawing_says_in_words_where_its_curves_end() -> None:
    none: list[float | None] = [None, None]
    lines = [Line(0, "low<", [1, 2], [0.5, 0.6], none, none), Line(1, "high", [1, 2], [0.5, 0.8], none, none)]
    drawn = str(curves(lines, "title", "AUC"))
    assert "<desc>At the last round: high 0.8; low&lt; 0.6.</desc>" in drawn


def test_a_run_that_knows_every_label_in_any_phase_is_shown_as_a_ceiling() -> None:
    runs = {"fedavg": "fedavg", "oracle": "oracle", "late": "oracle, then finetune_head"}
    rounds = pd.DataFrame(columns=["run", "target", "seed", "round", "metric", "value"])
    empty = pd.DataFrame(columns=["run", "target", "round", "mean", "mb_sent", "seconds", "clock"])
    found = Findings(runs, frozenset(), "auc", 0.5, {}, {}, {}, rounds, {}, empty, empty, {})
    assert {row.run for row in view("NC", found).rows if row.ceiling} == {"oracle", "late"}
