"""One study across three hospitals for all tests of this folder: NVIDIA FLARE on loopback, all stopped at the end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.networks import HOSPITALS, Federation, every_run

STATEFUL = {"method": "scaffold", "train": {"source": {"optimizer": "sgd", "lr": 0.01, "batch": 8}}}
FAULTS = ("resident", "during", "job", "engine", "lead")
"""Runs for the tests of faults: all of a method whose hospitals have a state."""


def free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    runs = {f"fault_{name}": STATEFUL for name in FAULTS} | every_run()
    made = Federation(tmp_path_factory.mktemp("network"), free_port(), {"runs": runs})
    made.prepare()
    try:
        for name in HOSPITALS:
            made.serve(name)
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def alone(federation: Federation) -> Path:
    """Where a test finds the same study in one process."""
    return federation.folder
