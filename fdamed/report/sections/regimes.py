"""The map of regimes: which run is best at which values of two swept options, and what the advice says there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation.ablations import Sweep, Value, sweeps
from fdamed.evaluation.comparison.regimes import Decision, Regime, regime, regrets
from fdamed.evaluation.intervals import p_value
from fdamed.report.advice import PLACE, verdict
from fdamed.report.plots.heat import Cell, Panel, heat
from fdamed.report.section import Section
from fdamed.report.sections.advice import decided
from fdamed.report.study import Study, View, is_ceiling

CELL = (150.0, 66.0)
LONGEST = 22
"""Characters of a line in a cell."""
FULL = 5.0
"""Points of lead from which a cell has its full color."""
Values = tuple[Value, ...]


def maps(study: Study) -> list[Sweep]:
    """The sweeps over two options by two or more runs that compete."""
    return [s for s in sweeps(study.config.sweeps()) if len(s.options) == 2 and len(competing(study, s)) > 1]


def competing(study: Study, sweep: Sweep) -> dict[str, Mapping[Values, str]]:
    """The runs of a sweep without those that train on all of the target's labels."""
    return {run: at for run, at in sweep.runs.items() if not any(is_ceiling(study.methods[f]) for f in at.values())}


def targets(study: Study) -> list[View]:
    """One map for each target; a mean over targets has no patients to test on."""
    return [view for view in study.views if view.name in study.config.split.targets]


def regimes(study: Study, sweep: Sweep, target: str) -> dict[Values, Regime]:
    """The cells of a map."""
    runs = competing(study, sweep)
    pairs = [p for p in study.audits.get(target, {}).get("pairs", ()) if p["metric"] == study.main]
    out = {}
    for values in sweep.values:
        folders = {run: at[values] for run, at in runs.items() if values in at}
        scores = {run: study.score(target, folder, study.main).mean for run, folder in folders.items()}
        if found := regime(values, folders, scores, pairs):
            out[values] = found
    return out


def advised(study: Study, sweep: Sweep, target: str) -> dict[Values, Decision]:
    """The advice in the cells of a map over numbers of labeled images and noise."""
    if sweep.options != PLACE:
        return {}
    return {(d.labeled, d.noise): d for d in decided(study) if d.target == target}


def heat_map(study: Study, sweep: Sweep, target: str) -> Markup:
    """Columns are the values of the first option, rows those of the second."""
    found, advice, runs = regimes(study, sweep, target), advised(study, sweep, target), list(competing(study, sweep))
    columns, rows = ([v for i, v in enumerate(side) if v not in side[:i]] for side in zip(*sweep.values, strict=True))
    rows = sorted(rows, key=lambda v: (isinstance(v, str), v))

    def cell(values: Values) -> Cell | None:
        here = found.get(values)
        if here is None:
            return None
        decision, hatched = advice.get(values), len(here.leaders) > 1
        text = "\n".join([here.winner, runner_up(here), *([f"advised: {named(decision)}"] if decision else [])])
        strength = 0.1 + 0.35 * min(here.lead / FULL, 1.0)
        return Cell(runs.index(here.winner), strength, tip(sweep, here, decision), text, hatched)

    panel = Panel("", [[cell((column, row)) for column in columns] for row in rows], [str(c) for c in columns])
    title = f"Best run at {target} by {sweep.name}, in {study.name}"
    words = " ".join(tip(sweep, here, advice.get(values)) for values, here in found.items())
    return heat([panel], [f"{sweep.options[1]} {row}" for row in rows], title, CELL, words, sweep.options[0])


def runner_up(here: Regime) -> str:
    """The second line of a cell: the lead of the winner, or the runs that cannot be separated from it."""
    if len(here.leaders) == 1:
        return f"+{here.lead:.1f} on {here.second}" + ("" if here.p is not None else " (untested)")
    _, *others = here.leaders
    whole = f"≈ {', '.join(others)}"
    return whole if len(whole) <= LONGEST else f"≈ {others[0]}, {len(others) - 1} more"


