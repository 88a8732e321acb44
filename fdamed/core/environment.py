"""What every process sets before its imports: no code from files, no telemetry, short waits; how it keeps memory."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import MutableMapping

REQUIRED = {
    "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",  # blocks even an explicit torch.load(..., weights_only=False)
    "MONAI_EVAL_EXPR": "0",  # MONAI's bundles evaluate `$` expressions otherwise
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Always set."""
FORBIDDEN = ("MONAI_ALLOW_PICKLE", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
"""Always removed."""
CHOSEN = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # numbers of GPUs as nvidia-smi has them
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it some sums on a GPU come out differently from run to run
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # with MLflow's seven a silent server holds a call for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
}
"""Defaults; a slow server may be given more time."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`."""
LARGEST_BLOCK = 1 << 25
"""Bytes: what is larger goes back to the system when it is freed. glibc raises its own limit up to here; larger blocks
in the heap would leave holes that are too small for the next."""
KEPT = 1 << 30
"""Bytes at the end of the heap that may be kept; by default twice the largest block that was freed."""


def secure(environment: MutableMapping[str, str] = os.environ) -> None:
    """Secure this process and its children; called once, when the command line starts."""
    environment.update(REQUIRED)
    for name in FORBIDDEN:
        environment.pop(name, None)
    for name, value in CHOSEN.items():
        environment.setdefault(name, value)


def keep_memory() -> None:
    """Let the allocator keep what tensors free, for the next batch.

    By default glibc returns large blocks to the system and gets them back page by page: a tenth of the CPU of training
    and a quarter of that of predicting (decision 0096). Other allocators have no such setting and are left alone.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)
        mallopt(M_TRIM_THRESHOLD, KEPT)


def cores() -> int:
    """Cores that this process may use; macOS does not say which, and has no other limit than all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
