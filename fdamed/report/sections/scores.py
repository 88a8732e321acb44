"""Scores of all runs at each target, with the budget each run had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.core.disclosure import vague
from fdamed.evaluation import protocol, run_tables
from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.protocol import Budget
from fdamed.report.plots import intervals
from fdamed.report.plots.figure import limits, linear
from fdamed.report.plots.intervals import Column, Dot
from fdamed.report.section import Section
from fdamed.report.study import NONE, Study, View
from fdamed.report.summary import sentences

FEW_TARGETS = 6
"""Targets whose numbers of validation images a sentence can list."""


def context(study: Study) -> dict[str, Any]:
    budgets = protocol.budgets(study.records, study.config, study.cohort)
    spans = {v.name: _span([r.scores[study.main] for r in v.rows], study.chance) for v in study.views}
    return {
        "sentences": {v.name: sentences(study, v)[:2] for v in study.views},
        "rounds": {v.name: sorted({b.rounds for b in budgets if b.target in _targets(study, v)}) for v in study.views},
        "validation": {v.name: validation_images(study, v) for v in study.views},
        "steps": {v.name: steps([b for b in budgets if b.target == v.name]) for v in study.views},
        "budgets": {v.name: [b for b in budgets if b.target == v.name] for v in study.views},
        "dots": {
            v.name: {
                r.run: intervals.inline(r.scores[study.main], r.index, *spans[v.name], study.chance) for r in v.rows
            }
            for v in study.views
        },
    }


def _targets(study: Study, view: View) -> Sequence[str]:
    return study.config.split.targets if view.name == run_tables.ALL_TARGETS else [view.name]


def validation_images(study: Study, view: View) -> str:
    """The numbers of labeled validation images that choosing a round costs the targets; empty where there are none."""
    sizes = [int(study.cohort["clients"][t]["images"].get("val", 0)) for t in _targets(study, view)]
    few = len(sizes) <= FEW_TARGETS
    shown = [vague(n, study.smallest) for n in (sizes if few else (min(sizes), max(sizes)))]
    return (" / " if few else " to ").join(shown) if any(sizes) else ""


def steps(budgets: Sequence[Budget]) -> dict[str, Any]:
    """Optimizer steps per round: at each source, if all runs have the same, and at the target by labeled images."""
    found: dict[str, set[int]] = {}
    for budget in budgets:
        for client, n in budget.sources.items():
            found.setdefault(client, set()).add(n)
    own = sorted({(b.own, b.labeled) for b in budgets if b.own is not None})
    return {
        "same": all(len(n) == 1 for n in found.values()),
        "sources": {c: min(n) for c, n in found.items()},
        "own": own,
    }


def _span(scores: Sequence[Interval], chance: float | None) -> tuple[float, float]:
    ends = [v for s in scores for v in (s.mean, s.low, s.high) if v is not None]
    return limits([*ends, *([] if chance is None else [chance])]) if ends else (0.0, 1.0)


def plots(study: Study) -> dict[str, Markup]:
    """The headline as a figure; the page has it inside the table."""
    view = study.views[0]
    known = [(r.run, r.index, s, s.mean) for r in view.ranked if (s := r.scores[study.main]).mean is not None]
    axis = linear(*_span([s for _, _, s, _ in known], study.chance), study.name)
    column = Column(axis, [[Dot(mean, s.low, s.high, i)] for _, i, s, mean in known], study.chance)
    title = f"{study.name} at {view.name}, 95% interval over seeds"
    return {"headline": intervals.rows([run for run, _, _, _ in known], [column], title, width=420)}


def tables(study: Study) -> dict[str, pd.DataFrame]:
    headline = run_tables.headline(study.scores, study.metrics)
    keys = list(zip(headline["target"], headline["run"], strict=True))
    for metric in (*study.metrics, "round"):
        values = [study.chosen.get((str(t), str(r), metric), NONE).mean for t, r in keys]
        headline[f"chosen_{metric}"] = pd.Series(values, dtype="float64")
    budgets = protocol.budgets(study.records, study.config, study.cohort)
    return {
        "headline": headline,
        "scores": study.scores,
        "metrics": run_tables.every_score(study.scores),
        "budget": protocol.table(budgets),
    }


SECTION = Section(10, "Scores", plots=plots, tables=tables, context=context)
