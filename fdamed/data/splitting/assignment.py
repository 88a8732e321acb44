"""Which images a client gets, and which part each patient is in: by hash, never by position in a file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fdamed.config.split import Split
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.data.splitting.stratification import FILLED, fill, sizes


@dataclass(frozen=True)
class Keys:
    """A number for every patient and image that does not depend on salt, machine or order of rows."""

    seed: int
    codes: NDArray[np.int64]
    """(rows,): which patient, as a position in `patients`."""
    patients: NDArray[np.uint64]
    images: NDArray[Any]
    """(rows,): paths, to break ties."""

    @classmethod
    def of(cls, index: pd.DataFrame, seed: int) -> Keys:
        images = index["image"].to_numpy(dtype=object)
        codes, _ = pd.factorize(index["patient"])
        order = np.asarray(index["image"].argsort(), dtype="int64")
        _, firsts = np.unique(codes[order], return_index=True)
        return cls(seed, codes.astype("int64"), _hashed(images[order[firsts]]), images)

    def uniform(self, *names: str) -> NDArray[np.float64]:
        """(patients,): numbers in [0, 1), independent for each tuple of names."""
        return _uniform(self.patients, stream(self.seed, "cohort", *names).key)


def _hashed(texts: NDArray[Any]) -> NDArray[np.uint64]:
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype=">u8").astype("uint64")


def _uniform(keys: NDArray[np.uint64], salt: int) -> NDArray[np.float64]:
    """Steele's SplitMix64 finalizer on whole numbers: the same bits everywhere."""
    with np.errstate(over="ignore"):
        z = (keys ^ np.uint64(salt)) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype("float64") * 2.0**-53


def uniform_of(texts: NDArray[Any], *names: str, seed: int = 0) -> NDArray[np.float64]:
    """A number in [0, 1) for each text, the same on any machine."""
    return _uniform(_hashed(texts), stream(seed, *names).key)


def draw(truth: NDArray[Any], keys: Keys, split: Split, client: str) -> tuple[pd.DataFrame, list[str], int]:
    """(`y` and `split` of the client's images by row of the index, notes for the user, images of a patient cut off).

    Patients in the order of their hash until each class has its images; then test, val and adapt by patient.
    """
    rows = np.flatnonzero(~np.isnan(truth))
    frame = pd.DataFrame({"y": truth[rows].astype("int8"), "patient": keys.codes[rows]}, index=rows)
    there = np.bincount(frame["y"], minlength=2)
    asked = sizes(split, there, split.held_out == "all" or client in split.targets)
    ordered = _by_patient(frame, keys, "draw", client)
    frame = pd.concat([ordered[ordered["y"] == side].head(n) for side, n in enumerate(asked.sum(axis=0))]).sort_index()
    patients, owner = np.unique(frame["patient"], return_inverse=True)
    images = np.stack([np.bincount(owner[frame["y"] == side], minlength=len(patients)) for side in (0, 1)], axis=1)
    frame["split"] = np.array(FILLED)[fill(images, keys.uniform("split")[patients], asked)[owner]]
    whole = len(frame)
    frame, notes = _adapt(frame, keys, split, client, int(there.sum()))
    if split.per_class != "all" and asked[0].min() < split.per_class:
        scarce = " and ".join(
            word for side, word in ((1, "positive"), (0, "negative")) if asked[0][side] < split.per_class
        )
        notes.insert(
            0, f"per_class asks for {split.per_class} images a class to train on; there are fewer {scarce} ones"
        )
    return frame, notes, whole - len(frame)


def _by_patient(frame: pd.DataFrame, keys: Keys, *names: str) -> pd.DataFrame:
    """The rows patient after patient by hash, each patient's images by path."""
    place, path = keys.uniform(*names)[frame["patient"]], pd.Series(keys.images[frame.index], dtype="str").rank()
    return frame.iloc[np.lexsort((path, frame["patient"], place))]


