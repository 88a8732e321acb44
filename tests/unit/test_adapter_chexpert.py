"""CheXpert: the release as it was downloaded, and what is refused of it."""

from __future__ import annotations

from pathlib import Path

import openpyxl
import pytest

from fdamed.core.errors import FdamedError
from fdamed.data.datasets.chexpert import Chexpert
from fdamed.data.ingestion import check_share, read_index, read_rows
from fdamed.data.row_reader import Rejects
from tests.support.raw_trees import (
    CHEXPERT_HEADER,
    GOLDEN,
    as_text,
    chexpert_row,
    chexpert_rows,
    chexpert_tree,
    write_table,
)


def data(root: Path, **keys: object) -> Chexpert:
    return Chexpert.model_validate({"layout": "chexpert", "root": str(root), **keys})


def table(root: Path, rows_of: list[list[str]]) -> Path:
    write_table(root / "CheXpert-v1.0-small/train.csv", CHEXPERT_HEADER, rows_of)
    return root


def test_six_rows_become_the_golden_index(tmp_path: Path) -> None:
    rejects = Rejects()
    frame = read_index(data(chexpert_tree(tmp_path)), "golden", rejects)
    assert as_text(frame) == (GOLDEN / "chexpert_index.csv").read_text()
    assert rejects.lines == []


@pytest.mark.parametrize("release", ["CheXpert-v1.0-small", "CheXpert-v1.0", "CheXpert renamed"])
def test_the_root_may_be_the_release_folder_or_its_parent(tmp_path: Path, release: str) -> None:
    chexpert_tree(tmp_path, release)
    above = read_index(data(tmp_path), "s", Rejects())
    inside = read_index(data(tmp_path / release), "s", Rejects())
    assert len(above) == len(inside) == 6
    assert above["image"].str.startswith(f"{release}/train/").all()
    assert (above["image"] == release + "/" + inside["image"]).all()
    assert (above["patient"] == inside["patient"]).all()


def test_two_releases_below_the_root_are_an_error(tmp_path: Path) -> None:
    chexpert_tree(tmp_path, "CheXpert-v1.0")
    chexpert_tree(tmp_path, "CheXpert-v1.0-small")
    with pytest.raises(FdamedError, match="several releases"):
        read_rows(data(tmp_path), "s", Rejects())


def test_patients_00123_and_0123_are_two_people(tmp_path: Path) -> None:
    frame = read_rows(data(chexpert_tree(tmp_path)), "s", Rejects())
    assert frame["patient"].nunique() == 5


@pytest.mark.parametrize(
    "cell",
    ["/etc/passwd", "../x/train/patient1/study1/a.jpg", "a/../../b.jpg", "C:\\x.jpg", "a\\b.jpg", "", "a\x00b", "~/x"],
)
def test_a_path_that_leaves_the_root_is_refused(tmp_path: Path, cell: str) -> None:
    rejects = Rejects()
    frame = read_rows(data(table(tmp_path, [*chexpert_rows(), chexpert_row(cell)])), "s", rejects)
    assert len(frame) == 6
    assert [(line[0], line[1], line[2]) for line in rejects.lines] == [("train.csv", "8", "PATH_OUTSIDE_ROOT")]


def test_a_link_out_of_the_root_is_refused(tmp_path: Path) -> None:
    root = chexpert_tree(tmp_path / "root")
    image = root / chexpert_rows()[0][0]
    image.rename(tmp_path / "outside.jpg")
    image.symlink_to(tmp_path / "outside.jpg")
    folder = root / "CheXpert-v1.0-small/train/patient00002"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    rejects = Rejects()
    frame = read_index(data(root), "s", rejects)
    assert len(frame) == 3
    assert rejects.counts() == {"PATH_OUTSIDE_ROOT": 3}


