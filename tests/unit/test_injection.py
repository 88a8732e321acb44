"""Texts of others in tables, pages and MLflow: shown as they are, never run; numbers stay numbers."""

from __future__ import annotations

import csv
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fdamed.cli.main import main
from fdamed.config.loader import load, parse
from fdamed.core.disclosure import FORMULA, cell_safe
from fdamed.core.errors import FdamedError
from fdamed.data import cache
from fdamed.data.cache import Entry
from fdamed.data.row_reader import Rejects
from fdamed.tracking.ui import experiment_tags
from tests.support.run_folders import configuration, edit, write_absences, write_study

FORMULAS = ['=HYPERLINK("http://x","y")', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\0=1"]
MARKUP = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "</style><iframe src=//x>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
]
EVIL = [*FORMULAS, *MARKUP]
CUT = {"label": "Edema", "clients": {"LO": "a", "CO": "b", "NC": "c"}, "target": "NC"}


class Page(HTMLParser):
    """What a browser would make of a page: its elements and their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def harmless(page: str) -> Page:
    """The parsed page, if it has one script of its own, fetches nothing and reacts to nothing."""
    found = Page()
    found.feed(page)
    assert found.tags.count("script") <= 1
    assert not {"iframe", "img", "object", "embed", "link", "base", "form"} & set(found.tags)
    for name, value in found.attributes:
        assert not name.startswith("on"), (name, value)
        if name in ("href", "src", "xlink:href", "action"):
            assert ":" not in value and not value.startswith("/"), value
    return found


def cells(path: Path) -> list[str]:
    with open(path, newline="", encoding="utf-8") as file:
        return [cell for row in csv.reader(file) for cell in row]


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("evil", EVIL)
@pytest.mark.parametrize("place", ["study", "client", "run", "target"])
def test_a_name_that_a_spreadsheet_or_browser_would_run_is_no_name(place: str, evil: str, tmp_path: Path) -> None:
    raw = configuration(tmp_path)
    clients = {"A": "Edema", "B": "Pneumonia"}
    change: dict[str, object] = {
        "study": {"study": evil},
        "client": {"split": {"by": "condition", "clients": {evil: "Edema", **clients}, "target": "A"}},
        "target": {"split": {"by": "condition", "clients": clients, "target": evil}},
        "run": {"runs": {evil: {"method": "fedavg"}}},
    }[place]
    with pytest.raises(FdamedError) as refused:
        parse(raw | change, "study.yaml")  # type: ignore[operator]
    assert refused.value.what.isprintable()


def test_texts_of_others_are_shown_and_not_run_in_the_report(tmp_path: Path) -> None:
    evil = " ".join(MARKUP)
    sources = {"gp": 0.81, "fedavg": {"NC": 0.7}}
    config = write_study(
        tmp_path,
        runs={"fedavg": {}, "gp": {}},
        seeds=[0, 1],
        train={"rounds": 2},
        published={"source": evil, "values": sources},
    )
    root = config.parent
    for seed in (0, 1):
        folder = root / f"runs/gp/NC/{seed}"
        edit(folder / "run.json", title=f"=1 {evil}", method="=cmd", versions={"torch": evil}, options={"x": evil})
        for name, old in (("ledger.jsonl", '"update"'), ("layers.jsonl", '"layer1.0.conv1"')):
            file = folder / name
            file.write_text(file.read_text().replace(old, json.dumps(f"=1+1 {evil}")))
        write_absences(folder, (1, "LO", f"@SUM(1) {evil}"))
        edit(root / f"clients/NC/scores/gp/NC/{folder.name}.json", why={"f1": evil})
    edit(root / "clients/ingest.json", rejected={f"=1 {evil}": 40})
    edit(root / "cohort.json", rule=f"=1 {evil}")
    assert main(["report", "--config", str(config)]) == 0
    page = (root / "report" / "index.html").read_text(encoding="utf-8")
    harmless(page)
    assert "&lt;script&gt;alert(1)" in page and "{{ 7 * 7 }}" in page, "the text itself is shown"
    tables = sorted((root / "report").rglob("*.csv"))
    assert len(tables) >= 8
    for table in tables:
        bad = [c for c in cells(table) if c.startswith(FORMULA) and not is_number(c)]
        assert bad == [], table.name


def test_what_mlflow_shows_of_a_study_is_text(tmp_path: Path) -> None:
    """MLflow's page renders notes as Markdown."""
    evil = MARKUP[0]
    config = write_study(tmp_path, runs={"gp": {}}, seeds=[0], train={"rounds": 2}, split=CUT | {"by": evil})
    note = experiment_tags(load(config))["mlflow.note.content"]
    assert "<script" not in note and "&lt;script&gt;" in note


def test_numbers_stay_numbers_in_tables(tmp_path: Path) -> None:
    from fdamed.core.disclosure import to_csv

    frame = pd.DataFrame({"name": EVIL, "gain": np.linspace(-1, 1, len(EVIL)), "n": range(len(EVIL))})
    (tmp_path / "t.csv").write_text(to_csv(frame), newline="")
    back = pd.read_csv(tmp_path / "t.csv")
    assert back["gain"].dtype == np.float64 and back["gain"].min() == -1 and list(back["n"]) == list(range(len(EVIL)))
    assert not back["name"].str.startswith(FORMULA).any()


def test_lists_of_rejected_images_hold_no_formula(tmp_path: Path) -> None:
    """File names are the data's: what ingest and cache write of them opens in a spreadsheet."""
    names = [f"{text.replace('/', '_')}.png" for text in FORMULAS]
    entries = [Entry(name, -1, -1, -1, 0, "UNREADABLE", name) for name in names]
    rejects = Rejects()
    for name in names:
        rejects.add(name, 3, "UNREADABLE", name)
    (tmp_path / "cache.csv").write_text(cache.list_rejects(entries).as_csv(), newline="")
    (tmp_path / "ingest.csv").write_text(rejects.as_csv(), newline="")
    for table, width in (("cache.csv", 4), ("ingest.csv", 4)):
        found = cells(tmp_path / table)
        assert len(found) == width * (len(names) + 1), table
        assert [c for c in found if c.startswith(FORMULA)] == []


def test_a_cell_keeps_its_text_and_its_row() -> None:
    assert [cell_safe(t) for t in ("plain", "=1", "\rx", "a\rb", "\0x", "a\0b")] == [
        "plain",
        "'=1",
        "' x",
        "a b",
        "'\\0x",
        "a\\0b",
    ]
