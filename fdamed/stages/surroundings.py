"""What a study needs around it: room to write, a tracking store, a GPU, a cluster that takes jobs; looked at only."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from fdamed.config import Config

Say = Callable[[str, str, str], None]
"""(status, check, what was found)."""
PLUGIN = "snakemake_executor_plugin_slurm"
SCRATCH_GB = 1.0
"""Room for the temporary files of a job; below it there is a warning."""
PATIENCE = 20
"""Seconds that SLURM may take for an answer."""


def look_around(config: Config, say: Say, gpu_here: bool, cluster: bool) -> None:
    """Check everything but the data; the cluster's side where it was asked for, or where there is an sbatch."""
    _scratch(Path(tempfile.gettempdir()), say)
    _results(Path(config.results), say)
    _tracking(config, say)
    on_cluster = cluster or shutil.which("sbatch") is not None
    gpus_there = _slurm(config, say, "fail" if cluster else "warn") if on_cluster else False
    if config.train.device == "cuda" and not (gpu_here or gpus_there):
        say("fail", "gpu", "train.device is cuda, and no GPU is to be seen here or in a partition of the cluster")
    elif gpu_here or gpus_there:
        say("ok", "gpu", "a GPU is here" if gpu_here else "a partition of the cluster has GPUs")


def nearest(folder: Path) -> Path:
    """The folder itself, or the one above it that exists."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def _scratch(folder: Path, say: Say) -> None:
    free = shutil.disk_usage(folder).free / 2**30
    detail = f"{free:.1f} GB free for temporary files"
    if not os.access(folder, os.W_OK):
        say("fail", "scratch", "the folder for temporary files is not writable; set TMPDIR")
    else:
        say("ok" if free >= SCRATCH_GB else "warn", "scratch", detail)


def _results(folder: Path, say: Say) -> None:
    if not os.access(nearest(folder), os.W_OK | os.X_OK):
        say("fail", "results", f"nothing can be written to {folder}")


def _tracking(config: Config, say: Say) -> None:
    uri = config.tracking.uri
    parts = urlsplit(uri or "sqlite:")
    if parts.scheme in ("http", "https"):
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname or "", port), timeout=5).close()
        except OSError as error:
            why = type(error).__name__
            say(
                "warn", "tracking", f"the tracking server does not answer ({why}); runs are kept in files until it does"
            )
            return
        say("ok", "tracking", "the tracking server answers")
        return
    file = Path(uri.removeprefix("sqlite:///")) if uri and parts.scheme == "sqlite" else Path(config.results) / "mlflow"
    if parts.scheme == "sqlite" and not os.access(nearest(file), os.W_OK):
        say("fail", "tracking", f"the store of MLflow cannot be written: {file}")
    else:
        say(
            "ok", "tracking", "MLflow's store can be written" if parts.scheme == "sqlite" else f"a {parts.scheme} store"
        )


def _slurm(config: Config, say: Say, grave: str) -> bool:
    """Whether jobs could be submitted; True: some partition has GPUs. A study may also run beside a cluster."""
    if importlib.util.find_spec(PLUGIN):
        say("ok", "plug-in", f"{PLUGIN.replace('_', '-')} {importlib.metadata.version(PLUGIN.replace('_', '-'))}")
    else:
        say(grave, "plug-in", "Snakemake has no SLURM plug-in; pip install 'fdamed[slurm]'")
    if shutil.which("sbatch") is None:
        say(grave, "sbatch", "there is no sbatch on this machine; run on the cluster's login node")
        return False
    told = _ask("sinfo", "--noheader", "--format=%P|%a|%l|%D|%G")
    if told is None:
        say(grave, "sbatch", f"SLURM's controller does not answer within {PATIENCE} s")
        return False
    partitions = [line.split("|") for line in told.split()]
    gpus = any("gpu" in words[-1] for words in partitions)
    listed = ", ".join(f"{name} (limit {limit})" for name, _, limit, *_ in dict.fromkeys(map(tuple, partitions)))
    wanted = ["--gres=gpu:1"] if config.train.device == "cuda" else []
    accepted = _ask("sbatch", "--test-only", "--ntasks=1", "--time=1", "--mem=500", *wanted, "--wrap=true")
    if accepted is None:
        say("warn", "sbatch", f"a trial job was refused (partition or account? profiles/slurm); partitions: {listed}")
    else:
        say("ok", "sbatch", f"jobs are taken; partitions: {listed}")
    return gpus


def _ask(*command: str) -> str | None:
    """What SLURM says; None: it refuses, or does not answer."""
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return None
    return told.stdout if told.returncode == 0 else None