@pytest.mark.parametrize("value", ["7", "abc", "2.0", "-2", "0.5", "nan", "1_0"])
def test_a_label_outside_1_0_minus_1_and_blank_refuses_its_row(tmp_path: Path, value: str) -> None:
    bad = chexpert_row("CheXpert-v1.0-small/train/patient00009/study1/view1_frontal.jpg", Edema=value)
    rejects = Rejects()
    frame = read_rows(data(table(tmp_path, [bad, *chexpert_rows()])), "s", rejects)
    assert len(frame) == 6
    assert rejects.lines[0][1:3] == ("2", "BAD_LABEL")


@pytest.mark.parametrize("age", ["121", "-1", "old", "1e1"])
def test_an_impossible_age_refuses_its_row(tmp_path: Path, age: str) -> None:
    bad = chexpert_row("CheXpert-v1.0-small/train/patient00009/study1/view1_frontal.jpg", age=age)
    rejects = Rejects()
    assert len(read_rows(data(table(tmp_path, [bad, *chexpert_rows()])), "s", rejects)) == 6
    assert rejects.counts() == {"BAD_AGE": 1}


def test_an_exact_duplicate_is_dropped_and_counted_but_is_no_fault(tmp_path: Path) -> None:
    rejects = Rejects()
    frame = read_rows(data(table(tmp_path, [*chexpert_rows(), chexpert_rows()[2]])), "s", rejects)
    assert len(frame) == 6
    assert rejects.counts() == {"DUPLICATE_ROW": 1}
    assert rejects.faults() == 0


def test_one_image_with_two_labels_is_an_error_that_names_rows_and_no_patient(tmp_path: Path) -> None:
    clash = [*chexpert_rows()[2][:-1], "1.0"]
    with pytest.raises(FdamedError, match="rows 4, 8") as error:
        read_rows(data(table(tmp_path, [*chexpert_rows(), clash])), "s", Rejects())
    assert "patient00002" not in str(error.value)


@pytest.mark.parametrize("column", CHEXPERT_HEADER)
def test_a_missing_column_is_named_with_its_nearest(tmp_path: Path, column: str) -> None:
    header = [c + " x" if c == column else c for c in CHEXPERT_HEADER]
    write_table(tmp_path / "CheXpert-v1.0-small/train.csv", header, chexpert_rows())
    with pytest.raises(FdamedError, match="missing column") as error:
        read_rows(data(tmp_path), "s", Rejects())
    assert f"`{column}`" in error.value.what
    assert f"{column} x" in error.value.what


def test_a_missing_image_is_listed_and_too_many_stop_the_ingest(tmp_path: Path) -> None:
    root = chexpert_tree(tmp_path)
    (root / chexpert_rows()[0][0]).unlink()
    (root / chexpert_rows()[1][0]).write_bytes(b"\xff\xd8\xff but no image")
    rejects = Rejects()
    frame = read_index(data(root), "s", rejects)
    assert len(frame) == 4
    assert rejects.lines[0][0] == chexpert_rows()[0][0]
    assert rejects.lines[0][2] == "MISSING"
    with pytest.raises(FdamedError, match=r"33\.3%"):
        check_share(data(root), len(frame), rejects, "rejects.csv")
    check_share(data(root, reject_share=0.4), len(frame), rejects, "rejects.csv")


def test_race_comes_from_the_demographics_workbook(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.append(["PATIENT", "GENDER", "AGE_AT_CXR", "PRIMARY_RACE", "ETHNICITY"])
    book.active.append(["patient00001", "Female", 68, "White or Caucasian", "Not Hispanic"])
    book.active.append(["patient00002", "Female", 87, "Asian - Historical Conv.", None])
    book.active.append(["patient00123", "Male", 41, None, None])
    book.save(tmp_path / "demo.xlsx")
    root = chexpert_tree(tmp_path / "root", images=False)
    frame = read_rows(data(root, demographics=str(tmp_path / "demo.xlsx")), "s", Rejects())
    assert frame["race"].fillna("-").tolist() == ["White", "Asian", "Asian", "-", "-", "-"]
