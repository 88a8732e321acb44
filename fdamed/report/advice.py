"""The recommendation before training in words, tables and the decision map (Figure 2 of the FedGP paper)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation.intervals import reach
from fdamed.report.plots.decision_map import Spot, landscape
from fdamed.theory.bounds import four_errors, winner

Advice = Mapping[str, Any]
"""What `fdamed advise` wrote for one target."""
Estimate = Mapping[str, float]
"""value, low and high."""
ENDS = ("value", "low", "high")


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


def table(advice: Mapping[str, Advice]) -> pd.DataFrame:
    """The rankings of all targets."""
    rows = [
        (target, r["method"], r["beta"], *(r["error"][k] for k in ENDS), r["best_share"], i == 0)
        for target, found in advice.items()
        for i, r in enumerate(found["ranking"])
    ]
    columns = ["target", "rule", "beta", "error", "low", "high", "best_share", "recommended"]
    return pd.DataFrame(rows, columns=columns).astype({"beta": "float64"})
