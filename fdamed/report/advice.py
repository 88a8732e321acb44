"""The recommendation before training: in words, as the decision map (Figure 2 of the FedGP paper), and evaluated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.config.runs import Swept
from fdamed.evaluation.comparison.regimes import Decision, Regret
from fdamed.evaluation.intervals import plus_minus, reach
from fdamed.evaluation.run_tables import at_target
from fdamed.report.plots.decision_map import Spot, landscape
from fdamed.theory.bounds import four_errors, winner

Advice = Mapping[str, Any]
"""What `fdamed advise` wrote for one target."""
Estimate = Mapping[str, float]
"""value, low and high."""
ENDS = ("value", "low", "high")
PLACE = ("labeled", "noise")
"""The options that make a cell of the advice; all others belong to the run."""


def place(cell: Mapping[str, Any]) -> str:
    """A cell in words."""
    return f"{cell['labeled']} labeled images, noise {cell['noise']:g}"


def sentences(advice: Advice, swept: Mapping[str, Swept]) -> list[str]:
    """What is recommended, and how certain that is."""
    skipped = [f"Not tried: {place(cell)}; {cell['why']}." for cell in advice.get("skipped", ())]
    return [*_recommended(advice, swept), *skipped]


def _recommended(advice: Advice, swept: Mapping[str, Swept]) -> list[str]:
    cells, target = advice["cells"], advice["target_name"]
    if not cells and advice.get("skipped"):
        return [f"At {target} no cell has folds that are large enough, so nothing is recommended."]
    if not cells:
        return [f"At {target} fewer than two runs can be tried, so nothing is recommended."]
    if len(cells) > 1:
        named = Counter(rule_of(cell["winner"], swept) for cell in cells if cell["winner"])
        clear = "".join(f"{run} in {n}, " for run, n in named.most_common())
        return [f"At {target}, of {len(cells)} cells: {clear}no clear winner in {len(cells) - named.total()}."]
    first, *rest = cells[0]["ranking"]
    drop = f"one round lowers the held-out loss by {reach(first['drop'])}"
    often = f"first in {first['best_share']:.0%} of the resamples of the folds"
    lead = f"{reach(rest[0]['behind'])} more than {rest[0]['run']}"
    if cells[0]["winner"]:
        return [f"At {target} {first['run']} is recommended: {drop}, {lead}; it is {often}."]
    near = f"The folds do not separate {', '.join(cells[0]['not_separated'])}."
    return [f"At {target} there is no clear winner. {first['run']} comes first: {drop}, {lead}; it is {often}.", near]


def sources(advice: Advice) -> list[dict[str, Any]]:
    """The sources, most helpful first, with their distance."""
    rows = [
        {"name": s["source"], "verdict": s["verdict"], "gain": s["gain"], "cosine": s["cosine"]}
        | {"d": _root(s["d2"], advice)}
        for s in advice["sources"]
    ]
    return sorted(rows, key=lambda row: -row["gain"]["value"])


def decision_map(advice: Advice) -> Markup:
    """The map for this target's tau, delta and m, and those of its mean source, with its sources on it."""
    target, tau2, delta = advice["target"], _mean(advice, "tau2"), _mean(advice, "delta")
    shared = {"beta": 0.5, "delta": delta, "tau2": tau2, "m": target["m"], "norm2": target["norm2"]["value"]}
    own = _root(target["sigma2"], advice)
    spots = [Spot(s["source"], own, _root(s["d2"], advice)) for s in advice["sources"]]
    title = f"{advice['target_name']}: τ² = {tau2:.2f}, δ = {delta:.2f}, β = 0.5"
    return landscape(lambda sigma, d: winner(four_errors(sigma**2, d**2, **shared)), spots, title)


def _mean(advice: Advice, key: str) -> float:
    values = [float(s[key]["value"]) for s in advice["sources"]]
    return sum(values) / len(values)


