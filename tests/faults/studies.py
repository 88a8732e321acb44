"""A study that trains in seconds: a client with state and a run with a second phase."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from fdamed.cli.main import main
from fdamed.core.run_record import read
from fdamed.tracking.payload import params, points, tags
from tests.support.idx_files import write_idx

TARGET = "C3"
RUNS = {
    "scaffold": {"train": {"source": {"optimizer": "sgd", "lr": 0.01}}},
    "transfer": {"method": "fedavg", "then": {"method": "finetune_head", "rounds": 2}},
}
"""SCAFFOLD's control variates are hospitals' memories; the new head goes on with its optimizer's moments."""
COMPARED = ("run.json", "metrics.jsonl", "ledger.jsonl", "layers.jsonl", "absences.jsonl", "theta.safetensors", "done")
"""A run's files but its clock's."""
CONFIG = "study.yaml"
REPOSITORY = Path(__file__).resolve().parents[2]


def configuration(**changes: Any) -> dict[str, Any]:
    return {
        "study": "small",
        "data": {"layout": "benchmark", "domains": {"set": {"kind": "idx", "root": "idx"}}},
        "split": {"by": "iid", "n_clients": 4, "labeled": 20},
        "image": {"size": 28},
        "model": {"backbone": "cnn", "side": 28, "classes": 10},
        "train": {
            "device": "cpu",
            "rounds": 5,
            "source": {"lr": 0.003, "batch": 16},
            "target": {"lr": 0.003, "batch": 8},
        },
        "runs": RUNS,
        "seeds": [0],
        "answers_mb": 0,  # a run that is repeated is computed again
    } | changes


def prepare(folder: Path, **changes: Any) -> Path:
    """The study up to its starting weights."""
    folder.mkdir(parents=True, exist_ok=True)
    write_idx(folder / "idx", train=160, test=40)
    (folder / "study.yaml").write_text(yaml.safe_dump(configuration(**changes)))
    for command in (["partition"], ["init", "--seed", "0"]):
        assert fdamed(folder, *command) == 0, command
    return folder


def fdamed(folder: Path, command: str, *arguments: str) -> int:
    """A stage in this process."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        return main([command, "--config", CONFIG, *arguments])
    finally:
        os.chdir(before)


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"} | more


def process(folder: Path, *arguments: str, module: str = "fdamed.cli.main", **options: Any) -> subprocess.Popen[str]:
    """A stage in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments, "--config", "study.yaml"],
        cwd=folder,
        env=options.pop("env", environment()),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def victim(folder: Path, what: str, number: int, signal_name: str, *arguments: str) -> subprocess.Popen[str]:
    return process(folder, what, str(number), signal_name, "--", *arguments, module="tests.faults.victim")


def batch(*runs: str) -> list[str]:
    return ["federate", "--runs", *(f"{run}/{TARGET}/0" for run in runs or RUNS)]


def copy(folder: Path, place: Path) -> Path:
    shutil.copytree(folder, place, symlinks=True)
    return place


def place_of(folder: Path, run: str) -> Path:
    return folder / "results" / "small" / "runs" / run / TARGET / "0"


def outcome(folder: Path, *runs: str) -> dict[str, bytes]:
    """Everything that must be the same: files, last checkpoints, hospitals' memories, what MLflow records."""
    out = {}
    for run in runs or RUNS:
        place = place_of(folder, run)
        out |= {f"{run}/{name}": (place / name).read_bytes() for name in COMPARED}
        for file in sorted(place.rglob("checkpoint.bin")):
            out[f"{run}/{file.relative_to(place)}"] = state_of(file)
        out[f"{run}/mlflow"] = repr(tracked(place)).encode()
    for file in sorted((folder / "results").rglob("memory/**/*.safetensors")):
        if file.stem != "aside":
            out[str(file.relative_to(folder))] = file.read_bytes()
    return out


def state_of(checkpoint: Path) -> bytes:
    """The method's state in a checkpoint; its head describes the log, which has times in it."""
    content = checkpoint.read_bytes()
    (n,) = struct.unpack("<I", content[32:36])
    return content[36 + n :]


def tracked(place: Path) -> list[object]:
    """What an import writes to MLflow for a run, except times."""
    record = read(place, 1)
    assert record is not None
    curves = [(key, value, step) for key, value, _, step in points(record) if not key.startswith("runtime/")]
    kept = {key: value for key, value in tags(record).items() if key != "content_digest"}
    return [curves, params(record), kept]


def left_over(folder: Path) -> list[str]:
    """Drafts that nobody has removed."""
    return [str(p.relative_to(folder)) for p in folder.rglob("*.part")]


def rounds_logged(place: Path) -> list[int]:
    return [json.loads(line)["round"] for line in (place / "metrics.jsonl").read_text().splitlines()]
