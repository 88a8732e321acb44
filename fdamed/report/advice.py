"""The recommendation before training: in words, as the decision map (Figure 2 of the FedGP paper), and evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation.intervals import Interval, over_seeds, plus_minus, reach
from fdamed.evaluation.run_tables import at_target
from fdamed.report.plots.decision_map import Spot, landscape
from fdamed.theory.bounds import four_errors, winner

Advice = Mapping[str, Any]
"""What `fdamed advise` wrote for one target."""
Estimate = Mapping[str, float]
"""value, low and high."""
ENDS = ("value", "low", "high")
VERDICTS = {
    (True, True): "Yes.",
    (True, False): "Yes, but not significantly.",
    (False, True): "No.",
    (False, False): "Not the best run, but not significantly worse.",
}
"""The recommended run was the best, the difference is significant over seeds -> the verdict."""


def named(advice: Advice) -> str:
    """The recommended rule with its beta."""
    best = advice["recommended"]
    return str(best["method"]) + (f" with β = {best['beta']:g}" if isinstance(best["beta"], int | float) else "")


def sentences(advice: Advice) -> list[str]:
    """What is recommended, how certain that is, and the best fixed betas."""
    first, *rest = advice["ranking"]
    out = [
        f"At {advice['target_name']} the theory recommends {named(advice)}: predicted error "
        f"{reach(first['error'])}, the smallest of {len(rest) + 1} in {first['best_share']:.0%} of "
        f"{advice['resamples']} bootstrap resamples."
    ]
    rival = max(rest, key=lambda row: row["best_share"], default=None)
    if rival is not None and rival["best_share"] > 0.05:
        more = ", more often than the recommended one" if rival["best_share"] > first["best_share"] else ""
        out.append(f"{rival['name']} is best in {rival['best_share']:.0%} of them{more}.")
    fixed = advice["best_beta"]
    out.append(f"The best fixed β is {fixed['fedda']:g} for FedDA and {fixed['fedgp']:g} for FedGP.")
    return out


def sources(advice: Advice) -> list[dict[str, Any]]:
    """The sources, most helpful first, with their expected beta and distance."""
    beta = advice["recommended"]["beta"]
    rows = [
        {"name": s["source"], "verdict": s["verdict"], "gain": s["gain"], "cosine": s["cosine"]}
        | {"d": _root(s["d2"], advice), "beta": beta[s["source"]] if isinstance(beta, Mapping) else None}
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
    """The rankings of all targets."""
    rows = [
        (target, r["method"], r["beta"], *(r["error"][k] for k in ENDS), r["best_share"], i == 0)
        for target, found in advice.items()
        for i, r in enumerate(found["ranking"])
    ]
    columns = ["target", "rule", "beta", "error", "low", "high", "best_share", "recommended"]
    return pd.DataFrame(rows, columns=columns).astype({"beta": "float64"})


@dataclass(frozen=True)
class Found:
    """A run with its predicted error and its score."""

    run: str
    predicted: Mapping[str, float]
    score: Interval
    lost: Interval
    """Best run minus this one, paired within seeds."""


@dataclass(frozen=True)
class Evaluation:
    """The recommendation for one target, evaluated; `rows` by predicted error, so that the first is recommended."""

    verdict: str
    sentence: str
    rows: Sequence[Found]


def evaluate(advice: Advice, scores: pd.DataFrame, metric: str, name: str) -> Evaluation:
    """Evaluate the recommendation by `metric`, called `name`, at its target, on the seeds that all its runs have."""
    predicted = {run: row["error"] for run, row in advice["runs"].items()}
    here = at_target(scores)
    here = here[(here["metric"] == metric) & (here["target"] == advice["target_name"]) & here["run"].isin(predicted)]
    table = here.pivot_table(index="seed", columns="run", values="value").dropna(axis=1, how="all").dropna(axis=0)
    if len(table) == 0 or len(table.columns) < 2:
        return Evaluation("Open.", "The theory covers fewer than two finished runs.", ())
    recommended, *_ = order = sorted(table, key=lambda run: (predicted[run]["value"], run))
    best = str(table.mean().idxmax())
    rows = [Found(run, predicted[run], over_seeds(table[run]), over_seeds(table[best] - table[run])) for run in order]
    right = best == recommended
    other = min((row for row in rows if row.run != best), key=lambda row: row.lost.mean or 0.0) if right else rows[0]
    sentence = (
        f"Of the {len(rows)} runs that it covers, the theory ranks {recommended} first; {best} was the "
        f"best, {plus_minus(other.lost)} in {name} above {other.run}."
    )
    return Evaluation(VERDICTS[right, other.lost.low is not None and other.lost.low > 0], sentence, rows)


def evaluation_table(entries: Mapping[str, Evaluation], metric: str) -> pd.DataFrame:
    """One row per target and run, the recommended run first: its predicted error, its score, and its loss."""
    rows = [
        (target, metric, r.run, r.predicted["value"], r.score.mean, r.lost.mean, r.lost.low, r.lost.high, r.lost.n)
        for target, found in entries.items()
        for r in found.rows
    ]
    columns = ["target", "metric", "run", "predicted_error", "score", "lost", "low", "high", "seeds"]
    return pd.DataFrame(rows, columns=columns).astype({"low": "float64", "high": "float64"})


def together(entries: Mapping[str, Evaluation], name: str) -> str:
    """The recommendations of a study with several targets, in one sentence."""
    lost = [found.rows[0].lost.mean or 0.0 for found in entries.values() if found.rows]
    if not lost:
        return ""
    return (
        f"The theory recommended the best of the runs that it covers at {lost.count(0.0)} of {len(lost)} targets; "
        f"following it lost {sum(lost) / len(lost):.3f} in {name} on average over the targets."
    )
