"""The study that most tests start from: prepared, run whole, and cut short after its third round."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import studies
from tests.faults.interrupted import cut_after, finish

RUN = "scaffold"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    return studies.prepare(tmp_path_factory.mktemp("faults") / "study")


@pytest.fixture(scope="module")
def expected(prepared: Path) -> dict[str, bytes]:
    """What the uninterrupted run comes to."""
    return finish(studies.copy(prepared, prepared.parent / "whole"), RUN)


@pytest.fixture(scope="module")
def third_round(prepared: Path) -> Path:
    """The study after round 3 of 5."""
    folder = studies.copy(prepared, prepared.parent / "split")
    cut_after(folder, 3, RUN)
    return folder


@pytest.fixture
def cut(third_round: Path, tmp_path: Path) -> Path:
    return studies.copy(third_round, tmp_path / "study")
