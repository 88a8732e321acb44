"""Attribute inference: how well a linear probe reads sex, age, race and view from a model's features.

The probe is a ridge regression on standardized features, its penalty chosen by generalized cross-validation within
the training folds. Folds separate patients, so no probe has seen another image of the patients it reads. The same
probe is also fitted to attributes that were shuffled among patients, where it can read nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fdamed.core.rng import Stream
from fdamed.data.splitting.folds import folds_of
from fdamed.evaluation.comparison.paired_tests import Influence, auc_influence, contrast
from fdamed.evaluation.comparison.run_pairs import score

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
ATTRIBUTES = ("sex", "race", "age", "view")
UNTRAINED = "untrained"
"""The initial weights, as a row beside the runs."""
FOLDS = 5
SHUFFLES = 3
"""How many times attributes are shuffled."""
WIDER = (1 + FOLDS / (FOLDS - 1)) ** 0.5
"""Factor of 1.5 on errors: the folds' probes were fitted to overlapping patients, which a variance over test patients
alone does not see (Nadeau and Bengio, Machine Learning 52, 2003: the ratio of test to training patients is added to
1 / FOLDS)."""
PENALTIES = np.logspace(-1, 6, 15)
TINY = 1e-12
"""A deviation below this share of the mean is rounding."""


@dataclass(frozen=True, eq=False)
class Question:
    """One attribute of n images, to be read from their features."""

    name: str
    classes: tuple[str, ...]
    rows: Ints
    """The n images with a known class that is not too small."""
    truth: Ints
    """(1 + SHUFFLES, n): class of each image; shuffled after the first row."""
    answers: Floats
    """(1 + SHUFFLES, n, c): what is fitted: years of age, or a column of +1 and -1 for each class (two need one)."""
    fold: Ints
    owner: Ints
    """(n,): patient of each image, 0, 1, ... among all."""
    patients: int


def chosen(patient: Sequence[str], most: int, stream: Stream) -> Ints:
    """Places of all images of randomly chosen patients, at most so many images."""
    _, owner = np.unique(np.asarray(patient), return_inverse=True)
    images = np.bincount(owner)
    order = stream.numpy.permutation(len(images))
    kept = order[np.cumsum(images[order]) <= most]
    return np.flatnonzero(np.isin(owner, kept))


def questions(frame: pd.DataFrame, smallest: int, stream: Stream) -> list[Question]:
    """The attributes with at least two classes that have enough patients."""
    names, owner = np.unique(frame["patient"].to_numpy(), return_inverse=True)
    least = max(smallest, 2 * FOLDS)  # every fold must be able to learn every class
    out = []
    for name in [a for a in ATTRIBUTES if a in frame.columns]:
        words, ordered = _words(frame[name].reset_index(drop=True), name)
        classes = [c for c in ordered if len(np.unique(owner[words == c])) >= least]
        if len(classes) < 2:
            continue
        codes = pd.Categorical(words.where(words.isin(classes)), categories=classes).codes
        rows = np.flatnonzero(codes >= 0)
        shuffles = [_shuffled(owner[rows], stream.child(name, i)) for i in range(SHUFFLES)]
        places = np.stack([np.arange(len(rows)), *shuffles])
        truth = codes[rows].astype(np.intp)[places]
        columns = np.arange(len(classes))[0 if len(classes) > 2 else 1 :]
        answers = np.where(truth[..., None] == columns, 1.0, -1.0)
        if name == "age":
            answers = frame[name].to_numpy(dtype=np.float64, na_value=np.nan)[rows][places][..., None]
        fold = folds_of(truth[0], owner[rows], FOLDS, stream.child(name, "folds"))
        out.append(Question(name, tuple(classes), rows, truth, answers, fold, owner[rows], len(names)))
    return out


def _words(column: pd.Series, name: str) -> tuple[pd.Series, list[str]]:
    """The class of each image, missing where unknown, and all classes in order; ages below and above the median."""
    if name != "age":
        words = column.map(str, na_action="ignore")
        return words, sorted(words.dropna().unique())
    years = column.astype("float64")
    pair = [f"under {years.median():g}", f"{years.median():g} and over"]
    return pd.Series(np.where(years >= years.median(), pair[1], pair[0])).where(years.notna()), pair


def _shuffled(owner: Ints, stream: Stream) -> Ints:
    """For each image, an image of another random patient; the images of a patient stay alike."""
    _, first, place = np.unique(owner, return_index=True, return_inverse=True)
    return first[stream.numpy.permutation(len(first))][place]


def read(question: Question, z: Floats) -> Floats:
    """(1 + SHUFFLES, n, c): what probes that never saw an image's patient read from features `z` of all images."""
    trials, n, columns = question.answers.shape
    targets = question.answers.transpose(1, 0, 2).reshape(n, trials * columns)
    x, out = np.asarray(z, dtype=np.float64)[question.rows], np.empty_like(targets)
    for fold in range(FOLDS):
        test = question.fold == fold
        out[test] = probed(x[~test], targets[~test], x[test])
    # Contiguous, because safetensors writes memory as it is.
    return np.ascontiguousarray(out.reshape(n, trials, columns).transpose(1, 0, 2))


