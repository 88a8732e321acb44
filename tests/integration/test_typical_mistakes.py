"""Mistakes that newcomers make: the message says what is wrong, where, and how to put it right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from fdamed.cli.main import main
from tests.integration.test_bad_input import HEADER, Rows, configure, rows_of
from tests.support.dicom_files import thorax
from tests.support.raw_trees import write_table

COLUMNS = {"image": "file", "patient": "id", "site": "house"}
VIEWED = {"data": {"columns": COLUMNS | {"view": "pose"}}}


class Mistake(NamedTuple):
    """Changes of the configuration or of the table, and what the three lines of the message must contain."""

    what: str
    where: str
    fix: tuple[str, ...]
    changes: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - never changed
    cell: Callable[[list[str]], list[str]] = list
    header: tuple[str, ...] = tuple(HEADER)


def words(row: list[str]) -> list[str]:
    return [*row[:3], "present" if row[3] == "1" else "absent"]


MISTAKES = {
    "labels are words": Mistake(
        "no usable image is left (BAD_LABEL 60)",
        "/raw",
        (
            "`Edema` holds `absent`, `present`",
            "allowed: 1 (present), 0 (absent), -1 (uncertain), blank or unknown",
            "map them in data.values.Edema",
        ),
        cell=words,
    ),
    "a view that is none": Mistake(
        "no usable image is left (BAD_VIEW 60)",
        "/raw",
        ("`pose` holds `sideways`", "becomes frontal or lateral", "map them in data.values.view"),
        VIEWED,
        lambda row: [*row, "sideways"],
        (*HEADER, "pose"),
    ),
    "a view before it was normalized": Mistake(
        "no row matches `view == 'AP'`",
        "split.where",
        ("`view` has: frontal", "becomes frontal or lateral"),
        VIEWED | {"split": {"where": "view == 'AP'"}},
        lambda row: [*row, "AP"],
        (*HEADER, "pose"),
    ),
    "a wrong root": Mistake("/raw`?)", "/rwa", ("Set data.root",), {"data": {"root": "rwa"}}),
    "a root above the folder of the table": Mistake(
        "there is no such table",
        "/export.csv",
        ("It is in a folder below: set data.root to", "/raw."),
        {"data": {"root": ""}},
    ),
    "a label among the columns": Mistake(
        "unknown: Edema",
        "data.columns",
        ("A label belongs into data.labels.",),
        {"data": {"columns": COLUMNS | {"Edema": "Edema"}}},
    ),
    "the column of patients for that of images": Mistake(
        "the same house, but differ in id, Edema",
        "/raw/export.csv",
        ("Most rows share their house: is it the right column?",),
        {"data": {"columns": COLUMNS | {"image": "house"}}},
    ),
    "a column of the table to split by": Mistake(
        "`split.by: house` is a column of the table, which is mapped to `site`: write `by: site`",
        "config.yaml",
        ("nothing was started",),
        {"split": {"by": "house"}},
    ),
    "a label as a column": Mistake(
        "unknown column `Edema` (a label: write label['Edema'])", "split.where", (), {"split": {"where": "Edema == 1"}}
    ),
    "a column that is mapped to nothing": Mistake(
        "no row matches `projection == 'AP'`",
        "split.where",
        ("no column of the table is mapped to it",),
        {"split": {"where": "projection == 'AP'"}},
    ),
    "a wrong table": Mistake(
        "there is no such table",
        "/raw/exprt.csv",
        ("Nearest names there: export.csv",),
        {"data": {"table": "exprt.csv"}},
    ),
    "a table that lies beside the folder of images": Mistake(
        "there is no such table",
        "/raw/images/export.csv",
        ("Nearest names there: ../export.csv",),
        {"data": {"root": "raw/images"}},
    ),
    "a root above the folder of the images": Mistake(
        "no usable image is left (MISSING 60)",
        "",
        ("The table's paths begin in another folder: set data.root to", "/raw."),
        {"data": {"root": "", "table": "raw/export.csv"}},
    ),
    "paths of another machine": Mistake(
        "no usable image is left (PATH_OUTSIDE_ROOT 60)",
        "/raw",
        ("or a drive (C:)", "write them relative to data.root, or set data.root to a folder above all images"),
        cell=lambda row: ["C:\\images\\" + row[0], *row[1:]],
    ),
    "images that are nowhere": Mistake(
        "no usable image is left (MISSING 60)",
        "/raw",
        ("Images are looked for as ", "/raw/*/*.png: data.root and the paths of the table together must name a file"),
        cell=lambda row: ["scans/x" + row[0], *row[1:]],
    ),
    "a name with a space": Mistake(
        "`split.clients`: a key of it should begin with a letter and have only letters (A to Z), digits and `_`, at "
        "most 64 of them (given: 'North Side')",
        "config.yaml",
        ("nothing was started",),
        {"split": {"clients": {"North Side": "north"}}},
    ),
    "site codes without quotes": Mistake(
        '`split.clients.North`: should be text (given: 1); put it in quotes: without them YAML reads "01"',
        "config.yaml",
        ("nothing was started",),
        {"split": {"clients": {"North": 1, "East": "02"}}},
    ),
    "yes and no without quotes": Mistake(
        "`data.values.Edema`: a key of it should be text (given: True); put it in quotes: without them YAML reads "
        '"yes"',
        "config.yaml",
        ("nothing was started",),
        {"data": {"values": {"Edema": {True: 1}}}},
    ),
    "a wrong column": Mistake(
        "missing column `fil` (nearest: file)",
        "/raw/export.csv",
        ("The table has: file, id, house, Edema",),
        {"data": {"columns": COLUMNS | {"image": "fil"}}},
    ),
    "a wrong target": Mistake(
        "target 'Nort' is not one of the clients: North, East, each (did you mean `North`?)",
        "config.yaml",
        ("nothing was started",),
        {"split": {"target": "Nort"}},
    ),
    "a hospital that is called otherwise": Mistake(
        "no row has site = 'nrth' (did you mean `north`?), which North asks for",
        "split.clients.North",
        ("`site` has: east, north.",),
        {"split": {"clients": {"North": "nrth", "East": "east"}}},
    ),
    "a label that is called otherwise": Mistake(
        "unknown label `Oedema` (did you mean `Edema`?)",
        "split.label",
        ("The labels: Edema.",),
        {"split": {"label": "Oedema"}},
    ),
    "a hospital with one class": Mistake(
        "East has no negative row for Edema",
        "split.clients.East",
        ("leave East out (remove it from split.clients)",),
        cell=lambda row: [*row[:3], "1" if row[2] == "east" else row[3]],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_the_message_names_the_mistake_its_place_and_its_cure(
    mistake: Mistake, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows: Rows = rows_of()
    write_table(tmp_path / "raw" / "export.csv", list(mistake.header), [mistake.cell(row) for row in rows])
    for number, row in enumerate(rows):
        Image.fromarray((thorax(48, 40, bits=7) + number).astype("uint8")).save(tmp_path / "raw" / row[0])
    changes = {section: dict(keys) for section, keys in mistake.changes.items()}
    (tmp_path / "raw" / "images").mkdir()
    if (root := changes.get("data", {}).get("root")) is not None:
        changes["data"]["root"] = str(tmp_path / root)
    config = configure(tmp_path, tmp_path / "raw", **changes)
    codes = [main([stage, "--config", str(config)]) for stage in ("ingest", "split")]
    assert 2 in codes
    said = capfd.readouterr().err.split("error: ")[1].splitlines()
    what, where, fix = said[0], said[1].removeprefix("where: "), said[2].removeprefix("to do: ")
    assert mistake.what in what
    assert where.endswith(mistake.where)
    assert all(words in fix for words in mistake.fix), fix


def test_a_value_of_few_rows_is_not_quoted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A rare text in a column of categories may be a note about a person."""
    rows = [[*row[:3], "Mrs Smith" if n < 10 else row[3]] for n, row in enumerate(rows_of())]
    write_table(tmp_path / "raw" / "export.csv", HEADER, rows)
    assert main(["ingest", "--config", str(configure(tmp_path, tmp_path / "raw"))]) == 2
    said = capfd.readouterr().err
    assert "Smith" not in said and "Column `Edema` holds rarer values; allowed: 1 (present), 0" in said
