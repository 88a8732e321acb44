"""Any table through a mapping in the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fdamed.core.disclosure import LOCAL, shareable
from fdamed.core.errors import FdamedError
from fdamed.data.datasets.table import Table
from fdamed.data.ingestion import read_index, read_rows
from fdamed.data.row_reader import Rejects
from tests.support.raw_trees import write_image, write_table

HEADER = ["Datei", "Kennung", "Geschlecht", "Alter", "Ebene", "Befund", "Haus"]
ROWS = [
    ["a/1.png", "007", "w", "41", "p.a.", "krank", "Nord"],
    ["a/2.png", "7", "m", "95", "seitlich", "gesund", "Nord"],
    ["b/3.png", "8", "", "", "", "unklar", ""],
    ["b/4.png", "9", "w", "33", "p.a.", "", "Ost"],
]


def data(root: Path, **keys: Any) -> Table:
    mapping = {
        "layout": "table",
        "root": str(root),
        "table": "export.tsv",
        "columns": {
            "image": "Datei",
            "patient": "Kennung",
            "sex": "Geschlecht",
            "age": "Alter",
            "view": "Ebene",
            "site": "Haus",
        },
        "labels": {"Disease": "Befund"},
        "values": {
            "sex": {"w": "F"},
            "view": {"p.a.": "frontal", "seitlich": "lateral"},
            "Disease": {"krank": 1, "gesund": 0, "unklar": -1},
        },
    }
    return Table.model_validate({**mapping, **keys})


def tree(root: Path, table_rows: list[list[str]] = ROWS) -> Path:
    write_table(root / "export.tsv", HEADER, table_rows, "\t")
    for row in table_rows:
        write_image(root / row[0])
    return root


def test_a_foreign_table_becomes_rows_of_the_contract(tmp_path: Path) -> None:
    rejects = Rejects()
    frame = read_index(data(tree(tmp_path)), "s", rejects)
    assert rejects.lines == []
    assert frame["sex"].fillna("-").tolist() == ["F", "M", "-", "F"]
    assert frame["age"].fillna(-1).tolist() == [41, 90, -1, 33]
    assert frame["view"].fillna("-").tolist() == ["frontal", "lateral", "-", "frontal"]
    assert frame["label.Disease"].fillna(-9).tolist() == [1, 0, -1, -9]
    assert frame["site"].fillna("-").tolist() == ["Nord", "Nord", "-", "Ost"]
    assert frame["patient"].nunique() == 4  # 007 is not 7


def test_values_that_fit_nothing_refuse_their_rows(tmp_path: Path) -> None:
    odd = [
        ["a/5.png", "10", "x", "41", "", "krank", ""],
        ["a/6.png", "11", "", "41", "schräg", "krank", ""],
        ["a/7.png", "12", "", "41", "", "vielleicht", ""],
        ["a/8.png", "", "", "41", "", "krank", ""],
    ]
    rejects = Rejects()
    assert len(read_rows(data(tree(tmp_path, ROWS + odd)), "s", rejects)) == 4
    assert rejects.counts() == {"BAD_LABEL": 1, "BAD_SEX": 1, "BAD_VIEW": 1, "BLANK_ID": 1}
    assert "Ebene holds a value that is not allowed there: schräg" in rejects.as_csv()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"columns": {"image": "Datei"}}, "not mapped: patient"),
        (
            {"columns": {"image": "Datei", "patient": "Kennung", "gender": "Geschlecht"}, "values": {}},
            "unknown: gender",
        ),
        (
            {"columns": {"image": "Datei", "patient": "Kennung", "Disease": "Befund"}, "values": {}},
            "A label belongs into data.labels.",
        ),
        (
            {"columns": {"image": "Geschlecht", "patient": "Kennung"}, "values": {}},
            "the same Geschlecht, but differ in",
        ),
        ({"labels": {}, "values": {}}, "no label"),
        ({"labels": {"Disease": "Befunde"}}, "nearest: Befund"),
        ({"values": {"race": {}}}, "unknown: race"),
        ({"table": "exports.tsv"}, "no such table"),
    ],
)
def test_a_wrong_mapping_is_one_clear_error(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(FdamedError) as error:
        read_rows(data(tree(tmp_path), **keys), "s", Rejects())
    assert message in str(error.value)


def test_a_root_one_folder_too_high_or_misspelled_is_answered_with_a_path_that_can_be_pasted(tmp_path: Path) -> None:
    tree(tmp_path / "data")
    for root, message in ((tmp_path, f"set data.root to {tmp_path / 'data'}."), (tmp_path / "daten", "did you mean")):
        with pytest.raises(FdamedError) as error:
            read_rows(data(root), "s", Rejects())
        assert message in str(error.value) and str(tmp_path / "data") in str(error.value)


def test_an_image_that_is_most_rows_asks_for_the_column(tmp_path: Path) -> None:
    columns = {"image": "Geschlecht", "patient": "Kennung"}
    rows = [[*row[:2], "w", *row[3:]] for row in ROWS]
    with pytest.raises(FdamedError, match="Most rows share their Geschlecht: is it the right column") as error:
        read_rows(data(tree(tmp_path, rows), columns=columns, values={}), "s", Rejects())
    assert "Kennung" in error.value.what


def test_a_number_as_a_key_of_values_means_the_cell_that_is_written_so() -> None:
    """`sex: {1: Male}` is a number to YAML and text in the table."""
    assert data(Path("x"), values={"sex": {1: "Male", 2: "Female"}}).values == {"sex": {"1": "Male", "2": "Female"}}


def test_absolute_paths_below_the_root_and_backslashes_mean_the_same_files(tmp_path: Path) -> None:
    """A link to the root is another way to write it."""
    rows = [["/elsewhere/1.png", *ROWS[0][1:]], ["..\\1.png", *ROWS[0][1:]]]
    tree(tmp_path / "root")
    plain = read_index(data(tmp_path / "root"), "s", Rejects())
    (tmp_path / "link").symlink_to(tmp_path / "root")
    for root in (tmp_path / "root", tmp_path / "link"):
        written = [str(root / "a/1.png"), "a\\2.png", str(tmp_path / "root" / "b/3.png"), "b/4.png"]
        named = [[path, *row[1:]] for path, row in zip(written, ROWS, strict=True)]
        write_table(tmp_path / "root" / "export.tsv", HEADER, named + rows, "\t")
        rejects = Rejects()
        pd.testing.assert_frame_equal(read_index(data(root), "s", rejects), plain)
        assert rejects.counts() == {"PATH_OUTSIDE_ROOT": 2}


def test_a_path_below_the_root_by_its_letters_may_not_leave_it_by_a_link(tmp_path: Path) -> None:
    write_image(tmp_path / "outside" / "1.png")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a").symlink_to(tmp_path / "outside")
    write_table(tmp_path / "root" / "export.tsv", HEADER, [[str(tmp_path / "root/a/1.png"), *ROWS[0][1:]]], "\t")
    rejects = Rejects()
    assert len(read_index(data(tmp_path / "root"), "s", rejects)) == 0
    assert rejects.counts() == {"PATH_OUTSIDE_ROOT": 1}


def test_the_name_of_the_table_is_not_shared(tmp_path: Path) -> None:
    assert shareable(data(tmp_path).model_dump(mode="json"))["table"] == LOCAL
