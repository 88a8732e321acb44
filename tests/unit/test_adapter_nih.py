"""NIH ChestX-ray14: the header with a comma in a name, many labels in one cell, images in twelve folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from fdamed.core.errors import FdamedError
from fdamed.data.datasets.nih import Nih
from fdamed.data.ingestion import read_index, read_rows
from fdamed.data.row_reader import Rejects
from tests.support.raw_trees import GOLDEN, NIH_HEADER, NIH_ROWS, as_text, nih_tree, write_table


def data(root: Path) -> Nih:
    return Nih(layout="nih", root=str(root))


def test_six_rows_become_the_golden_index(tmp_path: Path) -> None:
    rejects = Rejects()
    root = nih_tree(tmp_path, ("images_001/images", "images_002/images"))
    frame = read_index(data(root), "golden", rejects)
    assert as_text(frame) == (GOLDEN / "nih_index.csv").read_text()
    assert rejects.lines == []


def test_the_older_table_with_a_comma_at_every_end_is_read_too(tmp_path: Path) -> None:
    root = nih_tree(tmp_path)
    (root / "Data_Entry_2017_v2020.csv").unlink()
    write_table(root / "Data_Entry_2017.csv", [*NIH_HEADER, ""], [[*row, ""] for row in NIH_ROWS])
    assert len(read_index(data(root), "s", Rejects())) == 6


def test_an_age_over_120_and_an_unknown_finding_refuse_their_rows(tmp_path: Path) -> None:
    root = nih_tree(tmp_path)
    changed = [list(row) for row in NIH_ROWS]
    changed[0][4], changed[1][1] = "414", "Cardiomegaly|Gout"
    write_table(root / "Data_Entry_2017_v2020.csv", NIH_HEADER, changed)
    rejects = Rejects()
    assert len(read_rows(data(root), "s", rejects)) == 4
    assert [line[1:3] for line in rejects.lines] == [("2", "BAD_AGE"), ("3", "BAD_LABEL")]


def test_a_row_whose_image_was_not_downloaded_is_refused(tmp_path: Path) -> None:
    root = nih_tree(tmp_path)
    (root / "images/00000003_000.png").unlink()
    rejects = Rejects()
    assert len(read_index(data(root), "s", rejects)) == 5
    assert rejects.counts() == {"MISSING": 1}


def test_no_table_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FdamedError, match="Data_Entry_2017_v2020"):
        read_rows(data(tmp_path), "s", Rejects())
