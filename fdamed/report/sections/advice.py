"""Recommendation before training: what the trials measured, what the theory says of it, and whether it was right."""

from __future__ import annotations

from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation.comparison.regimes import Decision, regrets
from fdamed.report import advice
from fdamed.report.section import Section
from fdamed.report.study import Study


def given(study: Study) -> dict[str, advice.Advice]:
    """Target -> its recommendation, without targets that have none."""
    return {target: one for target, one in study.advice.items() if one}


def decided(study: Study) -> list[Decision]:
    """The advice of all targets and cells, with the scores that the runs reached."""
    swept = study.config.sweeps()
    return [d for one in given(study).values() for d in advice.decisions(one, study.scores, study.main, swept)]


def plots(study: Study) -> dict[str, Markup]:
    return {f"decision_map_{target}": advice.decision_map(one) for target, one in given(study).items()}


def tables(study: Study) -> dict[str, pd.DataFrame]:
    found = decided(study)
    return {
        "advice": advice.ranking_table(given(study)),
        "advice_judged": advice.decision_table(found, study.main),
        "regret": advice.regret_table(regrets(found), study.main),
    }


def context(study: Study) -> dict[str, Any]:
    after = decided(study)
    found = regrets(after)
    shown = {
        target: {
            "advice": one,
            "sentences": advice.sentences(one, study.config.sweeps()),
            "sources": advice.sources(one),
            "after": [d for d in after if d.target == target],
        }
        for target, one in given(study).items()
    }
    return {"shown": shown, "place": advice.place, "regrets": found, "verdict": advice.verdict(found, study.name)}


SECTION = Section(52, "Recommendation before training", lambda study: study.advice, plots, tables, context)
