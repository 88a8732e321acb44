"""The hospitals on the page: their sizes, what left them, what the guard found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from fdamed.config.study import Config
from fdamed.core.disclosure import vague
from fdamed.core.run_record import SERVER

SHOWN = 20
"""Sources that a table has room for; of more it shows the one with least, the median and the one with most."""
KINDS = ("weights", "update", "statistic", "features", "scalar", "count")


def _targets(traffic: pd.DataFrame) -> pd.Series[int]:
    """Run -> targets for which it has a finished run: what its bytes are a mean over."""
    return traffic.groupby("run")["target"].nunique()


def by_kind(sent: pd.DataFrame, traffic: pd.DataFrame, runs: list[str], fold: Mapping[str, str]) -> pd.DataFrame:
    """Runs x kinds: MB a round out of the hospitals; swept runs as one, their mean."""
    sent = sent[sent["hospital"] != SERVER]
    table = sent.pivot_table(index="run", columns="kind", values="mb_per_round", aggfunc="sum", fill_value=0.0)
    table = table.reindex(runs, fill_value=0.0).astype("float64")
    table = table.div(_targets(traffic).reindex(runs, fill_value=1), axis=0)
    order = sorted(table.columns, key=lambda k: (KINDS.index(k) if k in KINDS else len(KINDS), str(k)))
    return table[order].groupby(lambda run: fold.get(run, run), sort=False).mean()


def sent_rows(sent: pd.DataFrame, traffic: pd.DataFrame, clients: list[str], runs: list[str]) -> list[dict[str, Any]]:
    """One row a run and kind: bytes of each hospital in a run, what the server passed on of them, a round's of all."""
    targets = _targets(traffic)
    sums = sent.groupby(["run", "kind", "hospital"])["bytes"].sum()
    per_round = sent.groupby(["run", "kind"])["mb_per_round"].sum()
    order = sorted(per_round.index, key=lambda pair: (runs.index(pair[0]), pair[1]))
    return [
        {
            "run": run,
            "kind": kind,
            "bytes": [round(float(sums.get((run, kind, client), 0.0)) / int(targets[run])) for client in clients],
            "passed": round(float(sums.get((run, kind, SERVER), 0.0)) / int(targets[run])),
            "mb": float(per_round[run, kind]) / int(targets[run]),
        }
        for run, kind in order
    ]


def columns(sent: pd.DataFrame, config: Config) -> dict[str, str]:
    """Hospitals that the table of bytes shows -> what their columns are called."""
    sources = [p for p in config.split.clients if p not in config.split.targets]
    if len(sources) <= SHOWN:
        return {p: p for p in config.split.clients}
    spent = sent.groupby("hospital")["bytes"].sum()
    few = _few(sources, lambda client: float(spent.get(client, 0.0)))
    return {t: t for t in config.split.targets} | {p: f"{p}: {what}" for p, what in few.items()}


def _few(sources: Sequence[str], size: Callable[[str], float]) -> dict[str, str]:
    """The sources with least, median and most of something -> what they are among how many."""
    ordered = sorted(sources, key=lambda client: (size(client), client))
    places = {"least": 0, "median": len(ordered) // 2, "most": len(ordered) - 1}
    return {ordered[i]: f"{what} of {len(ordered)} sources" for what, i in places.items()}


def cohort_rows(sizes: pd.DataFrame, config: Config) -> list[dict[str, Any]]:
    """One row a hospital: images and rate by split, patients in all."""
    out = []
    for client, group in sizes.groupby("hospital", sort=False):
        cells = [
            (i, f"{r:.0%} pos." if isinstance(r, float) and config.model.classes == 2 else "")
            for i, r in zip(group["images"], group["rate"], strict=True)
        ]
        meaning = config.split.clients.get(str(client), "")
        out.append({"hospital": client, "meaning": meaning, "cells": cells, "patients": list(group["patients"])[-1]})
    sources = {str(row["hospital"]): row for row in out if row["hospital"] not in config.split.targets}
    if len(sources) <= SHOWN:
        return out

    def images(client: str) -> float:
        total = sources[client]["cells"][-1][0]
        return float(total) if isinstance(total, int | float) else 0.0

    few = _few(list(sources), images)
    kept = [row for row in out if row["hospital"] in config.split.targets]
    return kept + [sources[client] | {"meaning": what} for client, what in few.items()]


def leakage(found: Mapping[str, Any], smallest: int) -> list[tuple[bool, str]]:
    """What the guard found, good or bad, in words."""
    words = {
        "patients_in_two_splits": "patients stand in two splits",
        "patients_in_two_clients": "patients stand in two hospitals",
        "near_duplicates": "near-duplicate images across splits",
    }
    out = []
    for key, text in words.items():
        count = found.get(key)
        if count is None:
            out.append((False, f"not checked: {text}"))
        else:
            out.append((count == 0, f"{vague(int(count), smallest)} {text}"))
    return out
