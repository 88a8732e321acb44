"""Which images a client gets, and which part each patient is in: by hash, never by position in a file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from fdamed.config.split import Split
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Keys:
    """A number for every patient and image that does not depend on salt, machine or order of rows."""

    seed: int
    codes: Ints
    """(rows,): which patient, as a position in `patients`."""
    patients: np.ndarray[Any, np.dtype[np.uint64]]
    images: np.ndarray[Any, Any]
    """(rows,): paths, to break ties."""

    @classmethod
    def of(cls, index: pd.DataFrame, seed: int) -> Keys:
        images = index["image"].to_numpy(dtype=object)
        codes, _ = pd.factorize(index["patient"])
        order = np.asarray(index["image"].argsort(), dtype="int64")
        _, firsts = np.unique(codes[order], return_index=True)
        patients = _hashed(images[order[firsts]])
        return cls(seed, codes.astype("int64"), patients, images)

    def uniform(self, *names: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """(patients,): numbers in [0, 1), independent for each tuple of names."""
        return _uniform(self.patients, stream(self.seed, "cohort", *names).key)


def _hashed(texts: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype=">u8").astype("uint64")


def _uniform(keys: np.ndarray[Any, np.dtype[np.uint64]], salt: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Steele's SplitMix64 finaliser on whole numbers: the same bits everywhere."""
    with np.errstate(over="ignore"):
        z = (keys ^ np.uint64(salt)) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype("float64") * 2.0**-53


