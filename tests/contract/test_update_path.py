"""The path of an update is short: a reader can follow it from a method's question to the aggregated model."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

from fdamed.methods.gp import GP
from tests.support import federation as hospitals

ROOT = Path(__file__).resolve().parents[2]
MOST_FILES = 14


def files_of_a_round() -> list[str]:
    """The files of fdamed that a round of GP enters, in the order of their first call; `len(data)` enters none."""
    method, server, entered = GP(), hospitals.in_process(), {}
    state = method.start(hospitals.theta())
    server.begin(1, 1)

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "__len__" and path.is_relative_to(ROOT / "fdamed"):
            entered[path.relative_to(ROOT).as_posix()] = True

    sys.setprofile(note)
    try:
        method.round(state, server)
    finally:
        sys.setprofile(None)
    return list(entered)


def test_a_round_enters_few_files_and_the_documentation_lists_them() -> None:
    files = files_of_a_round()
    assert files[0] == "fdamed/methods/gp.py" and "fdamed/federation/validation/validator.py" in files
    assert len(files) <= MOST_FILES, files
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    section = page.partition("## The path of an update")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`(fdamed/[\w/]+\.py)`", section))
    assert set(files) <= listed, set(files) - listed
