"""Communication: what each hospital sent, by run and kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.core.run_record import SERVER
from fdamed.report.plots.bars import bars
from fdamed.report.section import Section
from fdamed.report.study import Study

MANY = 20
"""Sources that a table has room for; of more it shows the smallest, the median and the largest."""
KINDS = ("weights", "update", "statistic", "features", "scalar", "count")


def by_run(study: Study, value: str) -> pd.DataFrame:
    """(run, kind) x hospital: the sum of `value`, mean over the targets for which the run is finished."""
    targets = study.traffic.groupby("run")["target"].nunique()
    table = study.sent.pivot_table(
        index=["run", "kind"], columns="hospital", values=value, aggfunc="sum", fill_value=0.0
    )
    return table.div(targets, axis=0, level="run").reindex(list(study.runs), level="run")


def by_kind(study: Study) -> pd.DataFrame:
    """Runs x kinds: MB per round sent by the hospitals; runs of a sweep as one, their mean."""
    hospitals = by_run(study, "mb_per_round").drop(columns=SERVER, errors="ignore").sum(axis=1)
    table = hospitals.unstack(fill_value=0).reindex(list(study.runs), fill_value=0.0)
    table = table[[kind for kind in table if table[kind].any()]]
    order = sorted(table.columns, key=lambda k: (KINDS.index(k) if k in KINDS else len(KINDS), str(k)))
    return table[order].groupby(lambda run: study.fold.get(run, run), sort=False).mean()


def rows(study: Study, clients: Sequence[str]) -> list[dict[str, Any]]:
    """One row per run and kind: bytes of each hospital in a run, bytes that the server forwarded, MB per round."""
    sums = by_run(study, "bytes").reindex(columns=[*clients, SERVER], fill_value=0.0)
    per_round = by_run(study, "mb_per_round").sum(axis=1)
    return [
        {"run": run, "kind": kind, "bytes": [round(v) for v in cells[:-1]], "forwarded": round(cells[-1])}
        | {"mb": float(per_round[run, kind])}
        for (run, kind), cells in zip(sums.index, sums.to_numpy(), strict=True)
    ]


def columns(study: Study) -> dict[str, str]:
    """Hospitals that the table shows -> the headings of their columns."""
    split = study.config.split
    sources = [p for p in split.clients if p not in split.targets]
    if len(sources) <= MANY:
        return {p: p for p in split.clients}
    spent = study.sent.groupby("hospital")["bytes"].sum()
    few = smallest_median_largest(sources, lambda client: float(spent.get(client, 0.0)))
    return {t: t for t in split.targets} | {p: f"{p}: {what}" for p, what in few.items()}


def smallest_median_largest(sources: Sequence[str], size: Callable[[str], float]) -> dict[str, str]:
    """Three sources -> which they are among how many."""
    ordered = sorted(sources, key=lambda client: (size(client), client))
    places = {"smallest": 0, "median": len(ordered) // 2, "largest": len(ordered) - 1}
    return {ordered[i]: f"{what} of {len(ordered)} sources" for what, i in places.items()}


def plots(study: Study) -> dict[str, Markup]:
    return {"sent": bars(by_kind(study), "MB per round sent by the hospitals, by run and kind", "MB per round")}


def context(study: Study) -> dict[str, Any]:
    shown = columns(study)
    kinds = [str(kind) for kind in by_kind(study).columns]
    return {"kinds": kinds, "clients": list(shown.values()), "sent": rows(study, list(shown))}


SECTION = Section(70, "Communication", plots=plots, tables=lambda study: {"bytes": study.traffic}, context=context)
