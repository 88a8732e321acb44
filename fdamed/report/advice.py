"""The recommendation before training in words, tables and the decision map (Figure 2 of the FedGP paper)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation.formatting import reach
from fdamed.report.plots.decision_map import TITLE, Spot, landscape
from fdamed.theory.bounds import four_errors, winner

Advice = Mapping[str, Any]
"""What `fdamed advise` wrote for one target."""
Estimate = Mapping[str, float]
"""value, low and high."""
ENDS = ("value", "low", "high")
SHARE = 0.05
"""Of one run: what a survey is meant to cost at most."""


def percent(share: float, digits: int = 0) -> str:
    return f"{share:.{digits}%}"


def named(advice: Advice) -> str:
    """The recommended rule with its beta."""
    best = advice["recommended"]
    return str(best["method"]) + (f" with β = {best['beta']:g}" if isinstance(best["beta"], int | float) else "")


def sentences(advice: Advice) -> list[str]:
    """What is recommended, how certain that is, and which beta."""
    first, *rest = advice["ranking"]
    out = [
        f"At {advice['target_name']} the theory recommends {named(advice)}: predicted error "
        f"{reach(first['error'])}, the smallest of {len(rest) + 1} in {percent(first['best_share'])} of "
        f"{advice['resamples']} bootstrap resamples."
    ]
    rival = max(rest, key=lambda row: row["best_share"], default=None)
    if rival is not None and rival["best_share"] > 0.05:
        more = ", more often than the recommended one" if rival["best_share"] > first["best_share"] else ""
        out.append(f"{rival['name']} is best in {percent(rival['best_share'])} of them{more}.")
    beta, fixed = advice["recommended"]["beta"], advice["best_beta"]
    if isinstance(beta, Mapping):
        low, high = min(beta.values()), max(beta.values())
        out.append(f"It sets β, the weight of a source, itself; expected values are {low:.2f} to {high:.2f}.")
    other = "for" if fixed["fedda"] == fixed["fedgp"] else f"{fixed['fedgp']:g} for"
    out.append(f"The best fixed β is {fixed['fedda']:g} for FedDA and {other} FedGP.")
    found = {v: [s["source"] for s in advice["sources"] if s["verdict"] == v] for v in ("helps", "hurts", "unclear")}
    for verdict, word in (("helps", "help"), ("hurts", "hurt")):
        if names := found[verdict]:
            out.append(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} expected to {word}.")
    if names := found["unclear"]:
        either = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        out.append(f"Whether {either} {'helps' if len(names) == 1 else 'help'} is uncertain.")
    return out


def ranking(advice: Advice) -> list[dict[str, Any]]:
    """The rules, best first, with the runs of the study that use this rule."""

    def same(run: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
        rule = (run["method"], run["beta"]) == (row["method"], row["beta"])
        return rule and math.isclose(run["error"]["value"], row["error"]["value"], rel_tol=1e-9)

    return [
        row | {"runs": [name for name, run in advice["runs"].items() if same(run, row)]} for row in advice["ranking"]
    ]


def sources(advice: Advice) -> list[dict[str, Any]]:
    """The sources, most helpful first, with their expected beta, distance and best rule on the map."""
    beta, win = advice["recommended"]["beta"], _winner(advice)
    sigma = _root(advice["target"]["sigma2"], advice)[0]
    rows = [
        {"name": s["source"], "verdict": s["verdict"], "gain": s["gain"], "cosine": s["cosine"], "d": d}
        | {"beta": beta[s["source"]] if isinstance(beta, Mapping) else None, "region": TITLE[win(sigma, d[0])]}
        for s, d in ((s, _root(s["d2"], advice)) for s in advice["sources"])
    ]
    return sorted(rows, key=lambda row: -row["gain"]["value"])


def decision_map(advice: Advice) -> Markup:
    """The map for this target's tau, delta and m, with its sources on it."""
    own = _root(advice["target"]["sigma2"], advice)
    spots = [Spot(s["source"], own, _root(s["d2"], advice)) for s in advice["sources"]]
    tau2, delta = _mean(advice, "tau2"), _mean(advice, "delta")
    title = f"{advice['target_name']}: τ² = {tau2:.2f}, δ = {delta:.2f}, β = 0.5"
    return landscape(_winner(advice), spots, title)


def _winner(advice: Advice) -> Callable[[float, float], str]:
    """sigma, d -> the rule with the smallest error there, all else as this target and its mean source have it."""
    tau2, delta, own = _mean(advice, "tau2"), _mean(advice, "delta"), advice["target"]
    norm2 = own["norm2"]["value"]

    def win(sigma: float, d: float) -> str:
        return winner(four_errors(sigma**2, d**2, beta=0.5, delta=delta, tau2=tau2, m=own["m"], norm2=norm2))

    return win


def _mean(advice: Advice, key: str) -> float:
    values = [float(s[key]["value"]) for s in advice["sources"]]
    return sum(values) / len(values)


def _root(estimate: Estimate, advice: Advice) -> tuple[float, float, float]:
    """The square roots of an estimate, above zero because they are on logarithmic axes."""
    largest = max(advice["target"]["sigma2"]["value"], *(s["d2"]["value"] for s in advice["sources"]), 1e-12)
    value, low, high = (max(estimate[k], 1e-6 * largest) ** 0.5 for k in ENDS)
    return value, low, high


def table(advice: Mapping[str, Advice]) -> pd.DataFrame:
    """The rankings of all targets."""
    rows = [
        (target, r["method"], r["beta"], *(r["error"][k] for k in ENDS), r["best_share"], i == 0)
        for target, found in advice.items()
        for i, r in enumerate(found["ranking"])
    ]
    columns = ["target", "rule", "beta", "error", "low", "high", "best_share", "recommended"]
    return pd.DataFrame(rows, columns=columns).astype({"beta": "float64"})
