"""What all tests share: one thread, for the number of threads is part of the bits."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real radiographs, where a machine has one."""
    if not SHARED.is_dir():
        pytest.skip("no real data beside the repository")
    return SHARED


class _Stderr(logging.StreamHandler):
    """Writes to whatever standard error is now, so that capsys and capfd see the log."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self):
        return sys.stderr


@pytest.fixture(autouse=True)
def log_on_stderr():
    """Show what the package logs, as the command line does."""
    logger, handler = logging.getLogger("fdamed"), _Stderr()
    before, level = logger.handlers, logger.level
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    yield
    logger.handlers = before
    logger.setLevel(level)
