"""Score against time: what each round has cost until its end."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fdamed.core.run_record import Record
from fdamed.evaluation.run_tables import ALL_TARGETS


def on_cpu(record: Record) -> bool:
    """Whether one process did all the work on the CPU, so that its seconds do not depend on what else ran."""
    alone = record.facts.get("device") == "cpu" and (record.facts.get("train") or {}).get("transport") == "in_process"
    return alone and all("cpu" in row for row in record.timing)


def by_round(records: Sequence[Record]) -> pd.DataFrame:
    """One row a target, run and round: seconds until its end, of the CPU if all runs have them, mean over seeds."""
    column = "cpu" if all(on_cpu(r) for r in records) else "seconds"
    rows = []
    for record in records:
        total = 0.0
        for line in record.timing:
            total += float(line[column])
            rows.append((record.target, record.run, int(line["round"]), total))
    keys = ["target", "run", "round"]
    frame = pd.DataFrame(rows, columns=[*keys, "seconds"]).groupby(keys, sort=False).mean().reset_index()
    if frame["target"].nunique() > 1:
        means = frame.groupby(["run", "round"], sort=False)["seconds"].mean().reset_index()
        frame = pd.concat([means.assign(target=ALL_TARGETS), frame], ignore_index=True)
    return frame.assign(clock="CPU" if column == "cpu" else "wall")


def score_by_seconds(rounds: pd.DataFrame, spent: pd.DataFrame, main: str) -> pd.DataFrame:
    """Score of each judged round against the seconds until then; `rounds` as in `tables.rounds`."""
    judged = rounds[rounds["metric"] == f"test/{main}"]
    order = ["target", "run", "round", "seconds", "clock", "metric", "mean", "low", "high", "seeds"]
    return judged.merge(spent, on=["target", "run", "round"], how="inner")[order]
