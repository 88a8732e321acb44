"""Read-only checks of the environment: disk space, MLflow store, GPU and SLURM."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import nearest
from fdamed.tracking.store import Store, connect

Add = Callable[[str, str, str], None]
"""Reports (status, check, detail)."""
PLUGIN = "snakemake-executor-plugin-slurm"
SCRATCH_GB = 1.0
"""Space for the temporary files of a job; less is a warning."""
PATIENCE = 20
"""Timeout for SLURM, in seconds."""


def check_environment(config: Config, add: Add, gpu_here: bool, cluster: bool) -> None:
    """Check everything but the data; the cluster if requested, or if sbatch exists."""
    check_scratch(Path(tempfile.gettempdir()), add)
    if not os.access(nearest(Path(config.results)), os.W_OK | os.X_OK):
        add("fail", "results", f"nothing can be written to {config.results}")
    check_tracking(config, add)
    on_cluster = cluster or shutil.which("sbatch") is not None
    gpus_there = check_slurm(config, add, "fail" if cluster else "warn") if on_cluster else False
    check_gpu(config, add, gpu_here, gpus_there)


def check_scratch(folder: Path, add: Add) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
    except OSError as error:
        add("fail", "scratch", f"no temporary file can be written ({type(error).__name__}); set TMPDIR")
        return
    free = shutil.disk_usage(folder).free / 2**30
    add("ok" if free >= SCRATCH_GB else "warn", "scratch", f"{free:.1f} GB free for temporary files")


def check_gpu(config: Config, add: Add, here: bool, there: bool) -> None:
    """Whether there is a GPU `here`, or `there` on the cluster, and torch can use it."""
    wanted = config.train.device
    if wanted == "cuda" and not (here or there):
        add("fail", "gpu", "train.device is cuda, and there is no GPU here or in a partition of the cluster")
    elif here and wanted != "cpu":
        import torch

        if torch.cuda.is_available():
            add("ok", "gpu", "a GPU is here, torch sees it")
            return
        built = "its driver is not found" if torch.version.cuda else "this torch is built for processors only"
        detail = f"a GPU is here, but torch {torch.__version__} does not see it: {built}"
        add("fail" if wanted == "cuda" else "warn", "gpu", detail)
    elif here or there:
        add("ok", "gpu", "a GPU is here" if here else "a partition of the cluster has GPUs")


def check_tracking(config: Config, add: Add) -> None:
    store = Store.of(config)
    if store.remote:
        try:
            connect(store)
        except FdamedError as error:
            add("warn", "tracking", f"{error.what}; meanwhile runs are kept in files")
        else:
            add("ok", "tracking", "the tracking server answers")
    elif store.database:
        fault = _database_fault(store.database)
        add("fail" if fault else "ok", "tracking", fault or "MLflow's store can be written")
    else:
        add("ok", "tracking", "a store of another kind, not checked")


def _database_fault(file: Path) -> str:
    """Why a SQLite file cannot be written; empty: it can. It is locked briefly, and not changed."""
    if not os.access(nearest(file.parent), os.W_OK | os.X_OK):
        return f"the folder of MLflow's store cannot be written: {file.parent}"
    if not file.exists():
        return ""
    try:
        with closing(sqlite3.connect(file, timeout=2)) as base:
            base.execute("BEGIN IMMEDIATE")
            base.execute("SELECT count(*) FROM sqlite_master")
            base.rollback()
    except sqlite3.Error as error:
        return f"MLflow's store cannot be written ({error}): {file}"
    return ""


def check_slurm(config: Config, add: Add, severity: str) -> bool:
    """Check that jobs can be submitted; True: some partition has GPUs."""
    try:
        add("ok", "plug-in", f"{PLUGIN} {importlib.metadata.version(PLUGIN)}")
    except importlib.metadata.PackageNotFoundError:
        add(severity, "plug-in", "Snakemake has no SLURM plug-in; pip install 'fdamed[slurm]'")
    if shutil.which("sbatch") is None:
        add(severity, "sbatch", "there is no sbatch on this machine; run on the cluster's login node")
        return False
    answer = _slurm("sinfo", "--noheader", "--format=%P|%a|%l|%D|%G")
    if answer is None:
        add(severity, "sbatch", f"SLURM's controller does not answer within {PATIENCE} s")
        return False
    partitions = [line.split("|") for line in dict.fromkeys(answer.split())]
    listed = ", ".join(dict.fromkeys(f"{name} (limit {limit})" for name, _, limit, *_ in partitions))
    gpu = ["--gres=gpu:1"] if config.train.device == "cuda" else []
    if _slurm("sbatch", "--test-only", "--ntasks=1", "--time=1", "--mem=500", *gpu, "--wrap=true") is None:
        add("warn", "sbatch", f"a trial job was refused (partition or account? profiles/slurm); partitions: {listed}")
    else:
        add("ok", "sbatch", f"jobs are accepted; partitions: {listed}")
    return any("gpu" in words[-1] for words in partitions)


def _slurm(*command: str) -> str | None:
    """SLURM's output; None: it refuses, or does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None
