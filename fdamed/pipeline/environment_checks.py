"""Read-only checks of the environment: disk space, MLflow store, GPU and SLURM."""

from __future__ import annotations

import base64
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from fdamed.config.study import Config
from fdamed.core.files import nearest

Say = Callable[[str, str, str], None]
"""Reports (status, check, detail)."""
PLUGIN = "snakemake_executor_plugin_slurm"
SCRATCH_GB = 1.0
"""Space for the temporary files of a job; less is a warning."""
PATIENCE = 20
"""Timeout for SLURM, in seconds."""
EXPERIMENTS = "/api/2.0/mlflow/experiments/search?max_results=1"


def look_around(config: Config, say: Say, gpu_here: bool, cluster: bool) -> None:
    """Check everything but the data; the cluster if requested, or if sbatch exists."""
    _scratch(Path(tempfile.gettempdir()), say)
    _results(Path(config.results), say)
    _tracking(config, say)
    on_cluster = cluster or shutil.which("sbatch") is not None
    gpus_there = _slurm(config, say, "fail" if cluster else "warn") if on_cluster else False
    _gpu(config, say, gpu_here, gpus_there)


def _gpu(config: Config, say: Say, here: bool, there: bool) -> None:
    wanted = config.train.device
    if wanted == "cuda" and not (here or there):
        say("fail", "gpu", "train.device is cuda, and no GPU is to be seen here or in a partition of the cluster")
    elif here and wanted != "cpu":
        fault = _torch_fault()
        say(("fail" if wanted == "cuda" else "warn") if fault else "ok", "gpu", fault or "a GPU is here, torch sees it")
    elif here or there:
        say("ok", "gpu", "a GPU is here" if here else "a partition of the cluster has GPUs")


def _torch_fault() -> str:
    """Why torch cannot use the GPU; empty: it can."""
    import torch

    if torch.cuda.is_available():
        return ""
    built = "its driver is not found" if torch.version.cuda else "this torch is built for processors only"
    return f"a GPU is here, but torch {torch.__version__} does not see it: {built}"


def _scratch(folder: Path, say: Say) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
    except OSError as error:
        say("fail", "scratch", f"nothing can be written for a moment ({type(error).__name__}); set TMPDIR")
        return
    free = shutil.disk_usage(folder).free / 2**30
    detail = f"{free:.1f} GB free for temporary files"
    say("ok" if free >= SCRATCH_GB else "warn", "scratch", detail)


def _results(folder: Path, say: Say) -> None:
    if not os.access(nearest(folder), os.W_OK | os.X_OK):
        say("fail", "results", f"nothing can be written to {folder}")


def _tracking(config: Config, say: Say) -> None:
    uri = config.tracking.uri or f"sqlite:///{Path(config.results).absolute()}/mlflow/mlflow.db"
    scheme = urlsplit(uri).scheme
    if scheme in ("http", "https"):
        fault = _server_fault(uri)
        kept = "; runs are kept in files until it does"
        say("warn" if fault else "ok", "tracking", fault + kept if fault else "the tracking server answers")
    elif scheme == "sqlite":
        file = Path(uri.removeprefix("sqlite:///"))
        fault = _database_fault(file)
        say("fail" if fault else "ok", "tracking", f"{fault}: {file}" if fault else "MLflow's store can be written")
    else:
        say("ok", "tracking", f"a {scheme} store, not looked at")


def _server_fault(uri: str) -> str:
    """Why an MLflow server cannot be used; empty: it lists its experiments."""
    parts = urlsplit(uri)
    question = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}{EXPERIMENTS}"
    user = parts.username or os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    password = parts.password or os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    known = base64.b64encode(f"{user}:{password}".encode()).decode()
    headers = {"Authorization": f"Bearer {token}" if token else f"Basic {known}"} if token or user else {}
    try:
        # The scheme is http or https: the caller has looked.
        with urlopen(Request(question, headers=headers), timeout=5) as answer:  # noqa: S310
            listed = "experiments" in json.load(answer)
    except HTTPError as error:
        return f"the tracking server refuses us (HTTP {error.code}); look at the user, the password and the path"
    except (OSError, HTTPException) as error:
        return f"the tracking server does not answer ({type(error).__name__})"
    except ValueError:
        listed = False
    return "" if listed else "what answers there is no MLflow server"


def _database_fault(file: Path) -> str:
    """Why a SQLite file cannot be written; empty: it can. It is locked briefly, and not changed."""
    if not os.access(nearest(file.parent), os.W_OK | os.X_OK):
        return "the folder of MLflow's store cannot be written"
    if not file.exists():
        return ""
    try:
        with closing(sqlite3.connect(file, timeout=2)) as base:
            base.execute("BEGIN IMMEDIATE")
            base.execute("SELECT count(*) FROM sqlite_master")
            base.rollback()
    except sqlite3.Error as error:
        return f"MLflow's store cannot be written ({error})"
    return ""


def _slurm(config: Config, say: Say, grave: str) -> bool:
    """Check that jobs can be submitted; True: some partition has GPUs."""
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
    """SLURM's output; None: it refuses, or does not answer."""
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return None
    return told.stdout if told.returncode == 0 else None
