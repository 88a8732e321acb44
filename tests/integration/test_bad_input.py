"""A user's mistakes through the command line: exit code 2, three lines, and nothing half-written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from PIL import Image

from fdamed.cli.main import main
from fdamed.core.locks import locked
from tests.support.dicom_files import thorax
from tests.support.raw_trees import write_table

HEADER = ["file", "id", "house", "Edema"]
FEDERATE = ["--run", "fedavg", "--target", "North", "--seed", "0"]
Rows = list[list[str]]


def rows_of(patients: int = 60) -> Rows:
    return [[f"{p}.png", f"p{p}", "north" if p % 2 else "east", str(p // 2 % 2)] for p in range(patients)]


def configure(folder: Path, raw: Path, **changes: dict[str, Any]) -> Path:
    content: dict[str, Any] = {
        "study": "small",
        "results": str(folder / "results"),
        "data": {
            "layout": "table",
            "root": str(raw),
            "table": "export.csv",
            "columns": {"image": "file", "patient": "id", "site": "house"},
            "labels": {"Edema": "Edema"},
            "salt": "a salt for tests",
        },
        "split": {
            "by": "site",
            "label": "Edema",
            "clients": {"North": "north", "East": "east"},
            "target": "North",
            "labeled": 4,
            "val": 0.2,
            "test": 0.3,
        },
        "image": {"size": 32},
        "privacy": {"smallest_images": 1, "smallest_steps": 1},
        "model": {"width": 0.0625},
        "train": {"rounds": 1, "device": "cpu"},
        "runs": {"fedavg": {}},
        "seeds": [0],
    }
    for section, keys in changes.items():
        content[section] |= keys
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def stage(config: Path, name: str, *options: str) -> int:
    return main([name, "--config", str(config), *options])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw tree and everything up to the starting weights, made once."""
    folder = tmp_path_factory.mktemp("prepared")
    write_table(folder / "raw" / "export.csv", HEADER, rows_of())
    for number, row in enumerate(rows_of()):
        Image.fromarray((thorax(48, 40, bits=7) + number).astype("uint8")).save(folder / "raw" / row[0])
    config = configure(folder, folder / "raw")
    assert stage(config, "ingest") == 0
    assert stage(config, "split") == 0
    for client in ("North", "East"):
        assert stage(config, "cache", "--client", client, "--workers", "1") == 0
    assert stage(config, "init", "--seed", "0") == 0
    return folder


def without_leaks(root: Path) -> None:
    """As if the leakage check had passed, which comes before training."""
    (root / "leakage.json").write_text("{}")


@pytest.fixture
def study(prepared: Path, tmp_path: Path) -> Path:
    """A copy of the prepared results with a configuration of its own; the raw tree is shared."""
    shutil.copytree(prepared / "results", tmp_path / "results")
    return configure(tmp_path, prepared / "raw")


@pytest.fixture
def error_parts(capfd: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """What the last command said of its error: three lines and no more."""

    def lines() -> list[str]:
        said = capfd.readouterr().err.splitlines()
        assert [line.split(": ")[0] for line in said] == ["error", "where", "to do"], said
        return [line.partition(": ")[2] for line in said]

    capfd.readouterr()
    return lines


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder; a lock is not an output."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


# --- tables ---


def test_a_missing_table_or_column_stops_ingest_before_it_writes(tmp_path: Path, error_parts) -> None:
    write_table(tmp_path / "raw" / "export.csv", ["file", "id", "house", "Oedema"], rows_of())
    assert stage(configure(tmp_path, tmp_path / "raw"), "ingest") == 2
    what, where, _ = error_parts()
    assert what.startswith("missing column `Edema`") and where.endswith("export.csv")
    assert stage(configure(tmp_path, tmp_path / "raw", data={"table": "exports.csv"}), "ingest") == 2
    what, where, fix = error_parts()
    assert what == "there is no such table" and where.endswith("exports.csv") and "export.csv" in fix
    assert files(tmp_path / "results") == {"small/clients/rejects.csv": b"file,row,reason,detail\n"}


# --- hospitals ---


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ({"clients": {"North": "north", "West": "west"}}, "no row has site = 'west'"),
        ({"by": "expression", "clients": {"North": "site == 'north'", "Young": "age < 1"}}, "Young is empty"),
        ({"where": "label['Edema'] == 1"}, "North has no negative row for Edema"),
        ({"labeled": 29}, "too few for 29 labeled ones"),
    ],
)
def test_an_empty_domain_or_an_absent_class_leaves_the_earlier_cohort_as_it_was(
    study: Path, error_parts, cut: dict[str, Any], message: str
) -> None:
    before = files(study.parent / "results")
    config = configure(study.parent, Path(yaml.safe_load(study.read_text())["data"]["root"]), split=cut)
    assert stage(config, "split") == 2
    assert message in error_parts()[0]
    assert files(study.parent / "results") == before


def test_a_hand_made_manifest_with_a_patient_in_two_parts_stops_at_the_leakage_check(
    study: Path, error_parts, capfd: pytest.CaptureFixture[str]
) -> None:
    results = study.parent / "results"
    path = results / "small/clients/North/manifest.parquet"
    manifest = pd.read_parquet(path)
    trained, tested = (manifest.index[manifest["split"] == s][0] for s in ("train", "test"))
    manifest.loc[tested, "patient"] = manifest.loc[trained, "patient"]
    manifest.to_parquet(path, index=False)
    assert stage(study, "cache", "--client", "North", "--workers", "1") == 0
    before = files(results)
    capfd.readouterr()
    assert stage(study, "leakage") == 2
    what, where, fix = error_parts()
    assert what == "1 to 10 patients are in more than one part (at North)"
    assert where == "manifests of North, East" and "fdamed split" in fix
    assert files(results) == before
    assert not (results / "small/leakage.json").exists()