def _adapt(frame: pd.DataFrame, keys: Keys, split: Split, client: str, images: int) -> tuple[pd.DataFrame, list[str]]:
    """Move whole training patients to `adapt` until it has `labeled` images, with the classes of `split.balanced`.

    `images`: those that the client has, also beyond the balance of the classes.
    """
    pool, wanted, notes = frame[frame["split"] == "train"], split.labeled, []
    if client in split.targets and len(pool) <= wanted:
        what = f"{client} has {len(pool)} training images, too few for {wanted} labeled ones and some without labels"
        fix = "Ask for fewer labeled images, or give the hospital more (split.per_class, split.shares, split.where)."
        if split.balanced and images * len(pool) > wanted * len(frame):  # all of them would be enough
            what += ": its classes are balanced, so that the larger one is reduced to the size of the smaller one"
            fix = f"Set split.balanced: false to keep all images. {fix}"
        raise FdamedError(what, "split.labeled", fix)
    if len(pool) < 2 * wanted and client not in split.targets:
        wanted = len(pool) // 2
        notes.append(f"labeled asks for {split.labeled} images; as it is a source only, {wanted} are put into adapt")
    chosen, left_out = whole_patients(_by_patient(pool, keys, "adapt", client), wanted, split.balanced)
    frame.loc[chosen, "split"] = "adapt"
    if left_out:
        notes.append(f"some images of one patient are left out, to get exactly {wanted} labeled images")
    return frame.drop(left_out), notes


def whole_patients(pool: pd.DataFrame, wanted: int, balanced: bool = True) -> tuple[list[int], list[int]]:
    """(rows for adapt, rows to leave out): `wanted` images of whole patients, all but one of them.

    Of both classes equally many if it can, or as the pool has them. The places that are left when no patient fits into
    both classes go to some images of one patient, whose others are left out, since nobody can be in two parts. If one
    does not suffice, the classes give way: whole patients first, those that exceed their class least.
    """
    positives = int((pool["y"] == 1).sum())
    half = wanted - wanted // 2 if balanced else max(1, int(wanted * positives / len(pool) + 0.5))
    quota = min(half, positives)
    negatives = min(wanted - quota, len(pool) - positives)
    left = [negatives, min(wanted - negatives, positives)]
    chosen: list[int] = []
    waiting: list[tuple[list[int], list[int]]] = []
    groups: dict[int, tuple[list[int], list[int]]] = {}
    for row, patient, y in zip(pool.index.tolist(), pool["patient"].tolist(), pool["y"].tolist(), strict=True):
        groups.setdefault(patient, ([], []))[y].append(row)
    for rows in groups.values():
        if all(len(rows[side]) <= left[side] for side in (0, 1)):
            chosen += rows[0] + rows[1]
            left = [left[side] - len(rows[side]) for side in (0, 1)]
        else:
            waiting.append(rows)
    while sum(left):
        last = next((rows for rows in waiting if all(len(rows[side]) >= left[side] for side in (0, 1))), None)
        fitting = [rows for rows in waiting if len(rows[0]) + len(rows[1]) <= sum(left)]
        if last is None and fitting:
            rows = min(fitting, key=lambda rows: sum(max(0, len(rows[side]) - left[side]) for side in (0, 1)))
            waiting.remove(rows)
            chosen += rows[0] + rows[1]
            places = sum(left) - len(rows[0]) - len(rows[1])
            left[1] = min(places, max(0, left[1] - len(rows[1])))
            left[0] = places - left[1]
            continue
        rows = last or waiting[0]
        taken = [rows[side][: left[side]] for side in (0, 1)]
        spare = [row for side in (0, 1) for row in rows[side][left[side] :]]
        more = sum(left) - len(taken[0]) - len(taken[1])
        return chosen + taken[0] + taken[1] + spare[:more], spare[more:]
    return chosen, []


def draw_reference(yes: NDArray[Any], no: NDArray[Any], keys: Keys, split: Split, client: str) -> pd.DataFrame:
    """The published rule: shuffle all images, the first 80 % train, regardless of patients; limits as in its runs."""
    frame = pd.DataFrame({"y": np.repeat([1, 0], [len(yes), len(no)])}, index=np.concatenate([yes, no]))
    position = uniform_of(keys.images[frame.index], "cohort", "reference", client, seed=keys.seed)
    frame = frame.iloc[np.argsort(position, kind="stable")]
    train, test = frame[: len(frame) * 4 // 5], frame[len(frame) * 4 // 5 :]
    most = len(train) if split.per_class == "all" else min(len(train), 2 * split.per_class)
    val = split.val if isinstance(split.val, int) else int(split.val * most * 5 / 4)
    if split.per_class != "all":
        train, test = train[: most + val], test[: most // 4]
    labeled = min(split.labeled, len(train) // 2)
    if client in split.targets and labeled < split.labeled:
        what = f"{client} has {len(train)} training images, too few for {split.labeled} labeled ones"
        raise FdamedError(what, "split.labeled", "Ask for fewer labeled images.")
    val = min(val, len(train) - labeled)
    parts = {"adapt": labeled, "val": val, "train": len(train) - labeled - val, "test": len(test)}
    return pd.concat([train, test]).assign(split=np.repeat(list(parts), list(parts.values())))
