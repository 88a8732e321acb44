"""Recommend a run from the measured drops of the held-out loss, and explain it with the moments of a survey."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from fdamed.core.rng import stream
from fdamed.theory.delta_error import Moments, Rule, error
from fdamed.theory.survey import Findings

LEVEL = 0.9
"""Coverage of the intervals."""
RESAMPLES = 2000
JUDGED = Rule("fedda", 0.5, "samples")
"""A source helps if it lowers the error of this rule."""


def recommend(drops: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Run -> its drop in each fold: the ranking, the winner or None, and the runs not separated from the first.

    A winner is first in at least half of the bootstrap resamples of the folds, and the intervals of its lead over all
    others (Student's t over the folds, paired) are above 0: the second may be its near copy, which says nothing.
    """
    table = np.array(list(drops.values()), dtype=np.float64)  # (K, folds)
    folds = table.shape[1]
    drawn = stream(0, "recommend").numpy.integers(0, folds, (RESAMPLES, folds))
    firsts = np.bincount(table[:, drawn].mean(2).argmax(0), minlength=len(drops)) / RESAMPLES
    rows: list[dict[str, Any]] = [
        {"run": run, "drop": over_folds(values), "best_share": float(share)}
        for run, values, share in zip(drops, table, firsts, strict=True)
    ]
    rows.sort(key=lambda row: (-row["drop"]["value"], row["run"]))
    for row in rows:
        row["behind"] = over_folds(np.subtract(drops[rows[0]["run"]], drops[row["run"]]))
    group = [row["run"] for row in rows if row["behind"]["low"] <= 0]
    clear = len(rows) > 1 and rows[0]["best_share"] >= 0.5 and len(group) == 1
    return {"ranking": rows, "winner": rows[0]["run"] if clear else None, "not_separated": group}


def over_folds(values: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    """Mean and t-interval over the folds."""
    given = np.asarray(values, dtype=np.float64)
    n, value = len(given), float(given.mean())
    half = float(stdtrit(n - 1, 0.5 + LEVEL / 2) * given.std(ddof=1) / n**0.5) if n > 1 else float("inf")
    return {"value": value, "low": value - half, "high": value + half}


def explain(findings: Findings, runs: Mapping[str, Rule]) -> dict[str, Any]:
    """Variance of the target, distances of the sources, and Delta^2 of the runs that the theory covers."""
    drawn, samples = findings.moments, findings.samples
    norm2 = _interval([m.norm2 for m in drawn])
    return {
        "predicted": {run: _interval([error(rule, m, samples) for m in drawn]) for run, rule in runs.items()},
        "sources": [_source(drawn, samples, i, name) for i, name in enumerate(findings.sources)],
        "target": {
            "labeled": findings.labeled,
            "sigma2": _interval([m.sigma2 for m in drawn]),
            "norm2": norm2,
            "m": drawn[0].sigma2 / max(float(np.diag(drawn[0].cov).mean()), 1e-300),
        },
        "weak": bool(norm2["low"] <= 0.0),
        "level": LEVEL,
    }


def _source(drawn: Sequence[Moments], samples: Sequence[int], i: int, name: str) -> dict[str, Any]:
    """A source's distances, and whether FedDA's error is larger without it."""
    rest = [n for j, n in enumerate(samples) if j != i]
    gain = _interval([error(JUDGED, m.without(i), rest) - error(JUDGED, m, samples) for m in drawn])

    def each(value: Callable[[Moments], float]) -> dict[str, float]:
        return _interval([value(m) for m in drawn])

    return {
        "source": name,
        "verdict": "helps" if gain["low"] > 0 else "hurts" if gain["high"] < 0 else "unclear",
        "gain": gain,
        "d2": each(lambda m: m.distance2[i]),
        "tau2": each(lambda m: min(m.beside2[i] / m.distance2[i], 1.0) if m.distance2[i] > 0 else 0.0),
        "delta": each(lambda m: m.delta[i]),
        "cosine": each(lambda m: float(np.clip(m.t[i] / max(m.norm2, 1e-300) ** 0.5, -1.0, 1.0))),
    }


def _interval(values: Sequence[float]) -> dict[str, float]:
    """The estimate (first) and the percentiles of its resamples, widened to hold it."""
    value, again = float(values[0]), np.array(values[1:] or values[:1])
    low, high = np.quantile(again, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {"value": value, "low": min(float(low), value), "high": max(float(high), value)}
