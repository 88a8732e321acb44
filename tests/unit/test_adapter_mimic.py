"""MIMIC-CXR with MIMIC-IV: joins, ages, races, both releases and both image formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from fdamed.core.errors import FdamedError
from fdamed.data.datasets.mimic import Mimic
from fdamed.data.ingestion import read_index, read_rows
from fdamed.data.row_reader import Rejects
from tests.support.raw_trees import GOLDEN, MIMIC_IMAGES, as_text, mimic_tree, write_table


def data(root: Path, **keys: object) -> Mimic:
    return Mimic.model_validate({"layout": "mimic", "root": str(root), **keys})


def test_six_rows_become_the_golden_index(tmp_path: Path) -> None:
    rejects = Rejects()
    frame = read_index(data(mimic_tree(tmp_path, "dcm")), "golden", rejects)
    assert as_text(frame) == (GOLDEN / "mimic_index.csv").read_text()
    assert rejects.lines == []


@pytest.mark.parametrize(("release", "zipped", "old"), [("2.0.0", "", False), ("2.1.0", ".gz", True)])
def test_all_releases_give_the_same_rows(tmp_path: Path, release: str, zipped: str, old: bool) -> None:
    usual = read_rows(data(mimic_tree(tmp_path / "a")), "s", Rejects())
    other = read_rows(data(mimic_tree(tmp_path / "b", "jpg", release, zipped, old)), "s", Rejects())
    assert as_text(usual) == as_text(other)
    assert usual["image"].str.endswith(".jpg").all()


def test_age_is_that_at_the_study_and_90_stands_for_all_above(tmp_path: Path) -> None:
    frame = read_rows(data(mimic_tree(tmp_path)), "s", Rejects())
    # 52 in 2180; 86 in 2126 and so 93 in 2133; anchor 91 means over 89; no date; not in MIMIC-IV
    assert frame["age"].fillna(-1).tolist() == [52, 52, 90, 90, -1, -1]


def test_a_patient_with_contradicting_races_has_none(tmp_path: Path) -> None:
    frame = read_rows(data(mimic_tree(tmp_path)), "s", Rejects())
    assert frame["race"].fillna("-").tolist() == ["White", "White", "Asian", "-", "-", "-"]


@pytest.mark.parametrize(
    ("race", "values"),
    {
        "White": "WHITE;WHITE - RUSSIAN;WHITE - OTHER EUROPEAN;WHITE - BRAZILIAN;WHITE - EASTERN EUROPEAN;PORTUGUESE",
        "Black": "BLACK/AFRICAN AMERICAN;BLACK/CAPE VERDEAN;BLACK/AFRICAN;BLACK/CARIBBEAN ISLAND",
        "Asian": "ASIAN;ASIAN - CHINESE;ASIAN - SOUTH EAST ASIAN;ASIAN - ASIAN INDIAN;ASIAN - KOREAN",
        "Hispanic/Latino": "HISPANIC OR LATINO;HISPANIC/LATINO;HISPANIC/LATINO - PUERTO RICAN;HISPANIC/LATINO - CUBAN;"
        "HISPANIC/LATINO - CENTRAL AMERICAN;HISPANIC/LATINO - COLUMBIAN;SOUTH AMERICAN",
        "": "OTHER;UNKNOWN;UNABLE TO OBTAIN;PATIENT DECLINED TO ANSWER;MULTIPLE RACE/ETHNICITY;"
        "AMERICAN INDIAN/ALASKA NATIVE;NATIVE HAWAIIAN OR OTHER PACIFIC ISLANDER",
    }.items(),
)
def test_every_value_of_mimic_iv_is_one_of_four_races_or_none(tmp_path: Path, race: str, values: str) -> None:
    root = mimic_tree(tmp_path)
    for value in values.split(";"):
        write_table(root / "hosp/admissions.csv.gz", ["subject_id", "race"], [["10000032", value]])
        found = read_rows(data(root), "s", Rejects())["race"].dropna().unique().tolist()
        assert found == ([race] if race else []), value


def test_labels_of_a_study_go_to_all_its_images_and_a_study_without_labels_is_refused(tmp_path: Path) -> None:
    root = mimic_tree(tmp_path, zipped="")
    text = (root / "mimic-cxr-2.0.0-chexpert.csv").read_text().splitlines()
    (root / "mimic-cxr-2.0.0-chexpert.csv").write_text("\n".join(text[:-1]) + "\n")
    rejects = Rejects()
    frame = read_rows(data(root), "s", rejects)
    assert frame["label.No Finding"].fillna(-9).tolist() == [1, 1, -9, -9, -9]
    assert rejects.lines[0][1:3] == ("7", "NO_LABELS")


def test_the_same_study_number_of_another_patient_is_another_study(tmp_path: Path) -> None:
    root = mimic_tree(tmp_path, zipped="")
    path = root / "mimic-cxr-2.0.0-chexpert.csv"
    path.write_text(path.read_text().replace("10000032,50414267", "10000033,50414267"))
    rejects = Rejects()
    assert len(read_rows(data(root), "s", rejects)) == 4
    assert rejects.counts() == {"NO_LABELS": 2}


def test_conflicting_labels_of_one_study_are_an_error(tmp_path: Path) -> None:
    root = mimic_tree(tmp_path, zipped="")
    path = root / "mimic-cxr-2.0.0-chexpert.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1].replace("1.0", "0.0")]) + "\n")
    with pytest.raises(FdamedError, match="contradict"):
        read_rows(data(root), "s", Rejects())


def test_a_path_made_of_a_wicked_dicom_id_is_refused(tmp_path: Path) -> None:
    root = mimic_tree(tmp_path, zipped="")
    path = root / "mimic-cxr-2.0.0-metadata.csv"
    path.write_text(path.read_text().replace(MIMIC_IMAGES[5][0], "../../../../etc/passwd"))
    rejects = Rejects()
    assert len(read_rows(data(root), "s", rejects)) == 5
    assert rejects.counts() == {"PATH_OUTSIDE_ROOT": 1}


def test_without_mimic_iv_sex_age_and_race_are_unknown_unless_it_was_asked_for(tmp_path: Path) -> None:
    root = mimic_tree(tmp_path)
    for path in (root / "hosp").iterdir():
        path.unlink()
    frame = read_rows(data(root), "s", Rejects())
    assert frame[["sex", "age", "race"]].isna().all(axis=None)
    with pytest.raises(FdamedError, match=r"no such folder.*data\.mimic_iv.*patients\.csv"):
        read_rows(data(root, mimic_iv=str(tmp_path / "nowhere")), "s", Rejects())


def test_a_missing_label_table_is_named(tmp_path: Path) -> None:
    root = mimic_tree(tmp_path)
    (root / "mimic-cxr-2.0.0-negbio.csv.gz").unlink()
    with pytest.raises(FdamedError, match="negbio"):
        read_rows(data(root, labels="negbio"), "s", Rejects())


def test_admissions_without_race_and_ethnicity_are_refused(tmp_path: Path) -> None:
    root = mimic_tree(tmp_path)
    write_table(root / "hosp/admissions.csv.gz", ["subject_id", "insurance"], [["10000032", "Other"]])
    with pytest.raises(FdamedError, match="ethnicity"):
        read_rows(data(root), "s", Rejects())
