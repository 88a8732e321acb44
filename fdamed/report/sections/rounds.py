"""Learning curves: scores on the target's test part by round."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from fdamed.report.plots.lines import Line, by_round
from fdamed.report.section import Section
from fdamed.report.study import METRICS, Study

FEWEST, POINTS = 3, 120
"""Rounds drawn in a curve, at least and at most."""


def plots(study: Study) -> dict[str, Markup]:
    return {
        f"rounds_{m}{v.suffix}": by_round(lines(study, v.name, f"test/{m}"), f"{words} at {v.name} by round", words)
        for v in study.views
        for m, words in METRICS.items()
    }


def lines(study: Study, target: str, metric: str) -> list[Line]:
    """The curves of one metric, thinned to what a screen can show."""
    frame = study.rounds[(study.rounds["target"] == target) & (study.rounds["metric"] == metric)]
    out = []
    for run, group in frame.groupby("run", sort=False):
        part = thin(group)
        values = ([None if v != v else float(v) for v in part[c]] for c in ("mean", "low", "high"))
        out.append(Line(study.index[str(run)], str(run), [int(r) for r in part["round"]], *values))
    return out


def thin(frame: pd.DataFrame) -> pd.DataFrame:
    """Every k-th round; the last one is always kept."""
    ordered = frame.sort_values("round")
    return ordered.iloc[::-1].iloc[:: -(-len(ordered) // POINTS)].iloc[::-1]


def too_small(study: Study) -> str:
    longest = int(study.rounds.groupby("run")["round"].nunique().max()) if len(study.rounds) else 0
    return f"a curve needs {FEWEST} rounds with a score, and no run has more than {longest}" * (0 < longest < FEWEST)


SECTION = Section(
    20,
    "Learning curves",
    plots=plots,
    tables=lambda study: {"rounds": study.rounds},
    context=lambda study: {"reference": next((n for n, m in study.methods.items() if m == "fedavg"), None)},
    too_small=too_small,
)
