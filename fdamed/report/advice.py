"""The recommendation before training in words, tables and the decision map (Figure 2 of the FedGP paper)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.evaluation.formatting import minus
from fdamed.report.plots.decision_map import TITLE, Spot, landscape

Advice = Mapping[str, Any]
"""What `fdamed advise` wrote for one target."""
SHARE = 0.05
"""Of one run: what a survey is meant to cost at most."""


def reach(interval: Mapping[str, float], digits: int = 3) -> str:
    """An estimate with its interval."""
    value, low, high = (f"{interval[k]:#.{digits}g}".rstrip(".") for k in ("value", "low", "high"))
    return minus(f"{value} ({low} to {high})")


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
    if fixed["fedda"] == fixed["fedgp"]:
        out.append(f"The best fixed β is {fixed['fedda']:g} for FedDA and for FedGP.")
    else:
        out.append(f"The best fixed β is {fixed['fedda']:g} for FedDA and {fixed['fedgp']:g} for FedGP.")
    for verdict, word in (("helps", "expected to help"), ("hurts", "expected to hurt")):
        names = [s["source"] for s in advice["sources"] if s["verdict"] == verdict]
        if names:
            out.append(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {word}.")
    unclear = [s["source"] for s in advice["sources"] if s["verdict"] == "unclear"]
    if unclear:
        out.append(f"Whether {_either(unclear)} {'helps' if len(unclear) == 1 else 'help'} is uncertain.")
    return out


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def ranking(advice: Advice) -> list[dict[str, Any]]:
    """The rules, best first, with the runs of the study that use this rule."""
    out = []
    for row in advice["ranking"]:
        same = [
            name
            for name, run in advice["runs"].items()
            if (run["method"], run["beta"]) == (row["method"], row["beta"])
            and math.isclose(run["error"]["value"], row["error"]["value"], rel_tol=1e-9)
        ]
        out.append({**row, "text": reach(row["error"]), "runs": same})
    return out


def sources(advice: Advice) -> list[dict[str, Any]]:
    """The sources, most helpful first."""
    beta = advice["recommended"]["beta"]
    win = _winner(advice)
    sigma = _root(advice["target"]["sigma2"], _floor(advice))[0]
    rows = [
        {
            "name": s["source"],
            "verdict": s["verdict"],
            "gain": s["gain"]["value"],
            "gain_text": reach(s["gain"], 2),
            "distance": s["d2"]["value"],
            "distance_text": "{:.2g} ({:.2g} to {:.2g})".format(*_root(s["d2"], _floor(advice))),
            "cosine": s["cosine"]["value"],
            "cosine_text": _hundredths(s["cosine"]),
            "beta": beta[s["source"]] if isinstance(beta, Mapping) else None,
            "region": TITLE[win(sigma, _root(s["d2"], _floor(advice))[0])],
        }
        for s in advice["sources"]
    ]
    return sorted(rows, key=lambda row: -row["gain"])


def _hundredths(interval: Mapping[str, float]) -> str:
    value, low, high = (f"{round(interval[k], 2) + 0.0:.2f}" for k in ("value", "low", "high"))
    return minus(f"{value} ({low} to {high})")


def cost(advice: Advice) -> str:
    """What the survey cost, and a remark where that is a lot."""
    spent = advice["cost"]
    text = (
        f"The survey passed {spent['images']:,} images through the network, each at its own hospital: "
        f"{percent(spent['share'], 1)} of the {spent['images_of_one_run']:,} of one training run."
    )
    over = f" That is above {percent(SHARE)}, because the runs are short." if spent["share"] > SHARE else ""
    return text + over


def decision_map(advice: Advice) -> Markup:
    """The map for this target's tau, delta and m, with its sources on it."""
    tau2, delta = _mean(advice, "tau2"), _mean(advice, "delta")
    floor = _floor(advice)
    own = _root(advice["target"]["sigma2"], floor)
    spots = [Spot(s["source"], own, _root(s["d2"], floor)) for s in advice["sources"]]
    title = f"{advice['target_name']}: τ² = {tau2:.2f}, δ = {delta:.2f}, β = 0.5"
    return landscape(_winner(advice), spots, title)


def _winner(advice: Advice) -> Callable[[float, float], str]:
    """sigma, d -> the rule with the smallest error there, all else as this target and its mean source have it."""
    from fdamed.theory.bounds import four_errors, winner  # needs torch, which a report without advice does without

    tau2, delta, own = _mean(advice, "tau2"), _mean(advice, "delta"), advice["target"]
    norm2 = own["norm2"]["value"]

    def win(sigma: float, d: float) -> str:
        return winner(four_errors(sigma**2, d**2, beta=0.5, delta=delta, tau2=tau2, m=own["m"], norm2=norm2))

    return win


def _mean(advice: Advice, key: str) -> float:
    values = [float(s[key]["value"]) for s in advice["sources"]]
    return sum(values) / len(values)


def _floor(advice: Advice) -> float:
    """The smallest value on a logarithmic axis."""
    return 1e-6 * float(max(advice["target"]["sigma2"]["value"], *(s["d2"]["value"] for s in advice["sources"]), 1e-12))


def _root(interval: Mapping[str, float], floor: float) -> tuple[float, float, float]:
    value, low, high = (max(interval[k], floor) ** 0.5 for k in ("value", "low", "high"))
    return value, low, high


def table(advice: Mapping[str, Advice]) -> pd.DataFrame:
    """Every target's ranking as one table: target, rule, beta, error, low, high, best_share, recommended."""
    rows = [
        (
            target,
            r["method"],
            r["beta"],
            r["error"]["value"],
            r["error"]["low"],
            r["error"]["high"],
            r["best_share"],
            i == 0,
        )
        for target, told in advice.items()
        for i, r in enumerate(told["ranking"])
    ]
    columns = ["target", "rule", "beta", "error", "low", "high", "best_share", "recommended"]
    return pd.DataFrame(rows, columns=columns).astype({"beta": "float64"})
