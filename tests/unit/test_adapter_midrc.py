"""MIDRC: node exports, series folders, zip codes and COVID-19 tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fdamed.core.errors import FdamedError
from fdamed.data.datasets.midrc import Midrc
from fdamed.data.ingestion import read_index, read_rows
from fdamed.data.row_reader import Rejects
from tests.support.raw_trees import GOLDEN, as_text, midrc_tree, write_table


def data(root: Path, **keys: object) -> Midrc:
    return Midrc.model_validate({"layout": "midrc", "root": str(root), **keys})


@pytest.mark.parametrize("shape", ["tsv", "json"])
def test_six_images_become_the_golden_index_from_either_export(tmp_path: Path, shape: str) -> None:
    rejects = Rejects()
    frame = read_index(data(midrc_tree(tmp_path, shape)), "golden", rejects)
    assert as_text(frame) == (GOLDEN / "midrc_index.csv").read_text()
    assert rejects.lines == []


def test_lists_and_lists_printed_as_text_are_read_like_plain_values(tmp_path: Path) -> None:
    golden = read_index(data(midrc_tree(tmp_path / "a")), "s", Rejects())
    root = midrc_tree(tmp_path / "b", "json")
    for name, shape in (("case", lambda v: [v]), ("imaging_study", lambda v: str([v]))):
        records = json.loads((root / f"{name}.json").read_text())["data"]
        listed = [{k: v if isinstance(v, list) else shape(v) for k, v in r.items()} for r in records]
        (root / f"{name}.json").write_text(json.dumps(listed))
    assert as_text(read_index(data(root), "s", Rejects())) == as_text(golden)


def test_a_positive_case_counts_only_with_a_positive_test_in_the_window(tmp_path: Path) -> None:
    frame = read_rows(data(midrc_tree(tmp_path), test_window=(-14, 14)), "s", Rejects())
    # two images of study 1 (test 3 days later), study 2 (200 days): unknown; a negative case stays negative
    assert frame["label.COVID-19"].fillna(-9).tolist() == [1, 1, -9, 0, -1, -9]


def test_states_come_from_ranges_of_zip_codes_in_the_configuration(tmp_path: Path) -> None:
    root = midrc_tree(tmp_path)
    frame = read_rows(data(root, states={"Chicago": ("606",), "East": ("000-300",)}), "s", Rejects())
    assert frame["site"].fillna("-").tolist() == ["Chicago"] * 3 + ["East", "East", "-"]
    with pytest.raises(FdamedError, match="two states"):
        read_rows(data(root, states={"A": ("600-610",), "B": ("606",)}), "s", Rejects())
    with pytest.raises(FdamedError, match="three-digit"):
        read_rows(data(root, states={"A": ("60-61",)}), "s", Rejects())


def test_a_zip_code_that_became_a_number_gets_its_zeros_back(tmp_path: Path) -> None:
    root = midrc_tree(tmp_path, "json")
    cases = json.loads((root / "case.json").read_text())["data"]
    cases[0]["zip"] = [27]
    (root / "case.json").write_text(json.dumps(cases))
    frame = read_rows(data(root, states={"Mass": ("010-027",)}), "s", Rejects())
    assert frame["site"].dropna().tolist() == ["Mass"] * 3


def test_a_series_that_is_not_there_or_still_a_zip_is_refused_with_its_reason(tmp_path: Path) -> None:
    root = midrc_tree(tmp_path, dicoms=False)
    (root / "1.2.3.4.zip").write_bytes(b"PK")
    rejects = Rejects()
    assert len(read_rows(data(root), "s", rejects)) == 0
    assert rejects.counts() == {"MISSING": 4, "ZIP_NOT_UNPACKED": 1}
    assert rejects.lines[0][:2] == ("Open-A1_cr_series_file.tsv", "2")


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [("sex", "Blue", "BAD_SEX"), ("age_at_index", "141", "BAD_AGE"), ("covid19_positive", "Maybe", "BAD_LABEL")],
)
def test_a_value_outside_its_field_refuses_the_series(tmp_path: Path, field: str, value: str, reason: str) -> None:
    root = midrc_tree(tmp_path, "json")
    cases = json.loads((root / "case.json").read_text())["data"]
    cases[1][field] = [value]
    (root / "case.json").write_text(json.dumps(cases))
    rejects = Rejects()
    assert len(read_rows(data(root), "s", rejects)) == 5
    assert rejects.counts() == {reason: 1}


def test_a_series_without_a_case_and_a_wicked_file_name_are_refused(tmp_path: Path) -> None:
    root = midrc_tree(tmp_path)
    header = ["submitter_id", "imaging_studies.submitter_id", "series_uid", "file_name"]
    extra = [["s8", "study-99", "1.2.3.8", "a/1.2.3.8.zip"], ["s9", "study-1", "1.2.3.9", "../../1.2.3.9.zip"]]
    write_table(root / "more_dx_series_file.tsv", header, extra, "\t")
    rejects = Rejects()
    assert len(read_rows(data(root), "s", rejects)) == 6
    assert rejects.counts() == {"NO_CASE": 1, "PATH_OUTSIDE_ROOT": 1}


def test_a_missing_node_and_broken_json_are_one_clear_error(tmp_path: Path) -> None:
    root = midrc_tree(tmp_path / "a")
    (root / "Open-A1_cr_series_file.tsv").unlink()
    with pytest.raises(FdamedError, match="cr_series_file or dx_series_file"):
        read_rows(data(root), "s", Rejects())
    broken = midrc_tree(tmp_path / "b", "json")
    (broken / "case.json").write_text("[{")
    with pytest.raises(FdamedError, match="not readable as JSON"):
        read_rows(data(broken), "s", Rejects())


def test_a_case_that_contradicts_itself_is_an_error_without_its_id(tmp_path: Path) -> None:
    root = midrc_tree(tmp_path)
    write_table(root / "again_case.tsv", ["submitter_id", "sex"], [["case-1", "Female"]], "\t")
    with pytest.raises(FdamedError, match="contradicts") as error:
        read_rows(data(root), "s", Rejects())
    assert "case-1" not in str(error.value)
