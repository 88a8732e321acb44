"""Parts of the report: score against time, sections, privacy policy, marks."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


from fdamed.cli.main import main
from fdamed.config.loader import parse
from fdamed.core.counts import counts_of
from fdamed.core.errors import FdamedError
from fdamed.core.run_record import study
from fdamed.evaluation import costs
from fdamed.report import section, sections
from fdamed.report.plots.figure import COLORS, DASHES, MARKS, color, dash, key, shape
from fdamed.report.plots.lines import Line, by_round
from fdamed.report.study import is_ceiling
from tests.support.run_folders import edit, write_study

STUDY = {"runs": {"fedavg": {}, "gp": {}}, "train": {"rounds": 4}}
RUNS = [("fedavg", "NC", s) for s in (0, 1, 2)] + [("gp", "NC", s) for s in (0, 1, 2)]


def report(config: Path) -> str:
    assert main(["report", "--config", str(config)]) == 0
    return (config.parent / "report/index.html").read_text(encoding="utf-8")


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
    records, _ = study(runs, RUNS, 11)
    frame = costs.by_round(records)
    assert all(costs.on_cpu(r) for r in records) and set(frame["clock"]) == {"CPU"}
    assert list(frame[frame["run"] == "gp"]["seconds"]) == [2.0, 4.0, 6.0, 8.0], "mean of 1, 2 and 3 a round, added up"
    edit(runs / "gp/NC/0/run.json", device="cuda")
    frame = costs.by_round(study(runs, RUNS, 11)[0])
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
    for name in section.found():
        assert (Path(sections.__file__).parent / f"{name}.html").is_file()
    always = [name for name, one in section.found().items() if one.needs is section.always]
    assert [name for name in found if name in always] == always


NEW = """
import pandas as pd
from fdamed.report.plots.bars import bars
from fdamed.report.section import Section

def table(study):
    return pd.DataFrame({"rounds": [r.facts["rounds"] for r in study.records]}, index=[r.run for r in study.records])

SECTION = Section(
    15,
    "Length of the runs",
    plots=lambda study: {"lengths": bars(table(study), "Rounds by run", "rounds")},
    tables=lambda study: {"lengths": table(study)},
    context=lambda study: {"longest": int(table(study)["rounds"].max())},
)
"""


def test_a_section_dropped_into_the_folder_is_on_the_page_in_the_contents_and_in_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "lengths.py").write_text(NEW)
    (folder / "lengths.html").write_text("<p>The longest run has {{ longest }} rounds.</p>{{ plots.lengths }}")
    monkeypatch.setattr(sections, "__path__", [*sections.__path__, str(folder)])
    config = write_study(tmp_path, **STUDY)
    page = report(config)
    assert re.findall(r'<li><a href="#(\w+)">', page)[:3] == ["scores", "lengths", "rounds"]
    assert '<section id="lengths"><h2>Length of the runs</h2>' in page
    assert "The longest run has 4 rounds." in page and 'aria-label="Rounds by run"' in page
    assert (config.parent / "report/tables/lengths.csv").read_text().startswith("rounds\n4\n")
    assert "<svg xmlns" in (config.parent / "report/figures/lengths.svg").read_text()


def test_the_policy_names_script_and_style_by_their_hashes_and_no_tag_has_a_style_of_its_own(
    tmp_path: Path,
) -> None:
    page = report(write_study(tmp_path, **STUDY))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None and "unsafe-inline" not in policy[1]
    rules = dict(rule.split(" ", 1) for rule in policy[1].replace("&#39;", "'").split("; "))

    def allowed(text: str, rule: str) -> bool:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in rules[rule]

    assert rules["default-src"] == "'none'"
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        parts = re.findall(rf"(?s)<{tag}>(.*?)</{tag}>", page)
        assert len(parts) == 1 and allowed(parts[0], rule)
    assert " style=" not in page


def test_a_hospital_cannot_be_called_a_script_and_would_be_text_if_it_were(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    config = write_study(tmp_path, **STUDY)
    raw = json.loads(config.read_text())
    raw["split"]["clients"][evil] = "x"
    with pytest.raises(FdamedError):
        parse(raw, "test")
    path = config.parent / "cohort.json"
    cohort = json.loads(path.read_text())
    cohort["clients"][evil] = cohort["clients"]["LO"] | counts_of(config.parent, "LO")
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
    lines = [Line(0, "low<", [1, 2], [0.5, 0.6]), Line(1, "high", [1, 2], [0.5, 0.8])]
    drawn = str(by_round(lines, "title", "AUC"))
    assert "<desc>At the last round: high 0.8; low&lt; 0.6.</desc>" in drawn


def test_a_run_that_knows_every_label_in_any_phase_is_shown_as_a_ceiling() -> None:
    assert is_ceiling("oracle") and is_ceiling("oracle, then finetune_head") and not is_ceiling("fedavg")
