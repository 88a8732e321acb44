"""Folds of images for cross-validation, by patient."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fdamed.core.rng import Stream

Ints = NDArray[np.int64]


def folds_of(y: Ints, owner: Ints, folds: int, rng: Stream) -> Ints:
    """The fold of each image (n,): classes in equal shares, all images of a patient in one fold."""
    patients, first = np.unique(owner, return_index=True)
    order = rng.numpy.permutation(len(patients))
    order = order[np.argsort(y[first][order], kind="stable")]  # dealt out class by class
    fold = np.empty(len(patients), np.int64)
    fold[order] = np.arange(len(patients)) % folds
    found: Ints = fold[np.searchsorted(patients, owner)]
    return found
