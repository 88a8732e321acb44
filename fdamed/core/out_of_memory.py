"""Reports out-of-memory errors with the batch size, which is never reduced automatically."""

from __future__ import annotations

import torch

from fdamed.core.errors import FdamedError

TEXTS = ("can't allocate memory", "out of memory", "bad allocation", "Cannot allocate memory")
"""Messages of torch's plain RuntimeError when the host is out of memory."""


def memory_error(error: Exception, doing: str, where: str, batches: str) -> FdamedError | None:
    """The error that names the batch sizes, such as `train.source.batch 32`; None: `error` is another one."""
    plain = isinstance(error, RuntimeError) and any(text in str(error) for text in TEXTS)
    if not plain and not isinstance(error, MemoryError | torch.OutOfMemoryError):
        return None
    return FdamedError(
        f"out of memory in {doing} ({batches})",
        where,
        "Give the job more memory, run fewer jobs at a time, or choose a smaller batch, which changes the results. "
        "The last checkpoint is kept.",
    )
