"""What a model's features tell of a patient whom nobody asked about: sex, age, race, view, read by a linear probe.

The probe is a ridge regression on standardized features, its penalty chosen by generalized cross-validation within
the training folds. Folds part patients, so nobody is read by a probe that has seen another image of them. The same
probe is fitted to attributes that were dealt out among patients at random: what it reads then is nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fdamed.core.rng import Stream
from fdamed.evaluation.comparisons import score
from fdamed.evaluation.paired_tests import Influence, auc_influence, contrast

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
ATTRIBUTES = ("sex", "race", "age", "view")
UNTRAINED = "untrained"
"""The starting weights, as a row beside the runs."""
FOLDS = 5
SHUFFLES = 3
"""Times that attributes are dealt out at random."""
WIDER = (1 + FOLDS / (FOLDS - 1)) ** 0.5
"""Errors count 1.5 times: the folds' probes learned from the same patients, which a variance over judged patients alone
does not see (Nadeau and Bengio, Machine Learning 52, 2003: judged to learned patients are added to 1 / FOLDS)."""
PENALTIES = np.logspace(-1, 6, 15)


@dataclass(frozen=True, eq=False)
class Question:
    """One attribute, as it is asked of the features of n images."""

    name: str
    classes: tuple[str, ...]
    rows: Ints
    """The images of which it is known, n of them; whose class is not too small."""
    truth: Ints
    """(1 + SHUFFLES, n): class of each image; after the first row, dealt out at random."""
    answers: Floats
    """(1 + SHUFFLES, n, c): what is fitted: years of age, or a column of +1 and -1 for each class (two need one)."""
    fold: Ints
    owner: Ints
    """(n,): patient of each image, 0, 1, ... among all."""
    patients: int


def chosen(patient: Sequence[str], most: int, stream: Stream) -> Ints:
    """Places of all images of patients in a random order, as long as they are at most so many."""
    _, owner = np.unique(np.asarray(patient), return_inverse=True)
    images = np.bincount(owner)
    order = stream.numpy.permutation(len(images))
    kept = order[np.cumsum(images[order]) <= most]
    return np.flatnonzero(np.isin(owner, kept))


def questions(frame: pd.DataFrame, smallest: int, stream: Stream) -> list[Question]:
    """The attributes that can be asked about: two classes at least with images and patients enough."""
    names, owner = np.unique(frame["patient"].to_numpy(), return_inverse=True)
    out = []
    for name in ATTRIBUTES:
        if name not in frame.columns:
            continue
        words, years = _words(frame[name], name)
        known = pd.notna(words)
        # Every fold must be able to learn every class.
        least = max(smallest, 2 * FOLDS)
        classes = [c for c in _in_order(words[known]) if _enough(words == c, owner, least)]
        rows = np.flatnonzero(np.isin(words, classes))
        if len(classes) < 2:
            continue
        truth = np.array([classes.index(w) for w in words[rows]])
        dealt = [truth, *(_dealt(truth, owner[rows], stream.child(name, i)) for i in range(SHUFFLES))]
        values = [years[rows], *(_dealt(years[rows], owner[rows], stream.child(name, i)) for i in range(SHUFFLES))]
        columns = classes if len(classes) > 2 else classes[1:]
        signs = [np.stack([np.where(t == classes.index(c), 1.0, -1.0) for c in columns], axis=1) for t in dealt]
        answers = np.stack([v[:, None] for v in values] if name == "age" else signs)
        fold = _folds(truth, owner[rows], stream.child(name, "folds"))
        out.append(Question(name, tuple(classes), rows, np.stack(dealt), answers, fold, owner[rows], len(names)))
    return out


def _words(column: pd.Series, name: str) -> tuple[NDArray[np.object_], Floats]:
    """The classes of all images, None where unknown, and the column as numbers where it is of numbers."""
    if name != "age":
        words = np.array([None if pd.isna(v) else str(v) for v in column], dtype=object)
        return words, np.zeros(len(words))
    years = column.to_numpy(dtype=np.float64, na_value=np.nan)
    if not np.isfinite(years).any():
        return np.full(len(years), None, dtype=object), years
    middle = float(np.nanmedian(years))
    pair = (f"under {middle:g}", f"{middle:g} and over")
    words = np.array([None if not np.isfinite(y) else pair[int(y >= middle)] for y in years], dtype=object)
    return words, years


def _in_order(words: NDArray[np.object_]) -> list[str]:
    """Names in order, but `under` before `and over`."""
    return sorted(map(str, set(words)), key=lambda word: (not word.startswith("under "), word))


def _enough(mine: NDArray[np.bool_], owner: Ints, least: int) -> bool:
    return int(mine.sum()) >= least and len(np.unique(owner[mine])) >= least


def _dealt(values: NDArray[np.generic], owner: Ints, stream: Stream) -> NDArray[np.generic]:
    """The values of whole patients, given to other patients at random; a patient's images stay alike."""
    _, first, place = np.unique(owner, return_index=True, return_inverse=True)
    return values[first][stream.numpy.permutation(len(first))][place]


