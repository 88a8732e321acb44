"""Comparison of runs: every pair on the same patients, with Holm's correction, and mean ranks over targets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from fdamed.core.rng import Stream
from fdamed.evaluation import bootstrap as resampling
from fdamed.evaluation.comparison.paired_tests import (
    Estimate,
    Scored,
    auc_of,
    difference,
    holm,
    mcnemar,
    mean_of,
    share_of,
)
from fdamed.evaluation.comparison.seed_variance import seed_spread
from fdamed.evaluation.intervals import LEVEL
from fdamed.evaluation.metrics import SEVERAL, THRESHOLD, TWO

Runs = Mapping[str, Mapping[int, int]]
"""Run -> seed -> row of the scores."""
MAIN = ("auc", "acc")
"""Scores by which every two runs are compared; by the others, every run with the reference."""


def scored(frame: pd.DataFrame, probabilities: NDArray[np.float64], stream: Stream) -> dict[str, Scored]:
    """Score -> values and covariance over patients, where defined; probabilities (R, n) or (R, n, C).

    AUC and accuracy have a variance in closed form; the others use the bootstrap's.
    """
    y, patient = frame["y"].to_numpy(), frame["patient"].to_numpy()
    _, owner = np.unique(patient, return_inverse=True)
    closed = {"auc": auc_of(y, probabilities, patient)} if probabilities.ndim == 2 else {}
    closed["acc"] = share_of(_hits(y, probabilities), owner)
    known = {name: found for name, found in closed.items() if found is not None}
    rest = [n for n in (SEVERAL if probabilities.ndim == 3 else TWO) if n not in closed]
    return known | resampling.scored(y, probabilities, patient, stream, rest)


def means(found: Mapping[str, Scored], runs: Runs) -> dict[str, dict[str, dict[str, Any]]]:
    """Score -> run -> its mean over seeds."""
    return {m: {run: score(mean_of(s, list(rows.values()))) for run, rows in runs.items()} for m, s in found.items()}


def pairs(
    found: Mapping[str, Scored], runs: Runs, reference: str, frame: pd.DataFrame, probabilities: NDArray[np.float64]
) -> list[dict[str, Any]]:
    """Every two runs with the seeds that both have; `p_holm` is corrected over all pairs of a score.

    Runs that have the same seed count as independent: they rarely vary together, and then the error is too large.
    """
    hits = _hits(frame["y"].to_numpy(), probabilities)
    single = not frame["patient"].duplicated().any()  # McNemar's test needs independent images
    out = []
    for metric, values in found.items():
        rows, places = [], {run: i for i, run in enumerate(runs)}
        spread = seed_spread([values.value[list(by_seed.values())] for by_seed in runs.values()])
        for a, b in combinations(runs, 2):
            seeds = [s for s in runs[a] if s in runs[b]]
            if not seeds or (metric not in MAIN and reference not in (a, b)):
                continue
            first, second = [runs[a][s] for s in seeds], [runs[b][s] for s in seeds]
            row: dict[str, Any] = {"metric": metric, "first": a, "second": b, "seeds": len(seeds)}
            over_seeds = None
            if spread is not None:
                two = [places[a], places[b]]
                over_seeds = float(spread.variance[two].sum()) / len(seeds), float(spread.df[two].min())
            row |= asdict(difference(values, first, second, over_seeds))
            if metric == "acc":
                row["mcnemar"] = _mcnemar(hits, first, second) if single else None
            rows.append(row)
        for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
            row["p_holm"] = p
        out += rows
    return out


def _hits(y: NDArray[np.int64], probabilities: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(R, n): which images each model classifies correctly."""
    return np.asarray(
        probabilities.argmax(axis=2) == y if probabilities.ndim == 3 else (probabilities >= THRESHOLD) == (y == 1)
    )


def _mcnemar(hits: NDArray[np.bool_], first: Sequence[int], second: Sequence[int]) -> float:
    """The largest p-value of the seeds: small only if the two runs differ with every seed."""
    both = zip(hits[list(first)], hits[list(second)], strict=True)
    return max(mcnemar(int((a & ~b).sum()), int((b & ~a).sum())) for a, b in both)


def score(estimate: Estimate) -> dict[str, Any]:
    """A score between 0 and 1, as its interval is; without the p-value, which would test whether it is 0."""
    out = {key: value for key, value in asdict(estimate).items() if key != "p"}
    return out | {"low": max(0.0, estimate.low), "high": min(1.0, estimate.high)}


@dataclass(frozen=True)
class Ranking:
    """Mean ranks of methods over N data sets; 1 is the best."""

    names: tuple[str, ...]
    ranks: tuple[float, ...]
    """Best first, as `names`."""
    sets: int
    p: float
    """Of Friedman's test in Iman and Davenport's form."""
    apart: float
    """Nemenyi's critical difference: closer mean ranks do not differ significantly."""

    @property
    def cliques(self) -> list[tuple[int, int]]:
        """First and last place of the longest groups of methods that do not differ significantly."""
        found: list[tuple[int, int]] = []
        for i, rank in enumerate(self.ranks):
            last = max(j for j, other in enumerate(self.ranks) if other - rank < self.apart)
            if last > i and (not found or last > found[-1][1]):
                found.append((i, last))
        return found


def ranking(names: Sequence[str], scores: ArrayLike) -> Ranking | None:
    """From scores (N data sets, k methods), higher is better; None with fewer than two of either."""
    from scipy.stats import f, rankdata, studentized_range

    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != len(names) or not np.isfinite(table).all():
        raise ValueError(f"scores {table.shape} must be finite and (data sets, {len(names)} methods)")
    n, k = table.shape
    if n < 2 or k < 2:
        return None
    mean = rankdata(-table, axis=1).mean(axis=0)
    chi2 = 12 * n / (k * (k + 1)) * (float((mean**2).sum()) - k * (k + 1) ** 2 / 4)
    rest = n * (k - 1) - chi2
    p = 0.0 if rest <= 0 else float(f.sf((n - 1) * chi2 / rest, k - 1, (k - 1) * (n - 1)))
    q = float(studentized_range.ppf(LEVEL, k, math.inf)) / math.sqrt(2)
    order = np.argsort(mean, kind="stable")
    ranks = tuple(float(mean[i]) for i in order)
    return Ranking(tuple(names[i] for i in order), ranks, n, p, q * math.sqrt(k * (k + 1) / (6 * n)))
