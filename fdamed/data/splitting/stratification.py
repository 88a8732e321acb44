"""How many images each part of a client asks for, and which patients fill it: whole patients, stratified by class."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdamed.config.split import Split

Ints = NDArray[np.int64]
FILLED = ("train", "test", "val")
"""The parts that are filled here, the most important first; `adapt` is taken from train afterwards."""


def sizes(split: Split, there: Ints, held_out: bool) -> Ints:
    """(parts, 2): images of each class that train, test and val ask for, of the images (2,) that are there.

    A share is one of the client's images in all parts; a whole number is divided as the classes are. `per_class` then
    limits train. With `test: rest` train comes first, and test is what is left over.
    """
    n = np.minimum(there, there.min()) if split.balanced else there
    positive = n[1] / max(int(n.sum()), 1)
    limit = np.inf if split.per_class == "all" else split.per_class
    val, test = (split.val, split.test) if held_out else (0.0, 0.0)
    given = [size for size in (val, test) if size != "rest"]
    numbers = sum(_number(size, positive) for size in given if isinstance(size, int))
    shares = sum(size for size in given if isinstance(size, float))
    used = n if test == "rest" else np.minimum(n, np.ceil((limit + numbers) / (1 - shares)))
    in_val = np.minimum(_asked(val, used, positive), n)
    if test == "rest":
        in_train = np.minimum(limit, n - in_val)
        in_test = n - in_val - in_train
    else:
        in_test = np.minimum(_asked(test, used, positive), n - in_val)
        in_train = np.minimum(limit, n - in_val - in_test)
    return np.stack([in_train, in_test, in_val]).astype("int64")


def _number(images: int, positive: float) -> Any:
    """(2,): a number of images divided between the classes; two or more have both classes, where both exist."""
    positives = int(images * positive + 0.5)
    if images > 1 and 0 < positive < 1:
        positives = min(max(positives, 1), images - 1)
    return np.array([images - positives, positives])


def _asked(size: Any, used: Any, positive: float) -> Any:
    """(2,): images of each class; a share of three or more images is at least one."""
    if isinstance(size, int):
        return _number(size, positive)
    return np.maximum(np.floor(size * used + 0.5), (size > 0) & (used >= 3))


def fill(images: Ints, place: NDArray[np.float64], asked: Ints) -> Ints:
    """(patients,): the part of every patient, given images (patients, 2) by class and the parts' sizes (parts, 2).

    Patients alike in their numbers of images form a stratum. Each stratum, those with both classes and the largest
    first, is divided in the order of `place` so that every part then has its share of all images so far: parts are
    alike in large and small patients, and the last stratum, mostly of single images, evens out the rest.
    """
    mixed = (images > 0).all(axis=1)
    order = np.lexsort((place, images[:, 1], -images.sum(axis=1), ~mixed))
    ordered = images[order]
    edges = sorted({0, *(np.flatnonzero((ordered[1:] != ordered[:-1]).any(axis=1)) + 1).tolist(), len(order)})
    share = asked / np.maximum(asked.sum(axis=0), 1)
    out = np.zeros(len(images), dtype="int64")
    seen, got = np.zeros(2), np.zeros(asked.shape)
    for start, stop in pairwise(edges):
        kind, count = ordered[start], stop - start
        seen += count * kind
        patients = _apportioned((share * seen - got) @ kind / (kind @ kind), count)
        got += patients[:, None] * kind
        out[order[start:stop]] = np.repeat(np.arange(len(asked)), patients)
    _no_class_missing(out, images, place, asked)
    return out


def _apportioned(wanted: NDArray[np.float64], count: int) -> Ints:
    """Whole numbers near `wanted` that add up to `count`: rounded down, then the largest remainders."""
    wanted = np.maximum(wanted, 0)
    wanted = wanted * (count / max(wanted.sum(), 1e-12))
    whole = np.floor(wanted + 1e-9).astype("int64")
    whole[np.argsort(whole - wanted, kind="stable")[: count - whole.sum()]] += 1
    return whole


def _no_class_missing(parts: Ints, images: Ints, place: NDArray[np.float64], asked: Ints) -> None:
    """Move a small patient into a part that asks for a class and has none, from a part that keeps some of it."""
    for part, side in ((p, s) for p in range(len(asked)) for s in (1, 0) if asked[p, s]):
        if images[parts == part, side].any():
            continue
        got = np.stack([images[parts == p].sum(axis=0) for p in range(len(asked))])
        spare = ((got[parts] > images) | (images == 0)).all(axis=1) & (images[:, side] > 0)
        if spare.any():
            smallest = np.lexsort((place, images[:, side], images[:, 1 - side], ~spare))[0]
            parts[smallest] = part
