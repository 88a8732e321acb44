"""The tables that are written beside the page."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fdamed.evaluation import auxiliary_gain as gains
from fdamed.evaluation import protocol, reproduction, sweeps
from fdamed.evaluation import run_tables as tables
from fdamed.evaluation.compute_cost import Cost
from fdamed.evaluation.intervals import Interval
from fdamed.report import advice, audit_tables
from fdamed.report import advice_evaluation as hindsight
from fdamed.report.aggregate import Frames, Known


def files(study: Known, frames: Frames) -> dict[str, pd.DataFrame]:
    """Table -> frame, as they are written beside the page; those that are always there first."""
    names = [v.name for v in study.views]
    main = study.found.main
    out = {
        "headline": _headline(study, frames),
        "scores": frames.scores,
        "metrics": tables.every_score(frames.scores),
        "rounds": frames.rounds,
        "bytes": frames.traffic,
        "score_by_bytes": study.found.by_bytes,
        "score_by_seconds": study.found.by_seconds,
        "cohort": frames.sizes,
        "budget": protocol.table(study.budgets),
        "costs": _costs(study.costs),
    }
    more = {
        "sweeps": sweeps.table(study.sweeps, study.found.summary, names, study.metrics),
        "auxiliary_gain": pd.concat([gains.table(study.gains[n], n, main) for n in names], ignore_index=True),
        "absences": frames.absences,
        "weights": frames.weights,
        "jacobians": frames.jacobians,
        "reproduction": reproduction.table(study.repeated),
        "advice": advice.table({t: told for t, told in study.advice.items() if told}),
        "advice_judged": hindsight.table([h for h in study.judged.values() if h], main),
    }
    more |= audit_tables.tables(study.audits)
    return out | {name: frame for name, frame in more.items() if not frame.empty}


def _headline(study: Known, frames: Frames) -> pd.DataFrame:
    """The headline with the score at the round that validation chooses beside it."""
    table = tables.headline(frames.scores, study.metrics)
    none = Interval(None, None, 0)
    for metric in (*study.metrics, "round"):
        keys = zip(table["target"], table["run"], strict=True)
        values = [study.found.chosen.get((str(t), str(r), metric), none).mean for t, r in keys]
        table[f"chosen_{metric}"] = pd.Series(values, dtype="float64")
    return table


def _costs(rows: Sequence[Cost]) -> pd.DataFrame:
    cells = [
        (c.run, c.method, c.parameters, c.work, c.multiply_adds, c.seconds.mean, c.seconds.half, c.ratio) for c in rows
    ]
    columns = ["run", "method", "parameters", "work", "server_multiply_adds", "seconds", "seconds_half", "ratio"]
    return pd.DataFrame(cells, columns=columns).astype({"server_multiply_adds": "Int64", "ratio": "float64"})
