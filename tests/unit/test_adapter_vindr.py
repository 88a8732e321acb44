"""VinDr-CXR: three readers for each training image, an agreed row for each test image, the rest from DICOM headers."""

from __future__ import annotations

from pathlib import Path

import pytest

from fdamed.core.errors import FdamedError
from fdamed.data.datasets.vindr import Vindr
from fdamed.data.ingestion import read_index, read_rows
from fdamed.data.row_reader import Rejects
from tests.support.raw_trees import GOLDEN, VINDR_TRAIN, as_text, vindr_tree, write_table


def data(root: Path) -> Vindr:
    return Vindr(layout="vindr", root=str(root))


def test_six_images_become_the_golden_index(tmp_path: Path) -> None:
    rejects = Rejects()
    frame = read_index(data(vindr_tree(tmp_path)), "golden", rejects)
    assert as_text(frame) == (GOLDEN / "vindr_index.csv").read_text()
    assert rejects.lines == []


def test_the_majority_is_1_nobody_is_0_and_a_minority_is_uncertain(tmp_path: Path) -> None:
    frame = read_rows(data(vindr_tree(tmp_path)), "s", Rejects())
    assert frame["label.Cardiomegaly"].tolist() == [0, 1, 0, 0, 0, 0]
    assert frame["label.No Finding"].tolist() == [1, -1, -1, 0, 0, 1]
    assert frame["label.Aortic enlargement"].tolist() == [0, 0, -1, 0, 0, 0]
    assert frame["label.Other diseases"].tolist() == [0, 0, 1, 0, 0, 0]


def test_every_image_is_its_own_patient(tmp_path: Path) -> None:
    frame = read_rows(data(vindr_tree(tmp_path)), "s", Rejects())
    assert frame["patient"].nunique() == len(frame) == 6


def test_a_reader_who_contradicts_himself_is_an_error(tmp_path: Path) -> None:
    root = vindr_tree(tmp_path)
    table = root / "annotations/image_labels_train.csv"
    first = next(iter(VINDR_TRAIN))
    table.write_text(table.read_text() + f"{first},R8,1,0,0,0,0,0\n")
    with pytest.raises(FdamedError, match="contradict"):
        read_rows(data(root), "s", Rejects())


def test_a_label_that_is_no_label_and_an_unsafe_name_are_rejected(tmp_path: Path) -> None:
    root = vindr_tree(tmp_path)
    table = root / "annotations/image_labels_train.csv"
    table.write_text(table.read_text() + "../../x,R8,0,0,0,0,0,1\nabc,R8,7,0,0,0,0,0\n")
    rejects = Rejects()
    assert len(read_rows(data(root), "s", rejects)) == 6
    assert rejects.counts() == {"BAD_LABEL": 1, "PATH_OUTSIDE_ROOT": 1}


def test_missing_tables_and_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(FdamedError, match="image_labels_train"):
        read_rows(data(tmp_path), "s", Rejects())
    write_table(tmp_path / "image_labels_train.csv", ["id", "Cardiomegaly"], [["a", "1"]])
    with pytest.raises(FdamedError, match="image_id"):
        read_rows(data(tmp_path), "s", Rejects())
