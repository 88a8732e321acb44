"""Identifiers planted in raw data must not appear outside the clients' own folders, nor on the screen."""

from __future__ import annotations

import getpass
import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from fdamed.cli.main import main
from tests.support import dicom_files
from tests.support.raw_trees import write_table

PATIENTS = 72
BIRTHDAY, STUDY_DAY = "18871113", "18990317"
UNREADABLE, FLAT, ABSENT, BAD_LABEL, OUTSIDE = 5, 10, 15, 20, 25
"""Patients whose image or row is refused."""
LETTERS = str.maketrans("0123456789", "ghijklmnop")


@dataclass
class Tree:
    """A raw tree, the `data` section that reads it, and what was planted in it."""

    data: dict[str, Any]
    planted: set[str] = field(default_factory=set)

    def plant(self, kind: str, number: int = 0) -> str:
        """A word that stands nowhere else, e.g. `Zqpatientkbdcafne`."""
        word = f"Zq{kind}" + hashlib.sha256(f"{kind}/{number}".encode()).hexdigest()[:8].translate(LETTERS)
        self.planted.add(word)
        return word

    def plant_uid(self, kind: str, number: int) -> str:
        digits = str(10**14 + int(hashlib.sha256(f"{kind}/{number}".encode()).hexdigest()[:11], 16))
        self.planted.add(digits)
        return f"1.2.826.0.1.{digits}"

    def write_image(self, path: Path, number: int) -> None:
        """A DICOM file full of identifiers; some cannot be read, or only until their pixels are looked at."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if number == ABSENT:
            return
        if number == UNREADABLE:
            path.write_bytes(self.plant("content", number).encode() * 50)
            return
        pixels = dicom_files.thorax(48, 40)
        pixels = np.full_like(pixels, 7) if number == FLAT else np.roll(pixels, number % 40, axis=1) // (1 + number % 2)
        tags = {
            "PatientName": f"{self.plant('surname', number)}^{self.plant('given', number)}",
            "PatientID": self.plant("tagged", number),
            "PatientBirthDate": BIRTHDAY,
            "StudyDate": STUDY_DAY,
            "AcquisitionDateTime": f"{STUDY_DAY}101500",
            "StudyInstanceUID": self.plant_uid("study", number),
            "SeriesInstanceUID": self.plant_uid("series", number),
            "AccessionNumber": self.plant("a", number)[:16],
            "InstitutionName": self.plant("institution"),
            "ReferringPhysicianName": self.plant("physician"),
            "StudyDescription": self.plant("description"),
            "ImageComments": self.plant("comment", number),
            "PatientComments": self.plant("remark", number),
            "BurnedInAnnotation": "YES" if number % 9 == 0 else "NO",
        }
        dicom_files.write(path, dicom_files.dataset(pixels, **tags))


def planted_table(folder: Path) -> Tree:
    """A hospital's own export, with columns that nobody mapped."""
    data = {
        "layout": "table",
        "table": "export.csv",
        "columns": {"image": "Datei", "patient": "Kennung", "study": "Untersuchung", "site": "Haus"},
        "labels": {"Disease": "Befund"},
    }
    tree = Tree(data)
    root = folder / tree.plant("root")
    data["root"] = str(root)
    rows = []
    for n in range(PATIENTS):
        patient, study = tree.plant("patient", n), tree.plant("untersuchung", n)
        image = f"{tree.plant('folder', n)}/{tree.plant('file', n)}.dcm"
        tree.write_image(root / image, n)
        label = tree.plant("label") if n == BAD_LABEL else str(n % 2)
        cell = f"../{image}" if n == OUTSIDE else image
        notes = [tree.plant("name", n), "13.11.1887", tree.plant("note", n)]
        rows.append([cell, patient, study, "IL" if n // 2 % 2 else "NC", label, *notes])
    header = ["Datei", "Kennung", "Untersuchung", "Haus", "Befund", "Name", "Geburtstag", "Bemerkung"]
    write_table(root / "export.csv", header, rows)
    return tree


def planted_midrc(folder: Path) -> Tree:
    """A Gen3 export: case, study and series tables, one folder a series."""
    data: dict[str, Any] = {"layout": "midrc"}
    tree = Tree(data)
    root = folder / tree.plant("root")
    data["root"] = str(root)
    cases, studies, series = [], [], []
    for n in range(PATIENTS):
        case, study, uid = tree.plant("case", n), tree.plant("study", n), tree.plant_uid("series", n)
        tree.write_image(root / uid / uid / f"{tree.plant('file', n)}.dcm", n)
        covid = tree.plant("label") if n == BAD_LABEL else "Yes" if n % 2 else "No"
        cases.append([case, covid, "606" if n // 2 % 2 else "275", str(30 + n % 50), tree.plant("note", n)])
        studies.append([study, case, STUDY_DAY, tree.plant("description")])
        name = f"../../{uid}.zip" if n == OUTSIDE else f"{case}/{study}/{uid}.zip"
        series.append([tree.plant("entry", n), study, uid, name])
    write_table(root / "case.tsv", ["submitter_id", "covid19_positive", "zip", "age_at_index", "notes"], cases, "\t")
    header = ["submitter_id", "cases.submitter_id", "study_date", "study_description"]
    write_table(root / "imaging_study.tsv", header, studies, "\t")
    header = ["submitter_id", "imaging_studies.submitter_id", "series_uid", "file_name"]
    write_table(root / "cr_series_file.tsv", header, series, "\t")
    return tree


def configure(folder: Path, tree: Tree, **data: Any) -> Path:
    content = {
        "study": "canary",
        "data": {**tree.data, "reject_share": 0.2, "salt": tree.plant("salt"), **data},
        "split": {
            "by": "site",
            "label": "COVID-19" if tree.data["layout"] == "midrc" else "Disease",
            "clients": {"IL": "IL", "NC": "NC"},
            "target": "NC",
            "labeled": 6,
            "val": 0.2,
            "test": 0.3,
            "balanced": False,
        },
        "image": {"size": 32},
        "privacy": {"smallest_cell": 1, "smallest_images": 1, "smallest_steps": 1},
        "model": {"width": 0.0625, "heads": ["sex", "age"]},
        "train": {"rounds": 1, "source": {"lr": 0.001, "batch": 8}, "device": "cpu"},
        "seeds": [0],
        "runs": {"fedavg": {}, "gp": {"auxiliary": {"heads": ["sex", "age"]}}},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


STAGES = [
    ["doctor"],
    ["ingest"],
    ["split"],
    *(["cache", "--client", client, "--workers", "1"] for client in ("IL", "NC")),
    ["leakage"],
    ["init", "--seed", "0"],
    *(["federate", "--run", run, "--target", "NC", "--seed", "0"] for run in ("fedavg", "gp")),
    *(["evaluate", "--run", run, "--target", "NC", "--seeds", "0", "--client", "NC"] for run in ("fedavg", "gp")),
    ["track"],
    ["report"],
]
DATES = {BIRTHDAY, STUDY_DAY, "1887-11-13", "1899-03-17", "13.11.1887"}


def hits(content: bytes, words: set[str]) -> set[str]:
    """The words that stand in `content` in whatever case."""
    content = content.lower()
    return {word for word in words if word.lower().encode() in content}


@pytest.mark.parametrize("plant", [planted_table, planted_midrc])
def test_planted_identifiers_stay_in_the_hospitals(
    plant: Callable[[Path], Tree], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = plant(tmp_path / "raw")
    work = tmp_path / tree.plant("work")
    work.mkdir()
    monkeypatch.chdir(work)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, tree.plant("login"))
    assert getpass.getuser() in tree.planted
    config = configure(tmp_path, tree)
    for name, *options in STAGES:
        assert main([name, "--config", str(config), *options]) == 0, (name, capfd.readouterr().err)
    said = capfd.readouterr()

    home = work / "results" / "canary" / "clients"
    index = pd.read_parquet(home / "index.parquet")
    secrets = tree.planted | DATES | set(index["patient"]) | set(index["study"])
    assert len(index) == PATIENTS - 4 and len(secrets) > 8 * PATIENTS
    assert not hits("".join([*index["patient"], *index["study"]]).encode(), tree.planted)

    # The same search finds what was refused, where it may be found: it is not blind.
    listed = (home / "rejects.csv").read_bytes() + b"".join(p.read_bytes() for p in home.glob("*/rejects.csv"))
    refused = [n for n in range(PATIENTS) if hits(listed, {Tree({}).plant("file", n)})]
    assert refused == [UNREADABLE, FLAT] + ([ABSENT] if tree.data["layout"] == "table" else [])
    for reason in ("PATH_OUTSIDE_ROOT", "BAD_LABEL", "MISSING", "NOT_AN_IMAGE", "CONSTANT"):
        assert reason.encode() in listed, reason

    shared = [p for p in work.rglob("*") if p.is_file() and not p.is_relative_to(home)]
    shared = [p for p in shared if not p.name.startswith(".coverage")]  # of the tests, where they measure it
    names = {p.name for p in shared}
    assert names >= {"ingest.json", "cohort.json", "leakage.json", "run.json", "metrics.jsonl", "ledger.jsonl", "done"}
    # Nobody's login name or folder, MLflow's database included; the host's name may be part of an ordinary word.
    secrets |= {str(tmp_path), str(Path.home()) + "/"}
    assert names >= {"mlflow.db", "theta.safetensors", "index.html", "headline.csv", "what_left_each_hospital.csv"}
    assert hits((said.out + said.err).encode(), secrets) == set()
    for path in shared:
        found = hits(str(path.relative_to(work)).encode() + path.read_bytes(), secrets)
        assert found == set(), path.relative_to(work)


@pytest.mark.parametrize("smallest", [11, 1])
def test_scores_on_a_small_part_are_in_no_file_outside_the_clients_folders(
    smallest: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every number of the full scores, as text with four digits and as MLflow's database stores it."""
    monkeypatch.chdir(tmp_path)
    config = configure(tmp_path, planted_table(tmp_path / "raw"))
    config.write_text(config.read_text().replace("smallest_cell: 1\n", f"smallest_cell: {smallest}\n"))
    for name, *options in [*STAGES, ["audit", "--target", "NC"], ["report"], ["track"]]:
        assert main([name, "--config", str(config), *options]) == 0, (name, capfd.readouterr().err)
    said = capfd.readouterr()
    home = tmp_path / "results" / "canary" / "clients"
    full = [json.loads(p.read_text()) for p in home.glob("NC/scores/*/NC/0.json")]
    rounds = [json.loads(line) for p in home.glob("NC/rounds/*/NC/0.jsonl") for line in p.read_text().splitlines()]
    assert len(full) == len(rounds) == 2 and full[0]["n"] > 0 and "test/acc" in rounds[0]
    values = {v for row in (*full, *rounds) for v in row.values() if isinstance(v, float) and len(f"{360 * v:.9g}") > 8}
    assert len(values) > 1, "Brier scores: no simple fractions, which could be anything"
    outside = [p for p in (tmp_path / "results").rglob("*") if p.is_file() and not p.is_relative_to(home)]
    shared = (said.out + said.err).encode() + b"".join(p.read_bytes() for p in outside if p.suffix != ".safetensors")
    found = {v for v in values if f"{v:.4f}".encode() in shared or struct.pack(">d", v) in shared}
    assert found == (set() if smallest > 1 else values), "with a smallest cell of 1 the search finds them"


# --- errors ---


def spoiled_too_much(root: Path) -> dict[str, Any]:
    return {"reject_share": 0.0}


def misspelled_name(root: Path) -> dict[str, Any]:
    """Images lie beside the table, and the nearest name there is an image's."""
    word = Tree({}).plant("patient", 0)
    (root / f"{word}_export.dcm").write_bytes(b"")
    return {"table": f"{word}_export.csv"[2:]}


def no_header(root: Path) -> dict[str, Any]:
    table = root / "export.csv"
    table.write_text(table.read_text().partition("\n")[2])
    return {}


def no_header_and_twice_the_same(root: Path) -> dict[str, Any]:
    word = Tree({}).plant("patient", 0)
    (root / "export.csv").write_text(f"{word}.dcm,{word},{word},IL,1,x,,\n")
    return {}


def contradiction(root: Path) -> dict[str, Any]:
    table = root / "export.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, lines[1].replace(",NC,0,", ",NC,1,")]) + "\n")
    return {}


def ragged(root: Path) -> dict[str, Any]:
    table = root / "export.csv"
    table.write_text(table.read_text() + table.read_text().splitlines()[1] + ",one more\n")
    return {}


def open_quote(root: Path) -> dict[str, Any]:
    table = root / "export.csv"
    table.write_text(table.read_text() + '"' + table.read_text().splitlines()[1] + "\n")
    return {}


@pytest.mark.parametrize(
    "spoil",
    [spoiled_too_much, misspelled_name, no_header, no_header_and_twice_the_same, contradiction, ragged, open_quote],
)
def test_no_error_quotes_an_identifier(
    spoil: Callable[[Path], dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch
) -> None:
    tree = planted_table(tmp_path / "raw")
    monkeypatch.chdir(tmp_path)
    # The root and the table are the user's own words; an error names them.
    root = Path(tree.data["root"]).rename(tmp_path / "root")
    config = configure(tmp_path, tree, root=str(root), **spoil(root))
    for stage in ("doctor", "ingest"):
        assert main([stage, "--config", str(config)]) == 2
        said = capfd.readouterr()
        assert "\nwhere: " in said.err
        assert hits((said.out + said.err).encode(), tree.planted | DATES) == set()
    assert not (tmp_path / "results/canary/ingest.json").exists()
