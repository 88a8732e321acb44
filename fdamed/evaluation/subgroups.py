"""Scores by subgroup: patients of one sex, age, race, view or scanner, and of pairs of these.

Groups in which a class has too few images are left out, and then no group of that attribute has a count, because the
missing one could be computed from the total.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fdamed.core.disclosure import hides
from fdamed.evaluation.calibration import by_chance, calibration_error, reliability
from fdamed.evaluation.comparison.paired_tests import Estimate, Influence, auc_influence, contrast, mean_influence
from fdamed.evaluation.comparison.run_pairs import Runs
from fdamed.evaluation.metrics import THRESHOLD

ATTRIBUTES = ("sex", "age", "race", "view", "scanner")
AGES = {"under 40": 0.0, "40 to 59": 40.0, "60 to 79": 60.0, "80 and over": 80.0}
"""Age band -> its lowest age."""
LOWER_IS_BETTER = frozenset({"false_alarms", "brier"})
SCORES = ("auc", "sensitivity", "false_alarms", "brier", "bias")
"""Scores of a group that have an interval; bias: mean probability less the share of positives."""


@dataclass(frozen=True)
class Group:
    """Patients who share these attributes; `n` images, None where the number must not be shown."""

    by: tuple[str, ...]
    are: tuple[str, ...]
    n: int | None
    rows: NDArray[np.intp]


@dataclass(frozen=True)
class Standing:
    """The scores of one run in one group."""

    seeds: tuple[int, ...]
    scores: Mapping[str, Influence]
    """Score -> one value per seed, and how far each patient of the target moves it."""
    calibration_error: float
    """Mean over seeds."""
    calibration_limit: float
    """The error of true probabilities stays below it in 95 of 100 samples of this size; mean over seeds."""

    def estimate(self, score: str) -> Estimate | None:
        return contrast([(1, self.scores[score])]) if score in self.scores else None

    def paired(self, score: str, other: Standing) -> tuple[Influence, Influence] | None:
        """The score of both with the seeds that both have; None if there are none."""
        common = [seed for seed in self.seeds if seed in other.seeds]
        if not common or score not in self.scores or score not in other.scores:
            return None
        mine, theirs = ([one.seeds.index(seed) for seed in common] for one in (self, other))
        return self.scores[score].rows(mine), other.scores[score].rows(theirs)

    def gain(self, score: str, reference: Standing) -> Estimate | None:
        """Difference to the reference with the same seeds."""
        both = self.paired(score, reference)
        return contrast([(1, both[0]), (-1, both[1])]) if both else None


def banded(frame: pd.DataFrame) -> pd.DataFrame:
    """The attributes as text, age in bands; attributes that are never known are left out."""
    out = pd.DataFrame(index=frame.index)
    for name in ATTRIBUTES:
        if name in frame.columns and not frame[name].isna().all():
            if name == "age":
                edges = [*AGES.values(), np.inf]
                out[name] = pd.cut(frame[name].astype("float64"), edges, right=False, labels=list(AGES))
            else:
                out[name] = frame[name].map(str, na_action="ignore")
    return out


def groups(frame: pd.DataFrame, smallest: int, sizes: bool = True) -> Iterator[Group]:
    """Every group with enough images, of one attribute and then of two; `frame` has patient, y and the attributes.

    `sizes`: False if the number of images of a class is hidden, so that no group may have one.
    """
    words = banded(frame).reset_index(drop=True)
    y, patient = frame["y"].to_numpy(), frame["patient"].to_numpy()
    varied = [name for name in words.columns if words[name].nunique() > 1]
    for by in (*((name,) for name in varied), *combinations(varied, 2)):
        known = words[list(by)].notna().all(axis=1)
        cells = {key: rows.index.to_numpy() for key, rows in words[known].groupby(list(by), observed=True)}
        shown = {key: rows for key, rows in cells.items() if not _few(y[rows], patient[rows], smallest)}
        counted = sizes and len(shown) == len(cells) and (known.all() or not _few(y[~known], patient[~known], smallest))
        for are, rows in shown.items():
            yield Group(by, tuple(map(str, are)), len(rows) if counted else None, rows)


def _few(y: NDArray[np.int64], patient: NDArray[np.object_], smallest: int) -> bool:
    """Whether too few images of a class, or too few patients, are behind a score; no image at all is too few."""
    n, positives = len(y), int(y.sum())
    return positives in (0, n) or hides(n, positives, smallest) or len(np.unique(patient)) < smallest


def standings(group: Group, frame: pd.DataFrame, probabilities: NDArray[np.float64], runs: Runs) -> dict[str, Standing]:
    """Run -> its scores in the group; probabilities (R, n). Empty where a class has fewer than two patients."""
    y = frame["y"].to_numpy()[group.rows]
    names, everyone = np.unique(frame["patient"].to_numpy(), return_inverse=True)
    owner, patients, p = everyone[group.rows], len(names), probabilities[:, group.rows]
    area = auc_influence(y, p, owner, patients)
    if area is None:
        return {}
    predicted = p >= THRESHOLD
    found = {
        "auc": area,
        "sensitivity": mean_influence(predicted[:, y == 1], owner[y == 1], patients),
        "false_alarms": mean_influence(predicted[:, y == 0], owner[y == 0], patients),
        "brier": mean_influence((p - y) ** 2, owner, patients),
        "bias": mean_influence(p - y, owner, patients),
    }
    errors = np.array([calibration_error(reliability(y, row)) for row in p])
    limits = np.array([by_chance(y, row) for row in p])
    out = {}
    for run, by_seed in runs.items():
        rows = list(by_seed.values())
        scores = {name: every.rows(rows) for name, every in found.items() if every is not None}
        out[run] = Standing(tuple(by_seed), scores, float(errors[rows].mean()), float(limits[rows].mean()))
    return out


def gap(
    by_group: Mapping[str, Influence],
    beside: Mapping[str, tuple[Influence, Influence]] | None,
    lower: bool = False,
) -> dict[str, Any] | None:
    """The largest difference of a score between two groups of an attribute; None with fewer than two groups.

    Patients can be in both groups, and the interval ignores the selection of the two. `beside`: group -> the score of
    the run and of the reference with common seeds. `lower`: smaller is better. `change`: how much larger the difference
    of the same two groups is than with the reference, whichever was better there.
    """
    if len(by_group) < 2:
        return None
    ordered = sorted(by_group, key=lambda g: float(by_group[g].value.mean()))
    worst, best, sign = (ordered[-1], ordered[0], -1) if lower else (ordered[0], ordered[-1], 1)
    apart = contrast([(sign, by_group[best]), (-sign, by_group[worst])])
    change = None
    if beside and best in beside and worst in beside:
        (up, up_before), (down, down_before) = beside[best], beside[worst]
        before = sign * (-1 if sign * float((up_before.value - down_before.value).mean()) < 0 else 1)
        change = asdict(contrast([(sign, up), (-sign, down), (-before, up_before), (before, down_before)]))
    ends = {"value": apart.value, "low": apart.low, "high": apart.high}
    return {"best": best, "worst": worst, **ends, "change": change}