def _folds(truth: Ints, owner: Ints, stream: Stream) -> Ints:
    """Which fold judges each image: all of a patient in one, classes spread evenly."""
    from sklearn.model_selection import StratifiedGroupKFold

    split = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=stream.key % 2**32)
    out = np.empty(len(truth), dtype=np.intp)
    for i, (_, judged) in enumerate(split.split(truth, truth, owner)):
        out[judged] = i
    return out


def read(question: Question, z: Floats) -> Floats:
    """(1 + SHUFFLES, n, c): what probes that never saw an image's patient read from features `z` of all images."""
    from sklearn.linear_model import RidgeCV

    x = np.asarray(z, dtype=np.float64)[question.rows]
    trials, n, columns = question.answers.shape
    targets = question.answers.transpose(1, 0, 2).reshape(n, trials * columns)
    out = np.empty((n, trials * columns))
    for i in range(FOLDS):
        judged = question.fold == i
        center, spread = x[~judged].mean(axis=0), x[~judged].std(axis=0)
        spread[spread < 1e-12] = 1.0  # a dead unit says nothing, and must not be divided by its zero spread
        probe = RidgeCV(PENALTIES, alpha_per_target=True).fit((x[~judged] - center) / spread, targets[~judged])
        out[judged] = probe.predict((x[judged] - center) / spread).reshape(judged.sum(), -1)
    return np.ascontiguousarray(
        out.reshape(n, trials, columns).transpose(1, 0, 2)
    )  # safetensors writes memory as it lies


def area(question: Question, said: Floats, trial: int = 0) -> Influence | None:
    """AUC of one trial (0: the truth), `said` (R, n, c) of R models; of more than two classes the mean of one against
    the rest. None where no fold can tell."""
    truth = question.truth[trial]
    sides = [truth == 1] if len(question.classes) == 2 else [truth == c for c in range(len(question.classes))]
    found = [_within_folds(question, side, said[:, :, c]) for c, side in enumerate(sides)]
    whole = [f for f in found if f is not None]
    if len(whole) < len(sides):
        return None
    return Influence(np.mean([f.value for f in whole], axis=0), WIDER * np.mean([f.of for f in whole], axis=0))


def results(
    question: Question, predictions: Mapping[str, Mapping[int, Floats]], without_heads: Mapping[str, str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """How well the attribute can be predicted, and the effect of auxiliary heads, with intervals.

    `predictions`: run -> seed -> what `read` returned; `without_heads`: run -> the same run without auxiliary heads.
    """
    areas, runs = {}, {}
    for name, by_seed in predictions.items():
        p = np.stack(list(by_seed.values()))
        found = area(question, p[:, 0])
        if found is None:
            continue
        areas[name] = found
        shuffled = [a.value for i in range(1, SHUFFLES + 1) if (a := area(question, p[:, i], i)) is not None]
        runs[name] = score(contrast([(1, found)])) | {"shuffled": float(np.mean(shuffled)) if shuffled else None}
        if question.name == "age":
            runs[name]["r2"] = float(explained(question, p[:, 0]).mean())
    heads = [
        {"run": name, "base": base, **asdict(contrast([(1, areas[name]), (-1, areas[base])]))}
        for name, base in without_heads.items()
        if {name, base} <= areas.keys() and predictions[name].keys() == predictions[base].keys()
    ]
    return runs, heads


def _within_folds(question: Question, side: NDArray[np.bool_], said: Floats) -> Influence | None:
    """The share of pairs in order among the pairs within folds: every fold has a probe, and a scale, of its own."""
    value, of, pairs = np.zeros(len(said)), np.zeros((len(said), question.patients)), 0
    for i in range(FOLDS):
        judged = question.fold == i
        fold = auc_influence(side[judged], said[:, judged], question.owner[judged], question.patients)
        if fold is not None:
            weight = int(side[judged].sum()) * int((~side[judged]).sum())
            value, of, pairs = value + weight * fold.value, of + weight * fold.of, pairs + weight
    return Influence(value / pairs, of / pairs) if pairs else None


def explained(question: Question, said: Floats) -> Floats:
    """R2 of the years, (R,): 0 for who guesses the mean age, 1 for who knows every age; below 0: worse than a guess.

    No answer lies outside the ages that there are: one odd image would otherwise outweigh all others.
    """
    years = question.answers[0, :, 0]
    read = np.clip(said[:, :, 0], years.min(), years.max())
    return np.asarray(1 - ((read - years) ** 2).sum(axis=1) / ((years - years.mean()) ** 2).sum())
