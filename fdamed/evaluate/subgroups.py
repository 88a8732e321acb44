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

from fdamed.disclosure import hides
from fdamed.evaluate.calibration import calibration_error, reliability
from fdamed.evaluate.metrics import THRESHOLD
from fdamed.evaluate.paired import Estimate, Scored, auc_of, difference, mean_of, share_of

ATTRIBUTES = ("sex", "age", "race", "view", "scanner")
AGES = ((0, "under 40"), (40, "40 to 59"), (60, "60 to 79"), (80, "80 and over"))
Floats = NDArray[np.float64]
Runs = Mapping[str, Sequence[int]]
"""Run -> its rows of the scores, one a seed, in the order of the seeds."""


@dataclass(frozen=True)
class Group:
    """Patients who share these attributes; `n` images, None where the number is not to be told."""

    by: tuple[str, ...]
    are: tuple[str, ...]
    n: int | None
    rows: NDArray[np.intp]


@dataclass(frozen=True)
class Standing:
    """How one run does in one group; `gain` against the reference run, None for that run itself."""

    auc: Estimate
    sensitivity: Estimate | None
    false_alarms: Estimate | None
    brier: float
    calibration_error: float
    gain: Estimate | None


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
    singles = [(name,) for name in words.columns]
    for by in (*singles, *combinations(words.columns, 2)):
        known = words[list(by)].notna().all(axis=1)
        cells = {
            key if isinstance(key, tuple) else (key,): rows.index.to_numpy()
            for key, rows in words[known].groupby(list(by), sort=True)
        }
        if len(cells) < 2:
            continue
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


def standings(group: Group, frame: pd.DataFrame, chances: Floats, runs: Runs, reference: str) -> dict[str, Standing]:
    """Run -> how it does in the group; chances (R, n). Empty where a class has fewer than two patients."""
    y = frame["y"].to_numpy()[group.rows]
    _, owner = np.unique(frame["patient"].to_numpy()[group.rows], return_inverse=True)
    p = chances[:, group.rows]
    area = auc_of(y, p, owner)
    if area is None:
        return {}
    said = p >= THRESHOLD
    caught, alarmed = _among(said, owner, y == 1), _among(said, owner, y == 0)
    squares = ((p - y) ** 2).mean(axis=1)
    errors = np.array([calibration_error(reliability(y, row)) for row in p])
    return {
        run: Standing(
            auc=mean_of(area, rows),
            sensitivity=mean_of(caught, rows) if caught else None,
            false_alarms=mean_of(alarmed, rows) if alarmed else None,
            brier=float(squares[list(rows)].mean()),
            calibration_error=float(errors[list(rows)].mean()),
            gain=_gain(area, rows, runs[reference]) if run != reference else None,
        )
        for run, rows in runs.items()
    }


def _among(said: NDArray[np.bool_], owner: NDArray[np.intp], chosen: NDArray[np.bool_]) -> Scored | None:
    _, within = np.unique(owner[chosen], return_inverse=True)
    return share_of(said[:, chosen], within)


def _gain(area: Scored, rows: Sequence[int], reference: Sequence[int]) -> Estimate | None:
    """Against the reference with the same seeds; None where their numbers differ."""
    return difference(area, rows, reference) if len(rows) == len(reference) else None


@dataclass(frozen=True)
class Gap:
    """The widest difference of a score between two groups of an attribute; the interval ignores that it was picked."""

    best: str
    worst: str
    value: float
    low: float
    high: float


def gap(by_group: Mapping[str, Estimate]) -> Gap | None:
    """From group -> score; None with fewer than two groups. Groups are taken as independent."""
    if len(by_group) < 2:
        return None
    best = max(by_group, key=lambda g: by_group[g].value)
    worst = min(by_group, key=lambda g: by_group[g].value)
    value = by_group[best].value - by_group[worst].value
    half = 1.959964 * float(np.hypot(by_group[best].error, by_group[worst].error))
    return Gap(best, worst, value, value - half, value + half)
