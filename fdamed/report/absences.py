"""Missing and rejected updates, from the logs of the runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from fdamed.core.errors import FdamedError
from fdamed.core.files import read_lines
from fdamed.core.run_record import SERVER, Record
from fdamed.evaluation.run_tables import ALL_TARGETS

COLUMNS = ["run", "target", "seed", "round", "hospital", "step", "reason"]


def absences(runs: Path, records: Iterable[Record]) -> pd.DataFrame:
    """One row for each update that was missing or rejected."""
    rows = []
    for record in records:
        path = runs / record.run / record.target / str(record.seed) / "absences.jsonl"
        if not path.is_file():
            continue
        try:
            for line in read_lines(path):
                head = (record.run, record.target, record.seed, int(line["round"]))
                rows.append((*head, str(line["client"]), str(line["step"]), str(line["why"])))
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError):
            where = "/".join(path.parts[-5:])
            fix = "Delete the run's folder and start again; the run is trained anew."
            raise FdamedError("the log of missing updates is not readable", where, fix) from None
    return pd.DataFrame(rows, columns=COLUMNS)


def remarks(frame: pd.DataFrame, records: Sequence[Record]) -> dict[tuple[str, str], str]:
    """(target, run) -> what the score table must say about the run, over all seeds."""
    missed, lost = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    out: dict[tuple[str, str], list[str]] = {}
    for target, run in zip(frame["target"], frame["run"], strict=True):
        missed.update([(str(target), str(run)), (ALL_TARGETS, str(run))])
    for record in records:
        for place in (record.target, ALL_TARGETS):
            lost[place, record.run] += sum(1 for row in record.rounds if row.get("lost"))
            if any(sent.kind == "features" and sent.client != SERVER for sent in record.sent):
                out.setdefault((place, record.run), ["sends features of single images"])
    for counts, what, done in ((missed, "update", "missing or rejected"), (lost, "round", "lost")):
        for key, n in counts.items():
            if n:
                out.setdefault(key, []).append(f"{n} {what}{'s' if n > 1 else ''} {done}")
    return {key: ", ".join(parts) for key, parts in out.items()}
