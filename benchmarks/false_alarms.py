"""How often the paired test reports a difference that is not there, and how large a difference it needs.

`python -m benchmarks.false_alarms` simulates studies of equally good runs with three seeds, and prints one JSON
line for each way in which runs vary over seeds: the share of studies with a false alarm among all pairs (Holm's
correction; at most 0.05), the share of single pairs with an uncorrected p below 0.05, both beside Satterthwaite's test,
which fdamed used before (docs/decisions/0085), and the median difference that is significant after correction.
"""

from __future__ import annotations

import json
import warnings
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtr, stdtrit

from fdamed.evaluation.comparison.seed_variance import seed_spread

SEEDS, PATIENTS, STUDIES = 3, 0.014, 4000
"""Seeds of a run, and the standard error of a run's score over patients (a difference has 1.4 times that)."""
PATTERNS: dict[str, list[float]] = {
    "no variance over seeds": [0.0] * 10,
    "alike, 0.5 points": [0.005] * 10,
    "alike, 2 points": [0.02] * 10,
    "alike, 5 points": [0.05] * 10,
    "one run ten times as much": [0.01] * 9 + [0.1],
    "half of them ten times as much": [0.01] * 5 + [0.1] * 5,
    "as in the demo": [0.01, 0.011, 0.014, 0.023, 0.025, 0.033, 0.033, 0.035, 0.06, 0.107],
    "four runs": [0.01, 0.01, 0.03, 0.1],
    "three runs": [0.01, 0.01, 0.1],
}


def simulated(deviations: list[float]) -> dict[str, float]:
    """All studies of one pattern."""
    rng, count = np.random.default_rng(1), len(deviations)
    pairs = np.array(list(combinations(range(count), 2)))
    false: dict[str, list[bool]] = {name: [] for name in ("any", "single", "any_before", "single_before")}
    needed = []
    for _ in range(STUDIES):
        scores = PATIENTS * rng.standard_normal((count, 1))
        scores = scores + np.array(deviations)[:, None] * rng.standard_normal((count, SEEDS))
        apart = scores[pairs[:, 0]] - scores[pairs[:, 1]]
        squared, own = apart.mean(1) ** 2, apart.var(1, ddof=1) / SEEDS
        spread = seed_spread(list(scores))
        by_seeds = own if spread is None else spread.variance[pairs].sum(1) / SEEDS
        df = np.full(len(pairs), SEEDS - 1.0) if spread is None else spread.df[pairs].min(1)
        corrected, single = (_limits(p, by_seeds, df) for p in (0.05 / len(pairs), 0.05))
        false["any"].append(bool((squared > corrected).any()))
        false["single"] += (squared > single).tolist()
        p = _satterthwaite(squared, own)
        false["any_before"].append(bool(p.min() < 0.05 / len(pairs)))
        false["single_before"] += (p < 0.05).tolist()
        needed.append(float(np.median(np.sqrt(corrected))))
    return {name: round(float(np.mean(alarms)), 3) for name, alarms in false.items()} | {
        "needed": round(float(np.median(needed)), 3)
    }


def _limits(p: float, by_seeds: NDArray[np.float64], df: NDArray[np.float64]) -> NDArray[np.float64]:
    """The squared difference that is significant at p."""
    return np.asarray(ndtri(p / 2) ** 2 * 2 * PATIENTS**2 + stdtrit(df, p / 2) ** 2 * by_seeds)


def _satterthwaite(squared: NDArray[np.float64], by_seeds: NDArray[np.float64]) -> NDArray[np.float64]:
    error = 2 * PATIENTS**2 + by_seeds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # without a variance over seeds df is infinite
        df = np.minimum(1e12, error**2 / by_seeds**2 * (SEEDS - 1))
    return np.asarray(2 * stdtr(df, -np.sqrt(squared / error)))


def main() -> None:
    for name, deviations in PATTERNS.items():
        print(json.dumps({"benchmark": "false_alarms", "seeds": name, **simulated(deviations)}), flush=True)


if __name__ == "__main__":
    main()
