"""`fdamed doctor` tells before any job whether the run can succeed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fdamed.cli import main
from tests.integration.test_ingest_split import CANARY, RELEASE, configure, rows_of
from tests.raw_trees import CHEXPERT_HEADER, write_picture, write_table


def tree(folder: Path, header: list[str] = CHEXPERT_HEADER) -> Path:
    rows = rows_of(90)
    write_table(folder / "raw" / RELEASE / "train.csv", header, rows)
    for row in rows:
        write_picture(folder / "raw" / row[0])
    return configure(folder)


def told(path: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json", "--config", str(path)])
    out = capfd.readouterr()
    assert CANARY not in out.out + out.err
    return code, json.loads(out.out)


def test_a_healthy_study_is_told_with_balance_overlap_and_costs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, report = told(tree(tmp_path), capfd)
    assert code == 0
    assert report["ok"]
    assert report["patients_shared"] == {"Edema & Lesion": "90"}
    assert report["parties"]["Edema"]["positive"] == 0.5
    assert report["cache_bytes"] == sum(p["images"] for p in report["parties"].values()) * 224**2
    assert report["machine"]["cores"] >= 1
    assert not (tmp_path / "results").exists()


def test_the_table_for_people_says_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--config", str(tree(tmp_path))]) == 0
    assert "180 rows, 90 patients" in capfd.readouterr().out


def fail(report: dict[str, Any]) -> str:
    return "; ".join(c["detail"] for c in report["checks"] if c["status"] == "fail")


def test_a_missing_column_unreadable_files_and_an_impossible_cut_give_exit_2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    header = ["Seks" if c == "Sex" else c for c in CHEXPERT_HEADER]
    code, report = told(tree(tmp_path / "column", header), capfd)
    assert code == 2
    assert "missing column `Sex` (nearest: Seks" in fail(report)

    path = tree(tmp_path / "files")
    for row in rows_of(90)[:60]:
        (tmp_path / "files/raw" / row[0]).write_bytes(b"")
    code, report = told(path, capfd)
    assert code == 2
    assert "33.3% of a sample of 180 files" in fail(report)

    tree(tmp_path / "cut")
    code, report = told(configure(tmp_path / "cut", cut={"labelled": 4000}), capfd)
    assert code == 2
    assert "too few for 4000 labelled" in fail(report)

    code, report = told(configure(tmp_path, data={"root": str(tmp_path / "nowhere")}), capfd)
    assert code == 2
    assert "no such folder" in fail(report)
