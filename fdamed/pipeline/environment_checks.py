"""Read-only checks of the environment: results folder, GPU and SLURM."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from fdamed.config.study import Config
from fdamed.core.files import nearest

Add = Callable[[str, str, str], None]
"""Reports (status, check, detail)."""
PLUGIN = "snakemake-executor-plugin-slurm"
PATIENCE = 20
"""Timeout for SLURM, in seconds."""


def check_environment(config: Config, add: Add, gpu_here: bool, cluster: bool) -> None:
    """Check everything but the data; the cluster if requested, or if sbatch exists."""
    if not os.access(nearest(Path(config.results)), os.W_OK | os.X_OK):
        add("fail", "results", f"the folder {config.results} is not writable")
    on_cluster = cluster or shutil.which("sbatch") is not None
    gpus_there = check_slurm(config, add, "fail" if cluster else "warn") if on_cluster else False
    check_gpu(config, add, gpu_here, gpus_there)


def check_gpu(config: Config, add: Add, here: bool, there: bool) -> None:
    """Whether there is a GPU `here`, or `there` on the cluster, and torch can use it."""
    wanted = config.train.device
    if wanted.startswith("cuda") and not (here or there):
        add("fail", "gpu", f"train.device is {wanted}, and there is no GPU here or in a partition of the cluster")
    elif here and wanted not in ("cpu", "mps"):
        import torch

        if torch.cuda.is_available():
            add("ok", "gpu", "torch can use the GPU here")
            return
        built = "its driver is not found" if torch.version.cuda else "this torch is built for CPUs only"
        detail = f"a GPU is here, but torch {torch.__version__} does not see it: {built}"
        add("warn" if wanted == "auto" else "fail", "gpu", detail)
    elif here or there:
        add("ok", "gpu", "a GPU is here" if here else "a partition of the cluster has GPUs")


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
    gpu = ["--gres=gpu:1"] if config.train.device.startswith("cuda") else []
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