def _root(estimate: Estimate, advice: Advice) -> tuple[float, float, float]:
    """The square roots of an estimate, above zero because they are on logarithmic axes."""
    largest = max(advice["target"]["sigma2"]["value"], *(s["d2"]["value"] for s in advice["sources"]), 1e-12)
    value, low, high = (max(estimate[k], 1e-6 * largest) ** 0.5 for k in ENDS)
    return value, low, high


def ranking_table(advice: Mapping[str, Advice]) -> pd.DataFrame:
    """The rankings of all targets and cells: measured drop, and the theory's Delta^2 of runs that it covers."""
    rows = [
        (target, *(cell[k] for k in PLACE), r["run"], *(r["drop"][k] for k in ENDS), r["best_share"], *more)
        for target, found in advice.items()
        for cell in found["cells"]
        for r in cell["ranking"]
        for more in [(cell["winner"] == r["run"], found["predicted"].get(r["run"], {}).get("value"))]
    ]
    columns = ["target", *PLACE, "run", "drop", "low", "high", "best_share", "recommended", "delta2"]
    return pd.DataFrame(rows, columns=columns).astype({"delta2": "float64"})


def rule_of(run: str, swept: Mapping[str, Swept]) -> str:
    """The name of a run without the labels and noise of its cell: what the same run is called in every cell."""
    if run not in swept:
        return run
    return swept[run].run + "".join(f"-{k}-{v}" for k, v in swept[run].values.items() if k not in PLACE)


def decisions(advice: Advice, scores: pd.DataFrame, metric: str, swept: Mapping[str, Swept]) -> list[Decision]:
    """The advice for one target in each cell, beside the scores there of the runs that were tried."""
    here = at_target(scores)
    here = here[(here["metric"] == metric) & (here["target"] == advice["target_name"])]
    out = []
    for cell in advice["cells"]:
        order = [r["run"] for r in cell["ranking"]]
        table = here[here["run"].isin(order)].pivot_table(index="seed", columns="run", values="value")
        table = table.dropna(axis=1, how="all").dropna(axis=0)
        order = [run for run in order if run in table]
        if len(order) < 2 or table.empty:
            continue
        table = table[order].rename(columns=lambda run: rule_of(run, swept))
        first, clear = rule_of(order[0], swept), cell["winner"] == order[0]
        out.append(Decision(advice["target_name"], cell["labeled"], cell["noise"], table, first, clear))
    return out


def decision_table(found: Iterable[Decision], metric: str) -> pd.DataFrame:
    """One row per target and cell: what was recommended, what was best, and what was lost, in points."""
    rows = [
        (d.target, d.labeled, d.noise, metric, d.first, d.clear, d.best, lost.mean, lost.low, lost.high, lost.n)
        for d in found
        for lost in (d.lost(d.first),)
    ]
    columns = ["target", *PLACE, "metric", "advised", "clear", "best", "lost", "low", "high", "seeds"]
    return pd.DataFrame(rows, columns=columns).astype({"low": "float64", "high": "float64"})


def regret_table(found: Sequence[Regret], metric: str) -> pd.DataFrame:
    """One row per rule: its mean regret in points with its interval, and in how many cells it chose the best run."""
    rows = [(r.rule, metric, r.cells, r.best, r.lost.mean, r.lost.low, r.lost.high) for r in found]
    columns = ["rule", "metric", "cells", "best_in", "regret", "low", "high"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[4:], "float64"))


def verdict(found: Sequence[Regret], name: str) -> str:
    """Whether following the advice paid, in one sentence."""
    constant = [rule for rule in found if rule.rule.startswith("always ")]
    if not constant:
        return ""
    advised, best = found[0], constant[0]
    cells = "1 cell" if advised.cells == 1 else f"{advised.cells} cells"
    return (
        f"Over {cells}, the advice chose the best run in {advised.best} and lost {plus_minus(advised.lost, '.1f')} "
        f"points of {name}; the best constant rule, {best.rule}, lost {plus_minus(best.lost, '.1f')}."
    )
