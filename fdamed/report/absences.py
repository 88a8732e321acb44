"""Missing and rejected updates, from the logs of the runs."""

from __future__ import annotations

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
    for r in records:
        path = runs / r.run / r.target / str(r.seed) / "absences.jsonl"
        try:
            for line in read_lines(path) if path.is_file() else ():
                update = (str(line["client"]), str(line["step"]), str(line["why"]))
                rows.append((r.run, r.target, r.seed, int(line["round"]), *update))
        except (KeyError, TypeError, ValueError):
            where = "/".join(path.parts[-5:])
            fix = "Delete the run's folder and start again; the run is trained anew."
            raise FdamedError("the log of missing updates is not readable", where, fix) from None
    return pd.DataFrame(rows, columns=COLUMNS)


def remarks(frame: pd.DataFrame, records: Sequence[Record]) -> dict[tuple[str, str], str]:
    """(target, run) -> what the score table must say about the run, over all seeds."""
    out: dict[tuple[str, str], str] = {}
    for target in (ALL_TARGETS, *{r.target for r in records}):
        here = [r for r in records if target in (ALL_TARGETS, r.target)]
        for run in {r.run for r in here}:
            mine = [r for r in here if r.run == run]
            missed = (frame["run"] == run) & frame["target"].isin([r.target for r in mine])
            features = any(s.kind == "features" and s.client != SERVER for r in mine for s in r.sent)
            counts = {
                "update{} missing or rejected": int(missed.sum()),
                "round{} lost": sum(bool(row.get("lost")) for r in mine for row in r.rounds),
            }
            parts = [f"{n} {words.format('s' if n > 1 else '')}" for words, n in counts.items() if n]
            out[target, run] = ", ".join([*(["sends features of single images"] if features else []), *parts])
    return out