def named(decision: Decision) -> str:
    return decision.first if decision.clear else f"{decision.first}?"


def tip(sweep: Sweep, here: Regime, decision: Decision | None) -> str:
    """A cell in words."""
    where = ", ".join(f"{option} {value}" for option, value in zip(sweep.options, here.values, strict=True))
    scores = ", ".join(f"{run} {score:.3f}" for run, score in here.scores.items())
    lead = f"{here.winner} leads {here.second} by {here.lead:.1f} points"
    test = "not tested" if here.p is None else f"p {p_value(here.p)}"
    group = f"; not separated: {', '.join(here.leaders)}" if len(here.leaders) > 1 else ""
    advice = f"; advised: {named(decision)}" if decision else ""
    return f"{where}: {lead} ({test}){group}{advice}. {scores}."


def files(study: Study, view: View) -> dict[str, Sweep]:
    """File of a plot -> its sweep."""
    return {f"regimes_{'_'.join(sweep.options)}{view.suffix}": sweep for sweep in maps(study)}


def plots(study: Study) -> dict[str, Markup]:
    return {
        file: heat_map(study, sweep, view.name)
        for view in targets(study)
        for file, sweep in files(study, view).items()
        if regimes(study, sweep, view.name)
    }


def tables(study: Study) -> dict[str, pd.DataFrame]:
    rows = []
    for view in targets(study):
        for sweep in maps(study):
            advice_by_values = advised(study, sweep, view.name)
            for values, here in regimes(study, sweep, view.name).items():
                d = advice_by_values.get(values)
                advice = (d.first, d.clear, d.lost(d.first).mean) if d else (None, None, None)
                place = ("; ".join(sweep.options), "; ".join(map(str, values)))
                scores = (here.winner, here.scores[here.winner], here.second, here.lead, here.p)
                rows.append((view.name, *place, study.main, *scores, "; ".join(here.leaders), *advice))
    columns = ["target", "options", "values", "metric", "best", "score", "second", "lead", "p_holm", "not_separated"]
    return {"regimes": pd.DataFrame(rows, columns=[*columns, "advised", "clear", "regret"])}


def context(study: Study) -> dict[str, Any]:
    return {"shown": {v.name: [_shown(study, s, v, f) for f, s in files(study, v).items()] for v in targets(study)}}


def _shown(study: Study, sweep: Sweep, view: View, file: str) -> dict[str, Any]:
    found, advice = regimes(study, sweep, view.name), advised(study, sweep, view.name)
    return {
        "file": file,
        "name": sweep.name,
        "sentence": sentence(found),
        "advice": agreement(found, advice, study.name),
        "options": sweep.options,
        "columns": len({first for first, *_ in sweep.values}),
        "cells": [(here, advice.get(values)) for values, here in found.items()],
    }


def sentence(found: Mapping[Values, Regime]) -> str:
    """In how many cells which run leads, and in how many no test separates the leaders."""
    wins: dict[str, int] = {}
    for here in found.values():
        wins[here.winner] = wins.get(here.winner, 0) + (len(here.leaders) == 1)
    alone = ", ".join(f"{run} in {n}" for run, n in sorted(wins.items(), key=lambda item: -item[1]) if n)
    tied = sum(len(here.leaders) > 1 for here in found.values())
    first = f"Of {len(found)} cells, one run is above all others in {len(found) - tied}"
    return f"{first}{f' ({alone})' if alone else ''}; in {tied} the leaders cannot be separated."


def agreement(found: Mapping[Values, Regime], advice: Mapping[Values, Decision], name: str) -> str:
    """How often the advice is among the leaders, and what following it loses."""
    both = [(found[values], decision) for values, decision in advice.items() if values in found]
    if not both:
        return ""
    among = sum(decision.first in here.leaders for here, decision in both)
    lost = verdict(regrets([decision for _, decision in both]), name)
    return f"The advice names the best run, or one not separated from it, in {among} of {len(both)} cells. {lost}"


SECTION = Section(39, "Map of regimes", maps, plots, tables, context)
