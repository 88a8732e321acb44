"""Missing and rejected updates: which client, when and why."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fdamed.report.section import Section
from fdamed.report.study import Study

ROUNDS = 12
"""Rounds that are listed."""


def grouped(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """One row per run, target, hospital and reason, most frequent first."""
    out = []
    for (run, target, hospital, reason), part in frame.groupby(["run", "target", "hospital", "reason"], sort=False):
        rounds = sorted(set(part["round"]))
        more = f" and {len(rounds) - ROUNDS} more" if len(rounds) > ROUNDS else ""
        out.append(
            {"run": run, "target": target, "hospital": hospital, "reason": reason, "times": len(part)}
            | {"rounds": ", ".join(map(str, rounds[:ROUNDS])) + more}
            | {"seeds": ", ".join(map(str, sorted(set(part["seed"]))))}
        )
    return sorted(out, key=lambda line: -line["times"])


def needs(study: Study) -> bool:
    return not study.absences.empty


SECTION = Section(
    88,
    "Missing and rejected updates",
    needs,
    tables=lambda study: {"absences": study.absences},
    context=lambda study: {"rows": grouped(study.absences)},
)
