"""Checks of the machine, which write nothing: results folder, SLURM, GPU and its memory, disk, pretrained weights."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fdamed.config.study import Config
from fdamed.core.environment import cores
from fdamed.core.errors import FdamedError
from fdamed.core.files import free, megabytes, nearest
from fdamed.core.gpus import gpus, takes_gpu
from fdamed.models import backbone
from fdamed.pipeline.speed import gpu_memory

Add = Callable[..., None]
"""Reports (status, check, detail), and how to fix a failure."""
PLUGIN = "snakemake-executor-plugin-slurm"
PATIENCE = 20
"""Timeout for SLURM, in seconds."""


def describe(config: Config) -> dict[str, Any]:
    """Cores, memory, whether there is a GPU, and the free space for results."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": cores(),
        "memory_gb": round(memory / 2**30, 1),
        "gpu": Path("/proc/driver/nvidia/gpus").is_dir() or shutil.which("rocm-smi") is not None,
        "free_gb": round(free(Path(config.results)) / 2**30, 1),
    }


def check_machine(config: Config, add: Add, machine: dict[str, Any], cluster: bool) -> None:
    """Check everything but the data; the cluster if requested, or if sbatch exists."""
    if not os.access(nearest(Path(config.results)), os.W_OK | os.X_OK):
        what = f"the folder {config.results} is not writable"
        add("fail", "results", what, "Change its permissions, or name another folder in `results`.")
    on_cluster = cluster or shutil.which("sbatch") is not None
    gpus_there = check_slurm(config, add, "fail" if cluster else "warn") if on_cluster else False
    check_gpu(config, add, machine["gpu"], gpus_there)
    _check_gpu_memory(config, add)
    _check_space(config, add, machine["cores"])
    _check_weights(config, add)


def check_gpu(config: Config, add: Add, here: bool, there: bool) -> None:
    """Whether there is a GPU `here`, or `there` on the cluster, and torch can use it."""
    wanted = config.train.device
    if wanted.startswith("cuda") and not (here or there):
        what = f"train.device is {wanted}, and there is no GPU here or in a partition of the cluster"
        add("fail", "gpu", what, "Set train.device: auto or cpu, or run where there is a GPU.")
    elif here and wanted not in ("cpu", "mps"):
        import torch

        if torch.cuda.is_available():
            add("ok", "gpu", "torch can use the GPU here")
            return
        built = "its driver is not found" if torch.version.cuda else "this torch is built for CPUs only"
        detail = f"a GPU is here, but torch {torch.__version__} does not see it: {built}"
        add(
            "warn" if wanted == "auto" else "fail",
            "gpu",
            detail,
            "See docs/how_to/use_a_gpu.md, or set train.device: cpu.",
        )
    elif here or there:
        add("ok", "gpu", "a GPU is here" if here else "a partition of the cluster has GPUs")


def check_slurm(config: Config, add: Add, severity: str) -> bool:
    """Check that jobs can be submitted; True: some partition has GPUs."""
    try:
        add("ok", "plug-in", f"{PLUGIN} {importlib.metadata.version(PLUGIN)}")
    except importlib.metadata.PackageNotFoundError:
        add(severity, "plug-in", "Snakemake has no SLURM plug-in", "pip install 'fdamed[slurm]'")
    if shutil.which("sbatch") is None:
        add(severity, "sbatch", "there is no sbatch on this machine", "Run on the cluster's login node.")
        return False
    answer = _slurm("sinfo", "--noheader", "--format=%P|%a|%l|%D|%G")
    if answer is None:
        what = f"SLURM's controller does not answer within {PATIENCE} s"
        add(severity, "sbatch", what, "Try `sinfo`; if it hangs, too, ask the cluster's administrators.")
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


def _check_gpu_memory(config: Config, add: Add) -> None:
    """Whether training fits into the smallest GPU here; images that do not fit beside it are sent batch by batch."""
    if not takes_gpu(config.train.device):
        return
    parts = gpu_memory(config)
    needed = config.train.jobs_per_gpu * sum(parts.values())
    detail = f"training takes about {megabytes(needed)} of a GPU: " + ", ".join(
        f"{what} {megabytes(n)}" for what, n in parts.items()
    )
    if config.train.jobs_per_gpu > 1:
        detail += f"; times {config.train.jobs_per_gpu} jobs"
    smallest = min((gpu.memory_mb * 2**20 for gpu in gpus() if gpu.memory_mb), default=None)
    if smallest is None:
        add("ok", "gpu memory", detail)
    elif needed < smallest:
        add("ok", "gpu memory", f"{detail}; the smallest GPU here has {megabytes(smallest)}")
    else:
        fix = "Choose a smaller batch or image.size, train.precision: bfloat16, or another GPU."
        add("fail", "gpu memory", f"{detail}; the smallest GPU here has only {megabytes(smallest)}", fix)


def _check_space(config: Config, add: Add, jobs: int) -> None:
    """Space for the final weights of all runs, and for the checkpoints of `jobs` trainings at a time."""
    model = 4 * sum(p.numel() for p in backbone.build(config.model).parameters())
    each, names = len(config.split.targets) * len(config.seeds), config.trained_runs()
    runs, kept = each * len(names), each * len(config.expanded_runs() | names)
    needed, left = model * (kept + 3 * min(runs, jobs)), free(Path(config.results))
    detail = f"{runs} trainings need about {megabytes(needed)} for weights and checkpoints, {megabytes(left)} are free"
    fix = f"Free space in {config.results}, or name another folder in `results`."
    add("ok" if left > needed else "fail", "checkpoints", detail, fix)


def _check_weights(config: Config, add: Add) -> None:
    """Whether the pretrained weights fit, and whether a paper's cohort has any."""
    if config.model.weights:
        net = backbone.build(config.model)
        try:
            backbone.load_pretrained(net, Path(config.model.weights))  # type: ignore[arg-type]  # only ResNets have them
        except FdamedError as error:
            add("fail", "weights", f"{error.what} ({error.where})", error.fix)
        else:
            add("ok", "weights", f"pretrained weights of the whole {config.model.backbone}")
    elif getattr(config.data, "paper_split", "") and config.phantom is None:
        detail = (
            "NO PRETRAINED WEIGHTS: the healthcare paper starts from ImageNet's. From random weights its rounds are "
            "too few, gradient projection is hardly more than the target alone, and its results cannot be reproduced. "
            "Name the file in model.weights (docs/how_to/faq.md)"
        )
        add("warn", "weights", detail)