def probed(x: Floats, y: Floats, test: Floats) -> Floats:
    """Predictions (m, c) for `test` (m, d) of ridge regressions of `y` (n, c) on standardized `x` (n, d).

    For each column the penalty with the smallest mean squared error of predictions that leave one image out.
    """
    mean, scale, base = x.mean(axis=0), x.std(axis=0), y.mean(axis=0)
    scale[scale < TINY * np.abs(mean) + np.finfo(np.float64).tiny] = 1.0  # a dead unit
    u, s, vt = np.linalg.svd((x - mean) / scale, full_matrices=False)
    kept = s**2 / (s**2 + PENALTIES[:, None])  # (penalties, d)
    seen = u.T @ (y - base)
    left_out = 1 - kept @ (u**2).T - 1 / len(x)  # (penalties, n)
    errors = np.stack(
        [
            (((y - base - u @ (k[:, None] * seen)) / h[:, None]) ** 2).mean(0)
            for k, h in zip(kept, left_out, strict=True)
        ]
    )
    penalty = PENALTIES[errors.argmin(axis=0)]
    weights = vt.T @ (s[:, None] / (s[:, None] ** 2 + penalty) * seen)
    return np.asarray((test - mean) / scale @ weights + base)


def area(question: Question, said: Floats, trial: int = 0) -> Influence | None:
    """AUC of one trial (0: the truth), `said` (R, n, c) of R models; with more than two classes the mean of one against
    the rest. None if it is undefined in every fold."""
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
    """The share of ordered pairs among the pairs within folds, because each fold has its own probe and scale."""
    value, of, pairs = np.zeros(len(said)), np.zeros((len(said), question.patients)), 0
    for i in range(FOLDS):
        test = question.fold == i
        fold = auc_influence(side[test], said[:, test], question.owner[test], question.patients)
        if fold is not None:
            weight = int(side[test].sum()) * int((~side[test]).sum())
            value, of, pairs = value + weight * fold.value, of + weight * fold.of, pairs + weight
    return Influence(value / pairs, of / pairs) if pairs else None


def explained(question: Question, said: Floats) -> Floats:
    """R2 of the years, (R,): 0 for guessing the mean age, 1 for every age exactly, below 0: worse than the mean.

    Answers are clipped to the range of ages, so that one odd image does not outweigh all others.
    """
    years = question.answers[0, :, 0]
    read = np.clip(said[:, :, 0], years.min(), years.max())
    return np.asarray(1 - ((read - years) ** 2).sum(axis=1) / ((years - years.mean()) ** 2).sum())
