"""Scores of all runs at each target, with the budget each run had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.core.counts import counts_of
from fdamed.core.disclosure import STEP, SUPPRESSED
from fdamed.evaluation import protocol, run_tables
from fdamed.evaluation.comparison import power
from fdamed.evaluation.intervals import Interval
from fdamed.report.headline import sentences
from fdamed.report.headline_facts import facts_of
from fdamed.report.plots import intervals
from fdamed.report.plots.figure import limits, linear
from fdamed.report.plots.intervals import Column, Dot
from fdamed.report.section import Section
from fdamed.report.study import METRICS, NONE, Study, View


def context(study: Study) -> dict[str, Any]:
    budgets, everywhere = protocol.budgets(study.records, study.config, study.cohort), study.config.split.targets
    shown = {}
    for view in study.views:
        here = budgets[budgets["target"] == view.name]
        all_targets = view.name == run_tables.ALL_TARGETS
        facts = facts_of(study, view)
        shown[view.name] = {
            "sentences": sentences(facts),
            "bound": "all labels" if facts.over_ceiling else "upper bound",
            "rounds": sorted((budgets if all_targets else here)["rounds"].unique()),
            "chooses": all(_chooses(study, t) for t in (everywhere if all_targets else [view.name])),
            "validation": validation_images(study, everywhere if all_targets else [view.name]),
            "budgets": list(here.itertuples()),
            **held_back(study, view),
            "span": _span([r.scores[study.main] for r in (*view.plain, *view.swept)], study.chance),
        }
    return {"shown": shown, "inline": intervals.inline}


def held_back(study: Study, view: View) -> dict[str, Any]:
    """Which scores of which runs are hidden and why, and the targets whose AUC is rounded, with the step."""
    rows, hidden, reasons = (*view.plain, *view.swept), dict[str, list[str]](), dict[str, dict[str, None]]()
    for row in rows:
        for metric in study.metrics:
            if row.scores[metric].mean is None and row.why[metric].startswith(SUPPRESSED):
                hidden.setdefault(row.run, []).append(metric)
                reasons.setdefault(row.why[metric].removeprefix(f"{SUPPRESSED}: "), {})[METRICS[metric]] = None
    steps = study.scores.groupby("target", sort=False)[STEP].max()
    coarse = steps[(steps > 0) & ((view.name == run_tables.ALL_TARGETS) | (steps.index == view.name))]
    return {
        "hidden": hidden,
        "reasons": [(list(names), why) for why, names in reasons.items()],
        "rounded": [(str(target), step) for target, step in coarse.items()],
    }


def _chooses(study: Study, target: str) -> bool:
    """Whether the target's validation part can choose a round."""
    return power.part_can_choose(counts_of(study.folder, target))


def validation_images(study: Study, targets: Sequence[str]) -> str:
    """The number of labeled validation images that choosing a round costs the targets; empty where there are none."""
    found = [study.cohort["clients"][t]["images"].get("val", 0) for t in targets]
    sizes, few = sorted({n for n in found if n is not None}), [f"1 to {study.smallest - 1}"] * (None in found)
    if few and not any(sizes):
        return few[0]
    return " to ".join([*few, *(f"{n:,}" for n in dict.fromkeys((sizes[0], sizes[-1])))][:2]) if any(sizes) else ""


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
    return {
        "headline": headline,
        "scores": study.scores,
        "metrics": run_tables.every_score(study.scores),
        "budget": protocol.budgets(study.records, study.config, study.cohort),
    }


SECTION = Section(10, "Scores", plots=plots, tables=tables, context=context)
