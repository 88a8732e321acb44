"""Missing and rejected updates: which client, when and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from fdamed.report.section import Section

LISTED = 12
"""Rounds and seeds that a cell lists."""


def grouped(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """One row per run, target, hospital and reason, most frequent first."""
    keys = ["run", "target", "hospital", "reason"]
    rows = [
        dict(zip(keys, names, strict=True))
        | {"times": len(part), "rounds": _listed(part["round"]), "seeds": _listed(part["seed"])}
        for names, part in frame.groupby(keys, sort=False)
    ]
    return sorted(rows, key=lambda row: -row["times"])


def _listed(numbers: Iterable[int]) -> str:
    known = sorted(set(numbers))
    return ", ".join(map(str, known[:LISTED])) + (f" and {len(known) - LISTED} more" if len(known) > LISTED else "")


SECTION = Section(
    88,
    "Missing and rejected updates",
    lambda study: len(study.absences),
    tables=lambda study: {"absences": study.absences},
    context=lambda study: {"rows": grouped(study.absences)},
)
