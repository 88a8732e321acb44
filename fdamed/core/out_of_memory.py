"""Reports out-of-memory errors with the batch size, which is never reduced automatically."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fdamed.core.errors import FdamedError

TEXTS = ("can't allocate memory", "out of memory", "bad allocation", "Cannot allocate memory")
"""Messages of torch's plain RuntimeError when the host is out of memory."""


@contextmanager
def telling_batch(doing: str, where: str, batches: str) -> Iterator[None]:
    """Turn out-of-memory errors into one that names the batch sizes, such as `train.source.batch 32`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise FdamedError(
            f"out of memory in {doing} ({batches})",
            where,
            "Give the job more memory, run fewer jobs at a time, or choose a smaller batch, which changes the results. "
            "The last checkpoint is kept.",
        ) from None


def out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in TEXTS)
