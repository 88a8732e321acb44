"""The audit of a target: its runs compared on the same patients, by subgroup, and by calibration.

It returns only what may be shown: where the size of a group is hidden, so is everything it could be computed from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fdamed.core.disclosure import AUC, auc_decimals, hides, rounded, too_small
from fdamed.core.rng import Stream
from fdamed.evaluation import bootstrap
from fdamed.evaluation.calibration import BINS, PER_BIN, by_chance, calibration_error, joined, reliability
from fdamed.evaluation.comparison import run_pairs
from fdamed.evaluation.comparison.run_pairs import Runs
from fdamed.evaluation.intervals import LEVEL, SURE
from fdamed.evaluation.subgroups import LOWER_IS_BETTER, SCORES, Group, Standing, gap, groups, standings

Results = list[dict[str, Any]]
EMPTY: dict[str, Any] = {"scores": {}, "pairs": [], "groups": [], "gaps": [], "calibration": {}}
"""What an audit has in common that may not be shown."""


def audit(
    frame: pd.DataFrame,
    p: NDArray[np.float64],
    runs: Runs,
    reference: str,
    smallest: int,
    stream: Stream,
    classes: bool = False,
) -> dict[str, Any]:
    """Compare runs by their probabilities `p` (R, n), or (R, n, C) with several classes, for the images in `frame`.

    `classes`: the number of positives is hidden; then by the AUC alone, coarsely, and without calibration.
    """
    y, several = frame["y"].to_numpy(), p.ndim == 3
    out: dict[str, Any] = {
        "reference": reference,
        "runs": {name: sorted(rows) for name, rows in runs.items()},
        "level": LEVEL,
    }
    patients = int(frame["patient"].nunique())
    if hides(len(y), None if several else int(y.sum()), smallest, patients):
        return out | EMPTY | {"suppressed": too_small(smallest)}
    scored = run_pairs.scored(frame, p, stream)
    if classes and not several:
        scored = {name: found for name, found in scored.items() if name == AUC}
    out |= EMPTY | {
        "scores": run_pairs.means(scored, runs),
        "pairs": run_pairs.pairs(scored, runs, reference, frame, p),
        "patients": patients,
        "replicates": bootstrap.affordable(*p.shape[:2]),
    }
    if several:  # the predicted class, and its probability
        return out | {"calibration": _calibration(p.argmax(axis=2) == y, p.max(axis=2), runs, smallest)}
    out["groups"], out["gaps"] = by_group(frame, p, runs, reference, smallest, classes)
    if classes:
        decimals = auc_decimals(len(y), smallest)
        return out | {"scores": rounded(out["scores"], decimals), "pairs": [coarse(r, decimals) for r in out["pairs"]]}
    return out | {"calibration": _calibration(np.broadcast_to(y, p.shape), p, runs, smallest)}


def coarse(found: Mapping[str, Any], decimals: int) -> dict[str, Any]:
    """A score or a compared pair without the digits that would give it exactly; what is significant stays so."""
    ends = {key: rounded(found[key], decimals) for key in ("value", "low", "high", "shuffled") if key in found}
    errors = {key: found[key] and float(f"{found[key]:.1e}") for key in ("patients", "seeds_error")}
    return {**found, **ends, **errors, **{key: _coarse_p(found[key]) for key in ("p", "p_holm") if key in found}}


def _coarse_p(p: float) -> float:
    near = round(p, 2)
    return min(max(near, 0.01), SURE - 0.01) if p < SURE else near


def by_group(
    frame: pd.DataFrame, p: NDArray[np.float64], runs: Runs, reference: str, smallest: int, classes: bool = False
) -> tuple[Results, Results]:
    """Every group that may be shown, and the largest gaps between the groups of one attribute."""
    entries: Results = []
    gaps: Results = []
    # One attribute at a time: its groups hold a number for each patient, run and seed.
    for by, members in groupby(groups(frame, smallest, not classes), key=lambda group: group.by):
        found = [(group, by_run) for group in members if (by_run := standings(group, frame, p, runs))]
        entries += [_entry(group, by_run, reference, smallest) for group, by_run in found]
        if len(by) == 1:
            hidden = any(group.n is None for group, _ in found)
            gaps += _gaps(by[0], {group.are[0]: by_run for group, by_run in found}, reference, hidden, smallest)
    return entries, gaps


def _entry(group: Group, by_run: Mapping[str, Standing], reference: str, smallest: int) -> dict[str, Any]:
    """One group: the scores of each run, its gains over the reference, and its calibration error."""
    hidden = group.n is None
    shown = _shown(hidden)
    out: dict[str, Any] = {"by": group.by, "are": group.are, "n": group.n, "runs": {}}
    for name, standing in by_run.items():
        found = {k: v for k in shown if (v := standing.estimate(k))}
        values: dict[str, Any] = {k: asdict(v) if k == "bias" else run_pairs.score(v) for k, v in found.items()}
        values |= {
            "calibration_error": None if hidden else standing.calibration_error,
            "calibration_limit": None if hidden else standing.calibration_limit,
            "gains": {k: asdict(v) for k in shown if name != reference and (v := standing.gain(k, by_run[reference]))},
        }
        out["runs"][name] = rounded(values, _decimals(hidden, smallest))
    return out


def _gaps(by: str, found: Mapping[str, Mapping[str, Standing]], reference: str, hidden: bool, smallest: int) -> Results:
    """The largest gap of each run and score, from group -> run -> standing."""
    out = []
    for name in next(iter(found.values()), {}):
        for score in _shown(hidden):
            here = {group: runs[name].scores[score] for group, runs in found.items()}
            both = {group: runs[name].paired(score, runs[reference]) for group, runs in found.items()}
            paired = {group: pair for group, pair in both.items() if pair} if name != reference else None
            widest = gap(here, paired, score in LOWER_IS_BETTER)
            if widest:
                out.append({"by": by, "run": name, "metric": score, **rounded(widest, _decimals(hidden, smallest))})
    return out


def _shown(hidden: bool) -> tuple[str, ...]:
    """The scores of a group; where its size is hidden, only that which tells neither it nor the share of positives.

    The proportions of several runs and seeds have one denominator, and four decimals are enough to find it.
    """
    return (AUC,) if hidden else SCORES


def _decimals(hidden: bool, smallest: int) -> int:
    """The number of decimals in a group's results; where its size is hidden, it has at least `smallest` of a class."""
    return auc_decimals(2 * smallest, smallest) if hidden else 4


def _calibration(y: NDArray[Any], p: NDArray[np.float64], runs: Runs, smallest: int) -> dict[str, Any]:
    """Run -> mean calibration error over its seeds, and the bins of the first; `y` (R, n): whether each was true."""
    out = {}
    bins = max(1, min(BINS, y.shape[1] // PER_BIN))
    for name, rows in runs.items():
        used = list(rows.values())
        errors = np.array([calibration_error(reliability(y[r], p[r])) for r in used])
        limits = np.array([by_chance(y[r], p[r]) for r in used])
        out[name] = {
            "error": float(errors.mean()),
            "limit": float(limits.mean()),
            "bins": [
                {"n": b.n, "probability": b.probability, "rate": b.rate, "low": b.interval[0], "high": b.interval[1]}
                for b in joined(reliability(y[used[0]], p[used[0]], bins), smallest, PER_BIN)
            ],
        }
    return out
