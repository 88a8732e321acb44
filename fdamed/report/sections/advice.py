"""Recommendation before training: what the theory predicts, and whether it was right."""

from __future__ import annotations

from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.report import advice
from fdamed.report.advice import Evaluation, evaluate
from fdamed.report.section import Section
from fdamed.report.study import Study


def given(study: Study) -> dict[str, advice.Advice]:
    """Target -> its recommendation, without targets that have none."""
    return {target: one for target, one in study.advice.items() if one}


def evaluations(study: Study) -> dict[str, Evaluation]:
    return {t: evaluate(one, study.scores, study.main, study.name) for t, one in given(study).items()}


def plots(study: Study) -> dict[str, Markup]:
    return {f"decision_map_{target}": advice.decision_map(one) for target, one in given(study).items()}


def tables(study: Study) -> dict[str, pd.DataFrame]:
    return {
        "advice": advice.ranking_table(given(study)),
        "advice_judged": advice.evaluation_table(evaluations(study), study.main),
    }


def context(study: Study) -> dict[str, Any]:
    after = evaluations(study)
    shown = {
        target: {
            "advice": one,
            "sentences": advice.sentences(one),
            "named": advice.named(one),
            "sources": advice.sources(one),
            "after": after[target],
        }
        for target, one in given(study).items()
    }
    return {"shown": shown, "together": advice.together(after, study.name)}


SECTION = Section(52, "Recommendation before training", lambda study: study.advice, plots, tables, context)
