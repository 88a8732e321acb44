"""What all tests share: one thread, for the number of threads is part of the bits."""

from __future__ import annotations

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
