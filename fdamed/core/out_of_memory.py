"""Out of memory, on the host or on the GPU: told with the batch that was too large, and never mended by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fdamed.core.errors import FdamedError

TEXTS = ("can't allocate memory", "out of memory", "bad allocation", "Cannot allocate memory")
"""What torch says, as a plain RuntimeError, when the host gives it no more."""


@contextmanager
def telling_batch(doing: str, where: str, batches: str) -> Iterator[None]:
    """Turn want of memory into an error that names the batch sizes, such as `train.source.batch 32`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise FdamedError(
            f"out of memory in {doing} ({batches})",
            where,
            "Give the job more memory, run fewer at a time, or choose a smaller batch: that changes the results, "
            "so it never happens by itself. The last checkpoint is kept.",
        ) from None


def out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in TEXTS)
