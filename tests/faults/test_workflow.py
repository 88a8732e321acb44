"""The whole workflow with odd names, read-only data and two instances at once; then changes of one key each."""

from __future__ import annotations

import csv
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from fdamed.core.locks import locked
from tests.faults import studies
from tests.support.dicom_files import thorax

pytestmark = pytest.mark.faults
FOLDER = "a \"study\" of 'Zoë' $HOME; [x] 试"
ODD = [
    "plain", "with space", "two  spaces", "'single'", '"double"', "it's", "back\\slash", "dollar$HOME", "`tick`",
    "semi;colon", "amp&ersand", "pipe|", "star*", "question?", "[bracket]", "{brace}", "per%cent", "hash#", "-dash",
    "--option", "tilde~", "comma,comma", "é-composed", "e\u0301-decomposed", "עברית", "\u202eright to left", "漢字",
    "😀", "\u00a0no-break", "x" * 251,
]  # fmt: skip
"""Names of files; the last one is as long as a name may be with its ending."""
LISTED = {"back\\slash", "\u00a0no-break"}
"""Refused with a reason: a backslash could be a folder elsewhere, and cells lose the space around them."""
SITES = {"North": 'nørd "of" Łódź', "East": "東 'east'; $x"}


def write_data(folder: Path) -> Path:
    """Sixty radiographs with odd names, one of them unreadable, one a link to nowhere, and their table."""
    raw = folder / "raw"
    raw.mkdir(parents=True)
    rows = []
    for number in range(60):
        name = f"{ODD[number % len(ODD)] if number < len(ODD) else f'n{number}'}.png"
        Image.fromarray((thorax(48, 40, bits=7) + number).astype("uint8")).save(raw / name)
        rows.append([name, f"p{number}", list(SITES.values())[number % 2], str(number // 2 % 2)])
    (raw / "gone.png").symlink_to(raw / "nowhere.png")
    rows += [["gone.png", "p60", SITES["North"], "1"], ["absent.png", "p61", SITES["East"], "0"]]
    with open(raw / "export.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["file", "id", "house", "Edema"], *rows])
    return raw


def configuration(raw: Path) -> dict[str, Any]:
    return {
        "study": "small",
        "data": {
            "layout": "table", "root": str(raw), "table": "export.csv", "labels": {"Edema": "Edema"},
            "columns": {"image": "file", "patient": "id", "site": "house"}, "salt": "for tests", "reject_share": 0.1,
        },
        "split": {
            "by": "site", "label": "Edema", "clients": SITES, "target": "North", "labeled": 4, "val": 0.2, "test": 0.3,
        },
        "image": {"size": 32},
        "privacy": {"smallest_cell": 1, "smallest_images": 1, "smallest_steps": 1},
        "model": {"width": 0.0625},
        "train": {
            "rounds": 2, "device": "cpu", "source": {"lr": 0.001, "batch": 8}, "target": {"lr": 0.001, "batch": 4},
        },
        "runs": {"fedavg": {}, "gp": {"beta": 0.5}},
        "seeds": [0],
    }  # fmt: skip


def tree(folder: Path) -> dict[str, str]:
    """Path -> what is there, for every entry of a tree."""
    return {
        str(p.relative_to(folder)): str(p.readlink()) if p.is_symlink() else hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_symlink() or p.is_file()
    }


def snakemake(folder: Path, *arguments: str, source: Path = studies.REPOSITORY) -> subprocess.Popen[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["snakemake", "--snakefile", str(source / "Snakefile"), "--directory", str(folder)]
    if "--configfile" not in arguments:
        arguments = (*arguments, "--configfile", str(folder / "study.yaml"))
    return subprocess.Popen(
        [*command, "--cores", "2", *arguments],
        env=studies.environment(PATH=path, PYTHONPATH=str(source), MLFLOW_DISABLE_TELEMETRY="true"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip


class Made:
    """A finished study, and what both Snakemakes said."""

    def __init__(self, folder: Path, raw: Path, before: dict[str, str], outputs: list[tuple[int, str]]) -> None:
        self.folder, self.raw, self.before, self.outputs = folder, raw, before, outputs


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Iterator[Made]:
    """Two Snakemakes started at the same moment, in a folder with an odd name, on data that nobody may write."""
    top = tmp_path_factory.mktemp("workflow")
    folder = top / FOLDER
    raw = write_data(folder)
    for file in raw.iterdir():
        if not file.is_symlink():
            file.chmod(0o444)
    before = tree(raw)
    bound = subprocess.run(["mount", "--bind", str(raw), str(raw)], check=False, capture_output=True).returncode == 0
    if bound:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(raw)], check=True)
    (folder / "study.yaml").write_text(yaml.safe_dump(configuration(raw), allow_unicode=True))
    try:
        both = [snakemake(folder), snakemake(folder)]
        said = [job.communicate()[0] for job in both]
        yield Made(folder, raw, before, [(job.returncode, text) for job, text in zip(both, said, strict=True)])
    finally:
        if bound:
            subprocess.run(["umount", "--lazy", str(raw)], check=True)


def test_of_two_workflows_one_wins_and_the_other_says_why(made: Made) -> None:
    codes = sorted(code for code, _ in made.outputs)
    assert codes[0] == 0 and codes[1] != 0, [text[-3000:] for _, text in made.outputs]
    loser = next(text for code, text in made.outputs if code)
    assert "Directory cannot be locked" in loser or "another run is writing to this folder" in loser
    assert "Finished jobid" not in loser, "it has run nothing"


def test_a_study_that_is_held_is_left_alone_even_where_snakemakes_own_lock_has_failed(made: Made) -> None:
    with locked(made.folder / "results" / "small"):
        job = snakemake(made.folder, "--forcerun", "init")
        output = job.communicate()[0]
    assert job.returncode == 1 and "another run is writing to this folder" in output and "Finished jobid" not in output


def test_the_outputs_are_those_of_a_single_run_stage_by_stage(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "single"
    folder.mkdir()
    shutil.copyfile(made.folder / "study.yaml", folder / "study.yaml")
    for stage in (["ingest"], ["split"], ["cache", "--client", "North"], ["cache", "--client", "East"], ["leakage"]):
        assert studies.fdamed(folder, *stage) == 0, stage
    assert studies.fdamed(folder, "init", "--seed", "0") == 0
    for run in ("fedavg", "gp"):
        assert studies.fdamed(folder, "federate", "--run", run, "--target", "North", "--seed", "0") == 0
        for name in studies.COMPARED:
            mine, theirs = (f / "results/small/runs" / run / "North/0" / name for f in (folder, made.folder))
            assert mine.read_bytes() == theirs.read_bytes(), (run, name)


def test_odd_names_go_through_and_what_cannot_be_read_is_listed(made: Made) -> None:
    root = made.folder / "results" / "small"
    for name in ("tracked.json", "report/index.html", "ingest.json"):
        assert (root / name).stat().st_size > 0
    assert yaml.safe_load((root / "ingest.json").read_text())["rows"] == 60 - len(LISTED)
    with open(root / "clients" / "rejects.csv", newline="", encoding="utf-8") as file:
        refused = {row["reason"] for row in csv.DictReader(file)}
    assert "MISSING" in refused and len(refused) <= 2
    import pandas as pd

    cached = [pd.read_parquet(root / "clients" / client / "order.parquet")["image"] for client in SITES]
    assert {name.removesuffix(".png") for names in cached for name in names} >= set(ODD) - LISTED


def test_the_data_are_as_they_were(made: Made) -> None:
    assert tree(made.raw) == made.before


# --- what a change of one key runs again ---

DATA, TRAINING, VIEWS = {"ingest", "split", "cache", "leakage"}, {"federate", "evaluate"}, {"track", "report_page"}
CHANGES: list[tuple[str, Any, set[str], set[str]]] = [
    ("runs.gp.beta", 0.25, TRAINING | VIEWS, DATA | {"init"}),
    ("train.rounds", 3, TRAINING | VIEWS, DATA | {"init"}),
    ("train.target.lr", 0.002, TRAINING | VIEWS, DATA | {"init"}),
    ("model.width", 0.125, TRAINING | VIEWS | {"init"}, DATA),
    ("image.size", 40, TRAINING | VIEWS | {"cache", "leakage"}, {"ingest", "split", "init"}),
    ("split.test", 0.25, TRAINING | VIEWS | {"split", "cache", "leakage"}, {"ingest", "init"}),
    ("data.reject_share", 0.2, TRAINING | VIEWS | DATA, {"init"}),
    ("tracking.uri", "sqlite:///other.db", {"track"}, DATA | TRAINING | {"init", "report_page"}),
    ("seeds", [0, 1], TRAINING | VIEWS | {"init"}, DATA),
]
"""Key, new value, rules that must run again, rules that must not."""


def planned(output: str) -> dict[str, int]:
    pairs = (line.split() for line in output.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


@pytest.mark.parametrize(("key", "value", "again", "kept"), CHANGES, ids=[c[0] for c in CHANGES])
def test_a_changed_key_runs_again_what_it_affects(made: Made, tmp_path, key, value, again, kept) -> None:
    raw = configuration(made.raw)
    section = raw
    *above, last = key.split(".")
    for name in above:
        section = section.setdefault(name, {})
    section[last] = value
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(raw, allow_unicode=True))
    output = snakemake(made.folder, "-n", "--configfile", str(other)).communicate()[0]
    jobs = planned(output)
    assert again <= jobs.keys() and not kept & jobs.keys(), (jobs, output[-2000:])
    if key == "runs.gp.beta":
        assert jobs["federate"] == 1, "the other run stays as it is"
    if key == "seeds":
        assert jobs["federate"] == 2 and jobs["init"] == 1, "the finished seed stays as it is"
    if key != "seeds":
        assert "params have changed" in output.lower(), "the reason is shown"


@pytest.mark.parametrize(
    ("file", "again", "kept"),
    [
        ("methods/gp.py", TRAINING | VIEWS, DATA | {"init"}),
        ("data/splitting/cohort.py", DATA | TRAINING, {"init"}),
        ("report/page.py", VIEWS, DATA | TRAINING | {"init"}),
        (None, set(), DATA | TRAINING | VIEWS | {"init"}),
    ],
)
def test_changed_code_runs_again_what_it_makes(made: Made, tmp_path: Path, file, again, kept) -> None:
    for folder in ("fdamed", "workflow", "envs", "profiles"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(studies.REPOSITORY / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(studies.REPOSITORY / "Snakefile", tmp_path)
    if file:
        with open(tmp_path / "fdamed" / file, "a") as code:
            code.write("\nCHANGED = 1\n")
    output = snakemake(made.folder, "-n", source=tmp_path).communicate()[0]
    jobs = planned(output)
    assert again <= jobs.keys() and not kept & jobs.keys(), (jobs, output[-2000:])


def test_a_folder_with_braces_is_refused_with_a_way_out(made: Made, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(configuration(tmp_path / "{raw}")))
    job = snakemake(made.folder, "-n", "--configfile", str(other))
    output = job.communicate()[0]
    assert (
        job.returncode == 1 and "takes the braces in this path for a wildcard" in output and "to do: rename" in output
    )


# --- a file system that shows files late ---

LATE = """#!/bin/sh
fdamed_real "$@" || exit $?
file=results/small/init/7/theta.safetensors
mv "$file" "$file.hidden"
(sleep 4; mv "$file.hidden" "$file") > /dev/null 2>&1 &
"""


@pytest.mark.parametrize(("patience", "code"), [(60, 0), (1, 1)])
def test_an_output_that_is_seen_late_is_waited_for_or_named(made: Made, tmp_path: Path, patience, code) -> None:
    folder = tmp_path / "late"
    folder.mkdir()
    raw = configuration(made.raw) | {"seeds": [7]}
    (folder / "study.yaml").write_text(yaml.safe_dump(raw, allow_unicode=True))
    (tmp_path / "fdamed").write_text(LATE.replace("fdamed_real", f"{sys.executable} -m fdamed.cli.main"))
    (tmp_path / "fdamed").chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    job = subprocess.run(
        ["snakemake", "--snakefile", str(studies.REPOSITORY / "Snakefile"), "--directory", str(folder), "--cores", "1",
         "--configfile", str(folder / "study.yaml"), "--latency-wait", str(patience),
         "results/small/init/7/theta.safetensors"],
        env=studies.environment(PATH=path), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (job.returncode != 0) == bool(code), job.stderr[-3000:]
    if code:
        assert "theta.safetensors" in job.stderr and "latency" in job.stderr
