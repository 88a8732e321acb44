"""Who is judged how well: patients of one sex, age, race, view or scanner, and of pairs of these.

Groups in which a class has too few images are not there at all, and where one is left out no count of its attribute is
told, for the total would give the missing one away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fdamed.core.disclosure import hides
from fdamed.evaluation.calibration import by_chance, calibration_error, reliability
from fdamed.evaluation.metrics import THRESHOLD
from fdamed.evaluation.paired_tests import Estimate, Influence, auc_influence, contrast, mean_influence

ATTRIBUTES = ("sex", "age", "race", "view", "scanner")
AGES = ((0, "under 40"), (40, "40 to 59"), (60, "60 to 79"), (80, "80 and over"))
Floats = NDArray[np.float64]
Runs = Mapping[str, Mapping[int, int]]
"""Run -> seed -> row of the scores."""


@dataclass(frozen=True)
class Group:
    """Patients who share these attributes; `n` images, None where the number is not to be told."""

    by: tuple[str, ...]
    are: tuple[str, ...]
    n: int | None
    rows: NDArray[np.intp]


LOWER_IS_BETTER = frozenset({"false_alarms", "brier"})
SCORES = ("auc", "sensitivity", "false_alarms", "brier", "bias")
"""What is told of a group with an interval; bias: mean chance less the share of positives."""


@dataclass(frozen=True)
class Standing:
    """How one run does in one group."""

    seeds: tuple[int, ...]
    scores: Mapping[str, Influence]
    """Score -> a value a seed, and how far each patient of the target moves it."""
    calibration_error: float
    """Mean over seeds."""
    calibration_limit: float
    """What the error of true chances stays below in 95 of 100 samples as large; mean over seeds."""

    def told(self, score: str) -> Estimate | None:
        return contrast([(1, self.scores[score])]) if score in self.scores else None

    def paired(self, score: str, other: Standing) -> tuple[Influence, Influence] | None:
        """The score of both, of the seeds that both have; None where there is none."""
        common = [seed for seed in self.seeds if seed in other.seeds]
        if not common or score not in self.scores or score not in other.scores:
            return None
        return self._of(score, common), other._of(score, common)

    def _of(self, score: str, seeds: Sequence[int]) -> Influence:
        return self.scores[score].rows([self.seeds.index(seed) for seed in seeds])

    def gain(self, score: str, reference: Standing) -> Estimate | None:
        """Against the reference with the same seeds."""
        both = self.paired(score, reference)
        return contrast([(1, both[0]), (-1, both[1])]) if both else None


def banded(frame: pd.DataFrame) -> pd.DataFrame:
    """The attributes as words, missing ones as None; age in bands."""
    out = pd.DataFrame(index=frame.index)
    for name in ATTRIBUTES:
        if name not in frame.columns or frame[name].isna().all():
            continue
        if name == "age":
            edges = [a for a, _ in AGES]
            place = np.searchsorted(edges, frame[name].fillna(-1).to_numpy(dtype=float), side="right") - 1
            words: list[str | None] = [AGES[i][1] if i >= 0 else None for i in place]
        else:
            words = [None if pd.isna(v) else str(v) for v in frame[name]]
        out[name] = pd.Series(words, index=frame.index, dtype=object)
    return out


def groups(frame: pd.DataFrame, smallest: int) -> Iterator[Group]:
    """Every group with images enough, of one attribute and then of two; `frame` has patient, y and the attributes."""
    words = banded(frame).reset_index(drop=True)
    y, patient = frame["y"].to_numpy(), frame["patient"].to_numpy()
    telling = [name for name in words.columns if words[name].nunique() > 1]
    singles = [(name,) for name in telling]
    for by in (*singles, *combinations(telling, 2)):
        known = words[list(by)].notna().all(axis=1)
        cells = {
            key if isinstance(key, tuple) else (key,): rows.index.to_numpy()
            for key, rows in words[known].groupby(list(by), sort=True)
        }
        shown = {k: rows for k, rows in cells.items() if not _few(y[rows], patient[rows], smallest)}
        shown = dict(sorted(shown.items(), key=lambda cell: [_place(word) for word in cell[0]]))
        told = len(shown) == len(cells) and (known.all() or not _few(y[~known], patient[~known], smallest))
        for are, rows in shown.items():
            yield Group(tuple(by), tuple(map(str, are)), len(rows) if told else None, rows)


def _place(word: object) -> tuple[int, str]:
    """Ages by age, everything else by name."""
    bands = [name for _, name in AGES]
    return (bands.index(str(word)), "") if word in bands else (len(bands), str(word))


def _few(y: NDArray[np.int64], patient: NDArray[np.object_], smallest: int) -> bool:
    """Whether too few images of a class, or patients, stand behind a score; no image at all is few, too."""
    n, positives = len(y), int(y.sum())
    absent = positives == 0 or positives == n
    return absent or hides(n, positives, smallest) or len(np.unique(patient)) < smallest


def standings(group: Group, frame: pd.DataFrame, chances: Floats, runs: Runs) -> dict[str, Standing]:
    """Run -> how it does in the group; chances (R, n). Empty where a class has fewer than two patients."""
    y = frame["y"].to_numpy()[group.rows]
    names, everyone = np.unique(frame["patient"].to_numpy(), return_inverse=True)
    owner, patients, p = everyone[group.rows], len(names), chances[:, group.rows]
    area = auc_influence(y, p, owner, patients)
    if area is None:
        return {}
    said = p >= THRESHOLD
    found = {
        "auc": area,
        "sensitivity": mean_influence(said[:, y == 1], owner[y == 1], patients),
        "false_alarms": mean_influence(said[:, y == 0], owner[y == 0], patients),
        "brier": mean_influence((p - y) ** 2, owner, patients),
        "bias": mean_influence(p - y, owner, patients),
    }
    errors = np.array([calibration_error(reliability(y, row)) for row in p])
    limits = np.array([by_chance(y, row) for row in p])
    return {
        run: Standing(
            seeds=tuple(by_seed),
            scores={
                name: all_runs.rows(list(by_seed.values())) for name, all_runs in found.items() if all_runs is not None
            },
            calibration_error=float(errors[list(by_seed.values())].mean()),
            calibration_limit=float(limits[list(by_seed.values())].mean()),
        )
        for run, by_seed in runs.items()
    }


@dataclass(frozen=True)
class Gap:
    """The widest difference of a score between two groups of an attribute; the interval ignores that it was picked."""

    best: str
    worst: str
    value: float
    low: float
    high: float
    change: Estimate | None
    """How much wider the same two groups lie apart than with the reference run, whichever was the better one there;
    None for that run itself."""


def gap(
    by_group: Mapping[str, Influence],
    beside: Mapping[str, tuple[Influence, Influence]] | None,
    lower: bool = False,
) -> Gap | None:
    """From group -> score; None with fewer than two groups. Patients in both groups are counted as such.

    `beside`: group -> the score of the run and of the reference, of common seeds. `lower`: the smaller is the better.
    """
    if len(by_group) < 2:
        return None
    ordered = sorted(by_group, key=lambda g: float(by_group[g].value.mean()))
    worst, best = (ordered[-1], ordered[0]) if lower else (ordered[0], ordered[-1])
    sign = -1 if lower else 1
    apart = contrast([(sign, by_group[best]), (-sign, by_group[worst])])
    change = _change(beside[best], beside[worst], sign) if beside and best in beside and worst in beside else None
    return Gap(best, worst, apart.value, apart.low, apart.high, change)


def _change(best: tuple[Influence, Influence], worst: tuple[Influence, Influence], sign: int) -> Estimate:
    before = -1 if sign * float((best[1].value - worst[1].value).mean()) < 0 else 1
    here = [(sign, best[0]), (-sign, worst[0])]
    return contrast([*here, (-before * sign, best[1]), (before * sign, worst[1])])
