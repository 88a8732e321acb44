"""A study across three hospitals on this machine: each has its own folder with its own images, table and file."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from fdamed.config.loader import catalog
from fdamed.core.files import private
from fdamed.core.rng import stream
from fdamed.pipeline.hospitals.authority import make_request
from tests.support.raw_trees import write_table

HOSPITALS = ("north", "east", "south")
TARGET = "south"
COLUMNS = ("file", "pid", "hospital", "pneu", "gender")
DATA = {
    "layout": "table",
    "table": "images.csv",
    "salt": "the same at all hospitals, so that the bits are",
    "columns": {"image": "file", "patient": "pid", "site": "hospital", "sex": "gender"},
    "labels": {"Pneumonia": "pneu"},
}
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "FDAMED_LOG": "info", "COLUMNS": "120"}


def study(folder: Path, port: int = 0, **changes: Any) -> dict[str, Any]:
    """The study's configuration, over a network if a port is given; its pooled images are in `folder`/pooled."""
    raw = {
        "study": "apart",
        "results": str(folder / "results"),
        "data": DATA | {"root": str(folder / "pooled")},
        "split": {
            "by": "site",
            "clients": {name: name for name in HOSPITALS},
            "target": TARGET,
            "label": "Pneumonia",
            "labeled": 6,
            "val": 0.15,
            "test": 0.3,
        },
        "image": {"size": 32},
        "privacy": "public",
        "model": {"width": 0.0625, "heads": ["sex"]},
        "train": {
            "rounds": 4,
            "source": {"lr": 0.001, "batch": 8},
            "target": {"lr": 0.001, "batch": 4},
            "device": "cpu",
        },
        "seeds": [0],
        "answers_mb": 0,
        "runs": {"fedavg": {}},
    }
    if port:
        raw["train"]["transport"] = "network"
        raw["network"] = {"host": "localhost", "port": port, "answer_minutes": 2, "wait_minutes": 3}
    return raw | changes


def every_run() -> dict[str, dict[str, Any]]:
    """A run of every federated method, with plain SGD or another choice where its defaults need it, and of phases."""
    runs: dict[str, dict[str, Any]] = {}
    for name, entry in catalog().items():
        if entry.get("classical"):
            continue
        sgd = entry["needs_sgd"] or {}
        runs[name] = {k: next(c for c in entry["options"][k]["choices"] if c != sgd[k]) for k in sgd}
        if entry["needs_sgd"] == {}:
            runs[name] = {"train": {"source": {"lr": 0.01, "batch": 8, "optimizer": "sgd"}}}
    phases = {
        "gp_heads": {"method": "gp", "warmup": 1, "auxiliary": {"heads": ["sex"], "share": False}},
        "gp_then": {"method": "gp", "then": {"method": "finetune_head", "rounds": 1}},
    }
    return runs | phases


def write_images(root: Path, hospitals: tuple[str, ...], images: int = 48) -> None:
    """A table and small images of these hospitals."""
    rows = []
    for hospital in hospitals:
        rng = stream(0, hospital).numpy
        (root / hospital).mkdir(parents=True)
        for i in range(images):
            pixels = rng.integers(0, 120, (40, 40))
            pixels[10:30, 10:30] += 90 * (i % 2)
            Image.fromarray(pixels.astype(np.uint8)).save(root / hospital / f"{i:03d}.png")
            rows.append([f"{hospital}/{i:03d}.png", f"{hospital}{i:03d}", hospital, str(i % 2), "FM"[i // 2 % 2]])
    write_table(root / "images.csv", COLUMNS, rows)


def fdamed(*words: str | Path, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command, run to its end."""
    command = [sys.executable, "-m", "fdamed", *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, **options)


@dataclass
class Federation:
    """Invited hospitals in folders of their own, and the processes that a test has started."""

    folder: Path
    port: int
    changes: dict[str, Any] = field(default_factory=dict)
    images: int = 48
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)
    """Name -> the beginning of its commands, such as those that enter a namespace."""

    def prepare(self, policies: dict[str, dict[str, Any]] | None = None) -> None:
        """Write data and study, invite all hospitals and let them join."""
        write_images(self.folder / "pooled", HOSPITALS, self.images)
        path = self.folder / "study.yaml"
        path.write_text(yaml.safe_dump(study(self.folder / "lead", self.port, **self.changes)), encoding="utf-8")
        requests = self.folder / "requests"
        requests.mkdir()
        for name in HOSPITALS:
            shutil.copy(make_request(name, private(self.folder / name / "keys")), requests)
        words = ("--kits", self.folder / "kits", "--requests", requests)
        invited = fdamed("invite", "--study", path, *words, cwd=self.folder)
        assert invited.returncode == 0, invited.stderr
        digest = invited.stdout.partition("digest ")[2].split()[0]
        for name in HOSPITALS:
            self.join(name, digest, (policies or {}).get(name, {}))

    def join(self, name: str, digest: str, policy: dict[str, Any]) -> None:
        own = self.folder / name
        write_images(own / "data", (name,), self.images)
        raw = {"data": DATA | {"root": str(own / "data")}, "privacy": {"public": True}, "results": "results"} | policy
        (own / "own.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
        shutil.copytree(self.folder / "kits" / "invitations" / name, own / "invitation")
        words = ("--invitation", own / "invitation", "--digest", digest, "--key", own / "keys" / f"{name}.key")
        joined = fdamed("join", *words, "--data", own / "own.yaml", "--out", own / "site.yaml", cwd=own)
        assert joined.returncode == 0, joined.stdout + joined.stderr

    def start(self, name: str, *words: str | Path, module: str = "fdamed") -> subprocess.Popen[bytes]:
        """Start a command in the background; its output goes to NAME.log."""
        with open(self.folder / f"{name}.log", "ab") as out:
            self.running[name] = subprocess.Popen(
                [*self.places.get(name, ()), sys.executable, "-m", module, *map(str, words)],
                cwd=self.folder,
                env=ENVIRONMENT | {"PYTHONPATH": str(Path(__file__).parents[2])},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.running[name]

    def serve(self, name: str, module: str = "fdamed") -> subprocess.Popen[bytes]:
        return self.start(name, "serve", "--site", self.folder / name / "site.yaml", module=module)

    def lead(self, *words: str) -> subprocess.Popen[bytes]:
        return self.start("lead", "lead", "--study", self.folder / "study.yaml", "--kits", self.folder / "kits", *words)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")

    def run_folder(self, run: str) -> Path:
        return self.folder / "lead" / "results" / "apart" / "runs" / run

    def stop(self, *names: str) -> None:
        """End everything (or these) that was started here, in order: FLARE's processes are children of ours."""
        ending = [self.running[name] for name in names or self.running]
        for process in ending:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in ending:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def together(folder: Path, wanted: tuple[str, ...], **changes: Any) -> Path:
    """The same study in one process, on the pooled images; the folder of its runs."""
    path = folder / "together.yaml"
    path.write_text(yaml.safe_dump(study(folder, **changes)), encoding="utf-8")
    caches = [("cache", "--client", name, "--workers", "1") for name in HOSPITALS]
    for command, *words in (("ingest",), ("split",), *caches, ("leakage",), ("init",), ("federate", "--runs", *wanted)):
        done = fdamed(command, "--config", path, *words, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder / "results" / "apart" / "runs"