def uniform_of(texts: np.ndarray[Any, Any], *names: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A number in [0, 1) for each text, the same on any machine."""
    return _uniform(_hashed(texts), stream(0, *names).key)


@dataclass(frozen=True)
class Drawn:
    """Rows of the index for one client, with class and part."""

    rows: Ints
    y: np.ndarray[Any, np.dtype[np.int8]]
    part: np.ndarray[Any, Any]
    notes: list[str] = field(default_factory=list)


def draw(truth: np.ndarray[Any, Any], keys: Keys, split: Split, client: str) -> Drawn:
    """Patients in the order of their hash until each class has its images; then val, test and adapt by patient."""
    rows = np.flatnonzero(~np.isnan(truth))
    y = truth[rows].astype("int8")
    rows, y, notes = _classes(rows, y, keys, split, client)
    position = keys.uniform("split")[keys.codes[rows]]
    part = np.full(len(rows), "train", dtype=object)
    part[position < split.val + split.test] = "val"
    part[position < split.test] = "test"
    rows, y, part, more = _adapt(rows, y, part, keys, split, client)
    return Drawn(rows, y, part, notes + more)


def _classes(
    rows: Ints, y: np.ndarray[Any, Any], keys: Keys, split: Split, client: str
) -> tuple[Ints, np.ndarray[Any, Any], list[str]]:
    """At most `per_class` images of each class, and equally many of both if `balanced`."""
    there = {side: int((y == side).sum()) for side in (0, 1)}
    wanted = {side: there[side] if split.per_class == "all" else min(split.per_class, there[side]) for side in (0, 1)}
    if split.balanced:
        wanted = dict.fromkeys((0, 1), min(wanted.values()))
    notes = []
    if split.per_class != "all" and min(wanted.values()) < split.per_class:
        notes.append(
            f"per_class asks for {split.per_class} images a class; {wanted[1]} positive and {wanted[0]} negative taken"
            f" ({there[1]} and {there[0]} were there)"
        )
    order = _patient_order(rows, keys, "draw", client)
    kept = np.zeros(len(rows), dtype=bool)
    for side, n in wanted.items():
        kept[order[y[order] == side][:n]] = True
    return rows[kept], y[kept], notes


def _patient_order(rows: Ints, keys: Keys, *names: str) -> Ints:
    """Positions in `rows`, patient after patient by hash, each patient's images by path."""
    paths = pd.Series(keys.images[rows], dtype="str")
    by_path = np.asarray(paths.argsort(), dtype="int64")
    position = keys.uniform(*names)[keys.codes[rows]]
    return by_path[np.lexsort((keys.codes[rows][by_path], position[by_path]))]


def _adapt(
    rows: Ints, y: np.ndarray[Any, Any], part: np.ndarray[Any, Any], keys: Keys, split: Split, client: str
) -> tuple[Ints, np.ndarray[Any, Any], np.ndarray[Any, Any], list[str]]:
    """Move whole training patients to `adapt` until it has `labeled` images, half of each class if it can."""
    pool = np.flatnonzero(part == "train")
    wanted = split.labeled
    if client in split.targets and len(pool) <= wanted:
        raise FdamedError(
            f"{client} has {len(pool)} training images, too few for {wanted} labeled ones and some without labels",
            "split.labeled",
            "Ask for fewer labeled images, or give the hospital more (split.per_class, split.shares, split.where).",
        )
    notes = []
    if len(pool) < 2 * wanted and client not in split.targets:
        wanted = len(pool) // 2
        notes.append(f"labeled asks for {split.labeled} images; as it is a source only, {wanted} are put into adapt")
    chosen, left_out = _whole_patients(pool[_patient_order(rows[pool], keys, "adapt", client)], rows, y, keys, wanted)
    part[chosen] = "adapt"
    kept = np.ones(len(rows), dtype=bool)
    kept[left_out] = False
    if len(left_out):
        notes.append(f"{len(left_out)} images of one patient are left out, to get exactly {wanted} labeled images")
    return rows[kept], y[kept], part[kept], notes


def _whole_patients(
    order: Ints, rows: Ints, y: np.ndarray[Any, Any], keys: Keys, wanted: int
) -> tuple[list[int], list[int]]:
    """(positions for adapt, positions to leave out): patients within the class quotas, whole patients first."""
    positives = int((y[order] == 1).sum())
    negatives = len(order) - positives
    quota = min(wanted - wanted // 2, positives)
    left = {0: min(wanted - quota, negatives)}
    left[1] = min(wanted - left[0], positives)
    groups: dict[int, list[int]] = {}
    for position in order:
        groups.setdefault(int(keys.codes[rows[position]]), []).append(int(position))
    chosen: list[int] = []
    waiting: list[list[int]] = []
    for group in groups.values():
        counts = {side: int((y[group] == side).sum()) for side in (0, 1)}
        if all(counts[side] <= left[side] for side in (0, 1)):
            chosen += group
            left = {side: left[side] - counts[side] for side in (0, 1)}
        else:
            waiting.append(group)
    # The last places go to some of a patient's images; the rest is dropped, since a patient cannot be in two parts.
    left_out: list[int] = []
    for group in waiting:
        taken = [p for side in (0, 1) for p in [q for q in group if y[q] == side][: left[side]]]
        if taken:
            chosen += taken
            left_out += [p for p in group if p not in taken]
            left = {side: left[side] - int((y[taken] == side).sum()) for side in (0, 1)}
    return chosen, left_out


def draw_reference(yes: Ints, no: Ints, keys: Keys, split: Split, client: str) -> Drawn:
    """The published rule: shuffle all images, the first 80 % train, regardless of patients; limits as in its runs."""
    rows = np.concatenate([yes, no])
    y = np.repeat(np.array([1, 0], dtype="int8"), [len(yes), len(no)])
    position = _uniform(_hashed(keys.images[rows]), stream(keys.seed, "cohort", "reference", client).key)
    order = np.argsort(position, kind="stable")
    trained = len(rows) * 4 // 5
    train, test = order[:trained], order[trained:]
    if split.per_class != "all":
        train, test = train[: 2 * split.per_class * 4 // 5], test[: 2 * split.per_class // 5]
    kept = np.concatenate([train, test])
    part = np.full(len(kept), "test", dtype=object)
    part[: len(train)] = "train"
    labeled = min(split.labeled, len(train) // 2)
    if client in split.targets and labeled < split.labeled:
        raise FdamedError(
            f"{client} has {len(train)} training images, too few for {split.labeled} labeled ones",
            "split.labeled",
            "Ask for fewer labeled images.",
        )
    part[:labeled] = "adapt"
    part[labeled : labeled + min(int(split.val * len(kept)), len(train) - labeled)] = "val"
    return Drawn(rows[kept], y[kept], part)
