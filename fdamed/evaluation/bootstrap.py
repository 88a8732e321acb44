"""The bootstrap over patients: scores of models on patients drawn with replacement.

A drawn patient comes with all images, because these are not independent. No image is copied: a draw is a vector of
weights (how often each patient was drawn), and every score is a sum of weights over the images, sorted once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fdamed.core.rng import Stream
from fdamed.evaluation.comparison.paired_tests import Scored
from fdamed.evaluation.intervals import LEVEL
from fdamed.evaluation.metrics import SEVERAL, TWO, Weights, checked, prepared

Floats = NDArray[np.float64]
CHUNK = 200_000
"""Weights at once: bounds the memory, and fits into a processor's cache."""
REPLICATES = 1000
"""Draws of a comparison."""
WORK = 2_000_000_000
"""Weights of a comparison of many models in total; above, it draws fewer times."""


def bootstrap(
    y: ArrayLike, p: ArrayLike, patient: ArrayLike, stream: Stream, replicates: int = 10_000
) -> dict[str, Any]:
    """Percentile intervals of all scores for labels `y` (n,) of probabilities `p`, (n, C) or (n,), as in scores/*.json.

    `intervals`: score -> low and high, None where the data cannot define it. `undefined`: replicates without a class.
    """
    labels, probabilities = checked(y, p)
    _, owner = np.unique(np.asarray(patient), return_inverse=True)
    names = TWO if probabilities.ndim == 1 else SEVERAL
    if len(labels) == 0:
        return {"level": LEVEL, "replicates": 0, "undefined": 0, "intervals": dict.fromkeys(names)}
    patients = int(owner.max()) + 1
    model = prepared(labels, probabilities, owner, patients)
    parts = [model.scores(times) for times in draws(stream, replicates, patients, len(labels))]
    values = {name: np.concatenate([part[name] for part in parts]) for name in names}
    main = values["auc" if "auc" in values else "balanced_acc"]
    return {
        "level": LEVEL,
        "replicates": replicates,
        "undefined": int((~np.isfinite(main)).sum()),
        "intervals": {name: percentiles(found) for name, found in values.items()},
    }


def percentiles(values: Floats) -> tuple[float, float] | None:
    """The middle 95 % of the defined values; None if there are none."""
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def affordable(models: int, images: int) -> int:
    """How many times a comparison draws patients: fewer times, but at least 200, if there are many models or images."""
    return max(200, min(REPLICATES, WORK // max(1, models * images)))


def scored(
    y: ArrayLike,
    probabilities: Floats,
    patient: ArrayLike,
    stream: Stream,
    names: Sequence[str] | None = None,
    replicates: int | None = None,
) -> dict[str, Scored]:
    """Score -> its values for R models on the same patients, and the covariance of their errors by the bootstrap.

    `probabilities` (R, n) or (R, n, C). All models see the same draws, so that their differences are paired. A score
    that is undefined on the data, or in more than half of the draws, is left out. `replicates`: default `affordable`.
    """
    _, owner = np.unique(np.asarray(patient), return_inverse=True)
    patients = int(owner.max(initial=-1)) + 1
    if patients < 2:
        return {}
    models = [prepared(*checked(y, row), owner, patients) for row in probabilities]
    wanted = [n for n in (TWO if probabilities.ndim == 2 else SEVERAL) if names is None or n in names]
    drawn = replicates or affordable(*probabilities.shape[:2])
    once = np.ones((1, patients), dtype=np.float32)
    parts = [[m.scores(times) for m in models] for times in (once, *draws(stream, drawn, patients, len(owner)))]
    out = {}
    for name in wanted:
        exact, *again = (np.stack([scores[name] for scores in part]) for part in parts)
        values = np.concatenate(again, axis=1)
        known = values[:, np.isfinite(values).all(axis=0)]
        if np.isfinite(exact).all() and known.shape[1] >= drawn / 2:
            out[name] = Scored(exact[:, 0], np.atleast_2d(np.cov(known)))
    return out


def draws(stream: Stream, replicates: int, patients: int, images: int) -> Iterator[Weights]:
    """The weights of all replicates, in chunks."""
    generator = stream.numpy
    step = max(1, CHUNK // max(patients, images))
    for begin in range(0, replicates, step):
        rows = min(step, replicates - begin)
        drawn = generator.integers(0, patients, size=(rows, patients), dtype=np.int32).astype(np.int64)
        drawn += np.arange(rows)[:, None] * patients
        yield np.bincount(drawn.ravel(), minlength=rows * patients).reshape(rows, patients).astype(np.float32)
