"""Check the configuration, the data and the machine before any job runs.

Nothing is written.

Examples:
    fdamed doctor --config config/chexpert.yaml
    fdamed doctor --config config/mimic.yaml --cluster --json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdamed.cli.options import add_config, add_json, read_config
from fdamed.config.datasets import Benchmark
from fdamed.config.loader import catalog
from fdamed.config.policy_checks import check_floor
from fdamed.config.split import Split
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import free, megabytes
from fdamed.pipeline.environment_checks import look_around
from fdamed.pipeline.paths import clinical

if TYPE_CHECKING:
    import pandas as pd

GROUP = "prepare", 3
PRIVATE = True
SAMPLE = 200
"""Files to open."""
DECODED = {"dicom": 15.0, "picture": 80.0}
"""Decoded images per second and core, roughly."""
TRAINED = 25.0
"""Images per second and core for training a full ResNet-18 at 64 pixels, roughly; a GPU equals 60 cores."""
GPU = 60.0
CLASSES = {"positive": 1, "negative": 0}
FAULTS = 3
"""Runs below the minimum that are listed one by one."""
SALT = "doctor"
"""These pseudonyms never leave the process."""


@dataclass
class Report:
    """The findings; `ok` is False if the study would fail."""

    checks: list[dict[str, str]] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    patients_shared: dict[str, str] = field(default_factory=dict)
    cache_bytes: int = 0
    cache_seconds: float = 0.0
    training_seconds: float = 0.0

    def say(self, status: str, check: str, detail: str) -> None:
        self.checks.append({"status": status, "check": check, "detail": detail})

    @property
    def ok(self) -> bool:
        return all(c["status"] != "fail" for c in self.checks)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--cluster", action="store_true", help="the study will run on SLURM: check sbatch, too")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    report = examine(config, arguments.cluster)
    if arguments.json:
        print(json.dumps({"ok": report.ok, **asdict(report)}, indent=1, ensure_ascii=False))
    else:
        show(report)
    if not report.ok:
        faults = "; ".join(f"{c['check']}: {c['detail']}" for c in report.checks if c["status"] == "fail")
        raise FdamedError(f"the run could not succeed: {faults}", ", ".join(arguments.config), "Fix them.")


def examine(config: Config, cluster: bool = False) -> Report:
    """All checks, in the order in which the steps would fail; the data of a public set is not checked."""
    report = Report(machine=machine(config))
    look_around(config, report.say, report.machine["gpu"], cluster)
    _checkpoints(config, report)
    if isinstance(config.data, Benchmark):
        report.say("ok", "tables", "a public set: `fdamed partition` reads and checks it")
        return report
    index = _tables(config, report)
    if index is None:
        return report
    _files(config, index, report)
    _hospitals(config, index, report)
    return report


def machine(config: Config) -> dict[str, Any]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(pages / 2**30, 1),
        "gpu": Path("/proc/driver/nvidia/gpus").is_dir() or shutil.which("rocm-smi") is not None,
        "free_gb": round(free(Path(config.results)) / 2**30, 1),
    }


def _checkpoints(config: Config, report: Report) -> None:
    """Space for the final weights of all runs, and for the checkpoints of one training per core."""
    from fdamed.models import backbone

    model = 4 * sum(p.numel() for p in backbone.build(config.model).parameters())
    runs = len(config.expanded_runs()) * len(config.split.targets) * len(config.seeds)
    needed, left = model * (runs + 3 * min(runs, report.machine["cores"])), free(Path(config.results))
    detail = f"{runs} trainings need about {megabytes(needed)} for weights and checkpoints, {megabytes(left)} are free"
    report.say("ok" if left > needed else "fail", "checkpoints", detail)


def _tables(config: Config, report: Report) -> pd.DataFrame | None:
    from fdamed.data.ingestion import read_rows
    from fdamed.data.row_reader import Rejects

    data, _ = clinical(config)
    rejects = Rejects()
    try:
        index = read_rows(data, SALT, False, rejects)
    except FdamedError as error:
        made = " The phantom is written by `fdamed phantom`." if config.phantom else ""
        report.say("fail", "tables", f"{error.what} ({error.where}). {error.fix}{made}")
        return None
    report.refused = rejects.counts()
    share = rejects.faults() / max(1, len(index) + rejects.faults())
    detail = f"{len(index)} rows, {index['patient'].nunique()} patients; {share:.2%} refused"
    if not len(index) or share > data.reject_share:
        report.say("fail", "tables", f"{detail}: {_listed(report.refused)} (data.reject_share {data.reject_share:g})")
        return None
    report.say("ok", "tables", detail + (f": {_listed(report.refused)}" if report.refused else ""))
    return index


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {n}" for reason, n in counts.items())


def _files(config: Config, index: pd.DataFrame, report: Report) -> None:
    from fdamed.core.rng import stream
    from fdamed.data.ingestion import check_files
    from fdamed.data.row_reader import Rejects

    data, _ = clinical(config)
    chosen = stream(0, "doctor").numpy.permutation(len(index))[:SAMPLE]
    rejects = Rejects()
    sample = index.iloc[sorted(chosen)].reset_index(drop=True)
    check_files(sample, data, rejects)
    share = rejects.faults() / len(chosen)
    detail = f"{share:.1%} of a sample of {len(chosen)} files cannot be read"
    reasons = f": {_listed(rejects.counts())}" if share else ""
    status = "fail" if share > data.reject_share else "warn" if share else "ok"
    report.say(status, "files", detail + reasons)


def _hospitals(config: Config, index: pd.DataFrame, report: Report) -> None:
    from fdamed.data.splitting.assignment import Keys
    from fdamed.data.splitting.cohort import build, truths, truths_per_patient

    _, cut = clinical(config)
    cell = config.privacy.smallest_cell
    try:
        truth = truths(index, cut, cell)
        fits = truths_per_patient(truth, Keys.of(index, cut.seed))
        for (i, a), (j, b) in combinations(enumerate(sorted(truth)), 2):
            report.patients_shared[f"{a} & {b}"] = _shown(int((fits[:, i] & fits[:, j]).sum()), cell)
        several = int((fits.sum(axis=1) > 1).sum())
        share = several / max(1, int((fits.sum(axis=1) > 0).sum()))
        detail = f"{_shown(several, cell)} patients ({share:.0%}) fit several hospitals"
        leaks = cut.rule == "reference"
        report.say(
            "warn" if leaks else "ok", "patients", detail + ("; rule: reference lets them leak" if leaks else "")
        )
        cohort = build(index, cut, cell)
    except FdamedError as error:
        report.say("fail", "hospitals", f"{error.what} ({error.where}). {error.fix}")
        return
    for client, frame in cohort.manifests.items():
        y, split = frame["y"], frame["split"]
        report.clients[client] = {
            "images": len(frame),
            "patients": int(frame["patient"].nunique()),
            "positive": round(float(y.mean()), 3),
            "candidates": {word: _shown(int((truth[client] == side).sum()), cell) for word, side in CLASSES.items()},
            "splits": {s: _shown(int((split == s).sum()), cell) for s in ("train", "adapt", "val", "test")},
        }
    for note in cohort.notes[1:]:
        report.say("warn", "hospitals", note)
    report.say("ok", "hospitals", f"{len(cohort.manifests)} hospitals can be cut by {config.split.by}")
    _floor(config, cohort.manifests, report)
    _costs(config, cohort.manifests, report)


def _floor(config: Config, manifests: dict[str, pd.DataFrame], report: Report) -> None:
    """Whether every client has the minimum of images and steps for sharing anything."""
    sizes = {p: {s: int((f["split"] == s).sum()) for s in ("train", "adapt")} for p, f in manifests.items()}
    faults = []
    for name, run in config.expanded_runs().items():
        try:
            check_floor(name, run, config, catalog(), sizes, "privacy")
        except FdamedError as error:
            faults.append(f"{error.what}. {error.fix}")
    for fault in faults[:FAULTS]:
        report.say("fail", "floor", fault)
    if len(faults) > FAULTS:
        report.say("fail", "floor", f"the same holds for {len(faults) - FAULTS} more runs")
    if not faults:
        images, steps = config.minimum.images, config.minimum.steps
        report.say("ok", "floor", f"every hospital has {images} images and {steps} steps a round, or more")


def _shown(count: int, cell: int) -> str:
    return str(count) if count == 0 or count >= cell else f"under {cell}"


def _costs(config: Config, manifests: dict[str, pd.DataFrame], report: Report) -> None:
    """Rough estimates: disk space of the cache, time of cache and training."""
    cores = report.machine["cores"]
    images = sum(len(f) for f in manifests.values())
    pictures = sum(
        int(f["image"].str.lower().str.endswith((".jpg", ".jpeg", ".png")).sum()) for f in manifests.values()
    )
    report.cache_bytes = images * config.image.size**2
    report.cache_seconds = round((pictures / DECODED["picture"] + (images - pictures) / DECODED["dicom"]) / cores, 1)
    power = GPU if report.machine["gpu"] and config.train.device != "cpu" else float(cores)
    rate = TRAINED * power * (64 / config.image.size) ** 2 / config.model.width**2
    trained = {p: int(f["split"].isin(("train", "adapt")).sum()) for p, f in manifests.items()}
    rounds = config.train.rounds * len(config.seeds) * len(config.expanded_runs())
    labeled = config.split.labeled if isinstance(config.split, Split) else 0
    steps = sum(
        sum(n * config.train.source.epochs for p, n in trained.items() if p != target) + labeled
        for target in config.split.targets
    )
    report.training_seconds = round(rounds * steps / rate, 1)
    room = report.machine["free_gb"] * 2**30 > 1.2 * report.cache_bytes
    report.say("ok" if room else "fail", "disk", f"the cache needs {report.cache_bytes / 2**20:.0f} MB")
    report.say(
        "ok", "time", f"cache about {_time(report.cache_seconds)}, training about {_time(report.training_seconds)}"
    )


def _time(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )


def show(report: Report) -> None:
    from rich.table import Table

    from fdamed.core.progress import console

    out = console()
    table = Table("", "check", "what was found", title="fdamed doctor")
    marks = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]FAIL[/]"}
    for check in report.checks:
        table.add_row(marks[check["status"]], check["check"], check["detail"].replace("[", r"\["))
    table.add_row(marks["ok"], "machine", ", ".join(f"{k} {v}" for k, v in report.machine.items()))
    out.print(table)
    if report.clients:
        sizes = Table("hospital", "images", "patients", "positive", "train", "adapt", "val", "test")
        for client, entry in report.clients.items():
            splits = [entry["splits"][s] for s in ("train", "adapt", "val", "test")]
            sizes.add_row(client, str(entry["images"]), str(entry["patients"]), f"{entry['positive']:.0%}", *splits)
        out.print(sizes)
    if report.patients_shared:
        out.print("patients who fit both: " + ", ".join(f"{k} {v}" for k, v in report.patients_shared.items()))