def test_images_too_small_to_recognize_copies_are_refused_with_the_key(study: Path, error_parts) -> None:
    config = yaml.safe_load(study.read_text())
    study.write_text(yaml.safe_dump(config | {"image": {"size": 28}}))
    assert stage(study, "leakage") == 2
    what, where, fix = error_parts()
    assert "28 pixels" in what and where == "image.size" and "32" in fix


# --- stages out of turn ---


@pytest.mark.parametrize(
    ("absent", "command", "maker"),
    [
        ("clients/North/manifest.parquet", ["cache", "--client", "North"], "fdamed split"),
        ("clients/East/order.parquet", ["leakage"], "fdamed cache"),
        ("clients/East/images.npy", ["leakage"], "fdamed cache"),
        ("clients/East/order.parquet", ["federate", *FEDERATE], "fdamed cache"),
        ("clients/East/images.npy", ["federate", *FEDERATE], "fdamed cache"),
        ("init/0/theta.safetensors", ["federate", *FEDERATE], "fdamed init"),
        ("cohort.json", ["federate", *FEDERATE], "fdamed split"),
        ("", ["evaluate", *FEDERATE[:-2], "--seeds", "0", "--client", "North"], "fdamed federate"),
        ("", ["track"], "snakemake"),
        ("", ["report"], "snakemake"),
    ],
)
def test_a_stage_before_its_turn_names_the_one_to_run_first(
    study: Path, error_parts, absent: str, command: list[str], maker: str
) -> None:
    root = study.parent / "results" / "small"
    if absent:
        (root / absent).unlink()
    without_leaks(root)
    before = files(root)
    assert stage(study, *command) == 2
    assert maker in error_parts()[2]
    assert files(root) == before


@pytest.mark.parametrize(
    ("damaged", "command", "maker"),
    [
        ("clients/index.parquet", ["split"], "fdamed ingest"),
        ("clients/North/manifest.parquet", ["cache", "--client", "North"], "fdamed split"),
        ("clients/East/order.parquet", ["leakage"], "fdamed cache"),
        ("clients/East/images.npy", ["leakage"], "fdamed cache"),
        ("clients/East/order.parquet", ["federate", *FEDERATE], "fdamed cache"),
        ("clients/East/images.npy", ["federate", *FEDERATE], "fdamed cache"),
        ("init/0/theta.safetensors", ["federate", *FEDERATE], "fdamed init"),
    ],
)
def test_a_file_that_was_cut_short_names_the_stage_to_run_again(
    study: Path, error_parts, damaged: str, command: list[str], maker: str
) -> None:
    root = study.parent / "results" / "small"
    content = (root / damaged).read_bytes()
    (root / damaged).write_bytes(content[: len(content) // 2])
    without_leaks(root)
    before = files(root)
    assert stage(study, *command) == 2
    assert maker in error_parts()[2]
    assert files(root) == before


@pytest.mark.parametrize(
    ("changes", "message", "maker"),
    [
        ({"image": {"size": 64}}, "images of 32 pixels, image.size is 64", "fdamed cache"),
        ({"model": {"width": 0.125}}, "those of another model", "fdamed init"),
    ],
)
def test_what_was_made_with_other_settings_is_not_trained_on(
    study: Path, error_parts, changes: dict[str, Any], message: str, maker: str
) -> None:
    config = configure(study.parent, Path(yaml.safe_load(study.read_text())["data"]["root"]), **changes)
    without_leaks(study.parent / "results" / "small")
    before = files(study.parent / "results")
    assert stage(config, "federate", *FEDERATE) == 2
    what, _, fix = error_parts()
    assert message in what and maker in fix
    assert files(study.parent / "results") == before


# --- folders that another run holds ---


@pytest.mark.parametrize(
    ("folder", "command"),
    [
        ("clients", ["ingest"]),
        ("clients/North/.cache", ["cache", "--client", "North", "--workers", "1"]),
        ("runs/fedavg/North/0", ["federate", *FEDERATE]),
    ],
)
def test_a_folder_that_another_run_holds_is_left_alone(
    study: Path, error_parts, folder: str, command: list[str]
) -> None:
    root = study.parent / "results" / "small"
    before = files(root)
    with locked(root / folder):
        assert stage(study, *command) == 2
        what, where, _ = error_parts()
        assert what == "another run is writing to this folder"
        assert where == str(root / folder)
    assert files(root) == before


# --- the command line ---


@pytest.mark.parametrize(
    ("command", "message", "choice"),
    [
        (["federate", "--run", "fedavgg", "--target", "North", "--seed", "0"], "no run 'fedavgg'", "fedavg"),
        (["federate", "--run", "fedavg", "--target", "East", "--seed", "0"], "no target 'East'", "North"),
        (["federate", "--run", "fedavg", "--target", "North", "--seed", "1"], "no seed 1", "0"),
        (["evaluate", *FEDERATE[:-2], "--seeds", "0", "7", "--client", "North"], "no seed 7", "0"),
        (["evaluate", *FEDERATE[:-2], "--seeds", "0", "--client", "../North"], "no client '../North'", "North, East"),
        (["cache", "--client", "../North"], "no client '../North'", "North, East"),
    ],
)
def test_what_the_study_does_not_have_is_named_with_what_it_has(
    study: Path, error_parts, command: list[str], message: str, choice: str
) -> None:
    root = study.parent / "results"
    before = files(root)
    assert stage(study, *command) == 2
    what, _, fix = error_parts()
    assert message in what and choice in fix
    assert files(root) == before
    assert not (root / "small/runs").exists()
