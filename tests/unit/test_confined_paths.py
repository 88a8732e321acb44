"""Forty paths in tables that lead out of the data root, through every adapter that reads paths: no file is opened."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdamed.config.datasets import Domain
from fdamed.core.errors import FdamedError
from fdamed.data.benchmark import sources as benchmark
from fdamed.data.image import Unreadable
from fdamed.data.safe_paths import Roots
from tests.support import raw_trees
from tests.support.raw_trees import write_image

LINKS = {
    "link.png": "file",
    "linked": "folder",
    "chain.png": "link.png",
    "loop.png": "loop.png",
    "zero.png": "/dev/zero",
}
PAYLOADS = [
    "../outside/secret.png",
    "../../../../../../../../../../etc/passwd",
    "../../etc/passwd",
    "./../outside/secret.png",
    "a/../../outside/secret.png",
    "a/b/../../../outside/secret.png",
    "..",
    "./..",
    "a/..",
    "a/../..",
    ".",
    "/",
    "/etc/passwd",
    "//etc/passwd",
    "/proc/self/environ",
    "/dev/stdin",
    "~/.ssh/id_rsa",
    "~root/x.png",
    "C:\\Windows\\win.ini",
    "C:/Windows/win.ini",
    "c:secret.png",
    "\\\\server\\share\\x.png",
    "..\\..\\outside\\secret.png",
    "a\\..\\b.png",
    "",
    " ",
    "\t",
    "a\0.png",
    "\0",
    "good.png\0../../outside/secret.png",
    "x" * 300 + ".png",
    "y/" * 2500 + "z.png",
    "%2e%2e/outside/secret.png",
    "．．/outside/secret.png",
    "file:///etc/passwd",
    "http://127.0.0.1/x.png",
    "pipe.png",
    *LINKS,
    "linked/secret.png",
]
assert len(PAYLOADS) >= 40


def spoil(folder: Path, outside: Path) -> None:
    """Links and a pipe in a folder of images, by the names that payloads have."""
    folder.mkdir(parents=True, exist_ok=True)
    places = {"file": outside / "secret.png", "folder": outside}
    for name, there in LINKS.items():
        (folder / name).symlink_to(places.get(there, Path(there)))
    os.mkfifo(folder / "pipe.png")


def add_rows(table: Path, rows: list[list[str]], separator: str = ",") -> None:
    with open(table, "a", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=separator, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)


def chexpert(root: Path, outside: Path) -> dict[str, Any]:
    raw_trees.chexpert_tree(root)
    below = "CheXpert-v1.0-small/train/patient99/study1"
    spoil(root / below, outside)
    paths = dict.fromkeys(
        [*PAYLOADS, *(f"{below}/{p}" for p in PAYLOADS), *(f"train/patient{p}/s/v.jpg" for p in PAYLOADS)]
    )
    rows = [raw_trees.chexpert_row(p, Edema="1.0") for p in paths]
    add_rows(root / "CheXpert-v1.0-small" / "train.csv", rows)
    return {"rows": len(rows), "good": 6}


def mimic(root: Path, outside: Path) -> dict[str, Any]:
    raw_trees.mimic_tree(root, zipped="")
    spoil(root / "files/p10/p10000032/s50414267", outside)
    names = dict.fromkeys(p for each in PAYLOADS for p in (each, each.removesuffix(".png")) if p.strip())
    rows = [[p, "10000032", "50414267", "PA", "3056", "21800506", "1"] for p in names]
    for link in ("link", "pipe", "chain"):
        (root / f"files/p10/p10000032/s50414267/{link}.png").rename(root / f"files/p10/p10000032/s50414267/{link}.jpg")
    add_rows(root / "mimic-cxr-2.0.0-metadata.csv", rows)
    return {"rows": len({r[0].strip() for r in rows}), "good": 6}


def nih(root: Path, outside: Path) -> dict[str, Any]:
    raw_trees.nih_tree(root)
    spoil(root / "images", outside)
    rows = [[p, "Hernia", "0", str(100 + i), "44", "M", "PA", "1", "1", "1", "1"] for i, p in enumerate(PAYLOADS)]
    add_rows(root / "Data_Entry_2017_v2020.csv", rows)
    return {"rows": len(rows), "good": 6}


def midrc(root: Path, outside: Path) -> dict[str, Any]:
    raw_trees.midrc_tree(root)
    spoil(root / "Open-A1" / "case", outside)
    (root / "Open-A1" / "case" / "stolen.dcm").symlink_to(outside / "secret.dcm")
    header = (root / "Open-A1_cr_series_file.tsv").read_text().splitlines()[0].split("\t")
    rows = []
    for i, payload in enumerate([*PAYLOADS, "stolen.zip"]):
        for column in ("file_name", "series_uid"):
            row = dict.fromkeys(header, "")
            row |= {"*submitter_id": f"bad-{i}-{column}", "imaging_studies.submitter_id": "study-1", column: payload}
            rows.append([row[name] for name in header])
    add_rows(root / "Open-A1_cr_series_file.tsv", rows, "\t")
    return {"rows": len(rows), "good": 6}


def table(root: Path, outside: Path) -> dict[str, Any]:
    spoil(root, outside)
    write_image(root / "good.png")
    (root / "export.csv").write_text("file,id,ill\ngood.png,1,1\n")
    add_rows(root / "export.csv", [[p, f"p{i}", "0"] for i, p in enumerate(PAYLOADS)])
    data = {"table": "export.csv", "columns": {"image": "file", "patient": "id"}, "labels": {"ill": "ill"}}
    return {"rows": len(PAYLOADS), "good": 1, **data}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a process of its own made of every tree."""
    folder = tmp_path_factory.mktemp("confined")
    outside = folder / "outside"
    outside.mkdir()
    write_image(outside / "secret.png")
    raw_trees.write_dicom(outside / "secret.dcm")
    jobs: list[dict[str, Any]] = []
    for make in (chexpert, mimic, nih, midrc, table):
        root = folder / make.__name__
        extra = make(root, outside)
        job = {"name": make.__name__, "kind": "clinical", "rows": extra.pop("rows"), "good": extra.pop("good")}
        jobs.append({**job, "data": {"layout": make.__name__, "root": str(root), **extra}, "roots": [str(root)]})
    for i, payload in enumerate(PAYLOADS):
        root = folder / "digits" / str(i)
        spoil(root / "mnist_m_train", outside)
        write_image(root / "mnist_m_test" / "0.png")
        (root / "mnist_m_train_labels.txt").write_text(f"{payload} 3\n", encoding="ascii", errors="replace")
        (root / "mnist_m_test_labels.txt").write_text("0.png 3\n")
        jobs.append({"name": f"images {i}", "kind": "images", "root": str(root), "roots": [str(root)]})
    root = str(folder / "table")
    jobs.append(
        {"name": "manifest", "kind": "manifest", "root": root, "roots": [root], "images": [*PAYLOADS, "good.png"]}
    )
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, "-m", "tests.support.confined", str(folder / "jobs.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-3000:]
    return {job["name"]: job | answer for job, answer in zip(jobs, json.loads(done.stdout), strict=True)}


@pytest.mark.parametrize("layout", ["chexpert", "mimic", "nih", "midrc", "table"])
def test_no_path_in_a_table_leads_out_of_the_root(layout: str, results: dict[str, dict[str, Any]]) -> None:
    found = results[layout]
    assert found["outside"] == []
    assert found["inside"] > found["good"], "the hook must have heard the tables and the good images"
    assert len(found["kept"]) == found["good"], found["kept"]
    assert sum(found["refused"].values()) == found["rows"], found["refused"]
    assert found["refused"]["PATH_OUTSIDE_ROOT"] >= 20


def test_no_name_in_a_list_of_images_leads_out_of_its_folder(results: dict[str, dict[str, Any]]) -> None:
    each = [found for name, found in results.items() if name.startswith("images")]
    assert len(each) == len(PAYLOADS)
    assert {p for found in each for p in found["outside"]} == set()
    assert all("error" in found for found in each), [f["name"] for f in each if "error" not in f]


def test_no_path_in_a_manifest_leads_out_of_the_root(results: dict[str, dict[str, Any]]) -> None:
    found = results["manifest"]
    assert (found["outside"], found["kept"], found["refused"]) == ([], ["good.png"], len(PAYLOADS))


def test_links_into_folders_that_the_configuration_allows_are_followed(tmp_path: Path) -> None:
    from fdamed.data.datasets.midrc import Midrc
    from fdamed.data.datasets.table import Table
    from fdamed.data.ingestion import read_index
    from fdamed.data.row_reader import Rejects

    root, store = tmp_path / "root", tmp_path / "store"
    write_image(store / "a.png")
    root.mkdir()
    (root / "a.png").symlink_to(store / "a.png")
    (root / "export.csv").write_text("file,id,ill\na.png,1,1\n")
    mapping = {"table": "export.csv", "columns": {"image": "file", "patient": "id"}, "labels": {"ill": "ill"}}
    for allowed, kept in (((), 0), ((str(store),), 1), ((str(tmp_path / "sto"),), 0)):
        data = Table.model_validate({"layout": "table", "root": str(root), "allowed_roots": allowed, **mapping})
        assert len(read_index(data, "salt", Rejects())) == kept
    assert Roots.of(root, (str(store),)).locate("a.png") == store / "a.png"

    export = raw_trees.midrc_tree(tmp_path / "midrc")
    (export / "Open-A1").rename(store / "Open-A1")
    (export / "Open-A1").symlink_to(store / "Open-A1")
    (store / "Open-A1" / "round").symlink_to(store)
    for allowed, kept in (((), 0), ((str(store),), 6)):
        data = Midrc.model_validate({"layout": "midrc", "root": str(export), "allowed_roots": allowed})
        assert len(read_index(data, "salt", Rejects())) == kept


def test_numbers_that_lie_in_another_file_are_not_fetched(tmp_path: Path) -> None:
    """HDF5 can name any file of the machine as the place of its numbers."""
    import h5py

    (tmp_path / "secret").write_bytes(bytes(range(256)) * 8)
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["data"], other["target"] = [[0.5] * 256], [1]
    for trick in ("external", "link", "none"):
        with h5py.File(tmp_path / f"{trick}.h5", "w") as file:
            for part in ("train", "test"):
                file[f"{part}/target"] = [1]
                if trick == "external":
                    place = [(str(tmp_path / "secret"), 0, 256)]
                    file.create_dataset(f"{part}/data", (1, 256), "u1", external=place)
                elif trick == "link":
                    file[f"{part}/data"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/data")
                else:
                    file[f"{part}/data"] = [[0.5] * 256]
        domain = Domain(kind="usps", root=str(tmp_path / f"{trick}.h5"))
        if trick == "none":
            assert len(benchmark.read(domain, "data")) == 2
        else:
            with pytest.raises(FdamedError):
                benchmark.read(domain, "data")


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders and links by the letters that the search below strings together."""
    folder = tmp_path_factory.mktemp("maze")
    (folder / "root" / "a" / "b").mkdir(parents=True)
    (folder / "outside").mkdir()
    for where in (folder / "outside", folder / "root", folder / "root" / "a", folder / "root" / "a" / "b"):
        (where / "x").write_text("x")
    (folder / "root" / "up").symlink_to("..")
    (folder / "root" / "a" / "out").symlink_to(folder / "outside")
    (folder / "root" / "a" / "back").symlink_to("../a/b")
    return folder


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        st.lists(st.sampled_from(["a", "b", "x", "up", "out", "back", "..", ".", "", "root", "outside"])).map("/".join),
        st.text(),
    )
)
def test_a_path_is_inside_after_all_links_or_refused(maze: Path, image: str) -> None:
    """F4: whatever the cell holds."""
    try:
        path = Roots.of(maze / "root").locate(image)
    except Unreadable as refused:
        assert refused.reason in ("PATH_OUTSIDE_ROOT", "UNREADABLE")
        return
    assert Path(os.path.realpath(path)).is_relative_to(maze / "root")
