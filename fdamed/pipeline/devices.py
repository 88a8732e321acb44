"""The device that this process trains on, and what of it decides bits."""

from __future__ import annotations

import os
from typing import Any

import torch

from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.gpus import gpus, lease


def device(config: Config) -> str:
    """As torch names it. `auto` and `cuda` take a GPU that no other job of fdamed has, until this process ends."""
    wanted = config.train.device
    if wanted == "cpu":
        return wanted
    if wanted == "mps":
        return _checked(wanted, torch.backends.mps.is_available(), "no Metal device (MPS)")
    if wanted in ("auto", "cuda"):
        lease(config.train.jobs_per_gpu)
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = torch.device(wanted).index or 0
    return _checked(wanted, number < count, "no CUDA device" if not count else f"no GPU {number}, but {count} in all")


def without_gpu(config: Config) -> Config:
    """The same study on the CPU: a server over a network only aggregates, and needs no GPU where it is."""
    return config.model_copy(update={"train": config.train.model_copy(update={"device": "cpu"})})


def _checked(wanted: str, there: bool, what: str) -> str:
    if not there:
        raise FdamedError(f"there is {what}", "train.device", "Use `auto` or `cpu`, or a machine that has it.")
    return wanted


def facts(config: Config, precision: str) -> dict[str, Any]:
    """What of the device decides bits: its kind; of a GPU also model, driver, CUDA, cuDNN and TF32."""
    name = device(config)
    kind = torch.device(name).type
    if kind != "cuda":
        return {"device": kind}
    gpu = {
        "model": torch.cuda.get_device_name(name),
        "driver": gpus()[0].driver if gpus() else "unknown",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "tf32": precision == "tf32",
        "override": os.environ.get("NVIDIA_TF32_OVERRIDE", ""),
    }
    return {"device": kind, "gpu": gpu}
