"""A run that was cut short after a given round, in this process: what the tests of damage start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from fdamed.federation.storage.checkpoint import Checkpoints
from tests.faults import studies


class Split(BaseException):
    """As sudden as a signal."""


def cut_after(folder: Path, round: int, run: str) -> None:
    """Train until this round is on disk, and no further."""
    save = Checkpoints.save

    def end(self: Checkpoints, number: int, *rest: object) -> None:
        save(self, number, *rest)
        if number == round:
            raise Split

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", end)
        with pytest.raises(Split):
            studies.fdamed(folder, *single(run))


def single(run: str) -> list[str]:
    return ["federate", "--run", run, "--target", studies.TARGET, "--seed", "0"]


def finish(folder: Path, run: str) -> dict[str, bytes]:
    """Go on to the end, keep the last checkpoint, and give what must be the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fdamed.cli.commands.federate.clear", lambda *_: None)
        assert studies.fdamed(folder, *single(run)) == 0
    assert studies.left_over(folder) == []
    return studies.outcome(folder, run)
