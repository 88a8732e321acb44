"""What left each hospital, and which single hospitals' models the server passed on, from the ledgers."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from fdamed.core.run_record import SERVER, Record
from fdamed.evaluation.run_tables import ALL_TARGETS

PASSED_ON = "individual"
"""Kind of a model of one hospital, not averaged with others, that the server hands to another hospital."""


def sent(records: Iterable[Record]) -> pd.DataFrame:
    """One row a target, run, hospital, receiver, step and kind: bytes and messages of a run, mean over its seeds.

    Rows of the server as the hospital are single hospitals' models that it passed on.
    """
    rows = []
    seeds: dict[tuple[str, str], int] = {}
    for record in records:
        where = (record.target, record.run)
        seeds[where] = seeds.get(where, 0) + 1
        rounds = max(1, len(record.rounds))
        rows += [
            (*where, record.method, s.client, s.to, s.step, s.kind, s.bytes, s.messages, s.bytes / 1e6 / rounds)
            for s in record.sent
            if s.client != SERVER or s.kind == PASSED_ON
        ]
    keys = ["target", "run", "method", "hospital", "to", "step", "kind"]
    frame = pd.DataFrame(rows, columns=[*keys, "bytes", "messages", "mb_per_round"])
    out = frame.groupby(keys, sort=False)[["bytes", "messages", "mb_per_round"]].sum().reset_index()
    # A seed in which a hospital sent nothing of a kind counts as zero: divide by the seeds, not by the rows.
    count = pd.Series([seeds[key] for key in zip(out["target"], out["run"], strict=True)], dtype="int64")
    for column in ("bytes", "messages", "mb_per_round"):
        out[column] = out[column] / count
    return out.assign(seeds=count).astype({"bytes": "float64", "messages": "float64", "mb_per_round": "float64"})


def by_run(records: Iterable[Record]) -> pd.DataFrame:
    """One row a target and run: MB out of all hospitals and into them in a run, MB out a round, mean over seeds."""
    rows = []
    for record in records:
        out = sum(pair[0] for pair in record.traffic.values()) / 1e6
        into = sum(pair[1] for pair in record.traffic.values()) / 1e6
        rows.append((record.target, record.run, record.method, out, into, out / max(1, len(record.rounds))))
    frame = pd.DataFrame(rows, columns=["target", "run", "method", "mb_out", "mb_in", "mb_out_per_round"])
    return frame.groupby(["target", "run", "method"], sort=False).mean().reset_index()


def by_round(records: Iterable[Record]) -> pd.DataFrame:
    """One row a target, run and round: MB sent so far, by hospitals and by the server, mean over seeds."""
    rows = []
    for record in records:
        total = 0
        for line in record.rounds:
            number = int(line["round"])
            total += sum(record.traffic.get(number, (0, 0)))
            rows.append((record.target, record.run, number, total / 1e6))
    keys = ["target", "run", "round"]
    frame = pd.DataFrame(rows, columns=[*keys, "mb_sent"]).groupby(keys, sort=False).mean().reset_index()
    if frame["target"].nunique() > 1:
        means = frame.groupby(["run", "round"], sort=False)["mb_sent"].mean().reset_index()
        frame = pd.concat([means.assign(target=ALL_TARGETS), frame], ignore_index=True)
    return frame


def score_by_bytes(rounds: pd.DataFrame, spent: pd.DataFrame, main: str) -> pd.DataFrame:
    """Score of each judged round against the MB sent until then; `rounds` as in `tables.rounds`."""
    judged = rounds[rounds["metric"] == f"test/{main}"]
    order = ["target", "run", "round", "mb_sent", "metric", "mean", "low", "high", "seeds"]
    return judged.merge(spent, on=["target", "run", "round"], how="left")[order]
