"""Recommendation before training: what the theory predicts, and whether it was right."""

from __future__ import annotations

from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.report import advice, advice_evaluation
from fdamed.report.advice import Advice
from fdamed.report.advice_evaluation import Evaluation, evaluate
from fdamed.report.section import Section
from fdamed.report.study import Study


def evaluations(study: Study) -> dict[str, Evaluation | None]:
    return {
        target: None if told is None else evaluate(told, study.scores, study.main, study.name, study.methods)
        for target, told in study.advice.items()
    }


def block(told: Advice) -> dict[str, Any]:
    """The recommendation for one target as the template shows it."""
    alone = told["recommended"]["method"] == "target_only"
    return {
        "sentences": advice.sentences(told),
        "weak": told["weak"],
        "level": advice.percent(told["level"]),
        "ranking": advice.ranking(told),
        "sources": advice.sources(told),
        "judged": "FedDA with β = 0.5" if alone else advice.named(told),
        "cost": advice.cost(told),
    }


def plots(study: Study) -> dict[str, Markup]:
    return {f"decision_map_{target}": advice.decision_map(told) for target, told in study.advice.items() if told}


def tables(study: Study) -> dict[str, pd.DataFrame]:
    known = [found for found in evaluations(study).values() if found]
    return {
        "advice": advice.table({t: told for t, told in study.advice.items() if told}),
        "advice_judged": advice_evaluation.table(known, study.main),
    }


def context(study: Study) -> dict[str, Any]:
    after = evaluations(study)
    return {
        "advice": {target: told and block(told) for target, told in study.advice.items()},
        "after": after,
        "together": advice_evaluation.together(after, study.name),
    }


SECTION = Section(52, "Recommendation before training", lambda study: study.advice, plots, tables, context)
