"""Splits the index into clients: which rows are eligible, which are positive, and one client for every patient.

Nothing here depends on the order of rows, on the machine or on the salt of the pseudonyms: a patient's place is a hash
of the seed and of the patient's first image path.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from fdamed.config.split import Split
from fdamed.core.errors import FdamedError
from fdamed.data.manifest import COLUMNS, LABEL, TEXT, label_columns
from fdamed.data.splitting.assignment import Drawn, Keys, draw, draw_reference
from fdamed.data.splitting.expression import HIDDEN, holds

NO_FINDING = "No Finding"
NOT_A_FINDING = (NO_FINDING, "Support Devices")
Floats = np.ndarray[Any, np.dtype[np.float32]]

ASSIGNMENT = (
    "A patient who fits several hospitals is assigned to one by a hash of seed and patient with the probabilities "
    "`shares`, in balanced cohorts ten times higher where the patient has images of the hospital's smaller class; "
    "the patient's images are used there only. The split is drawn by another hash of seed and patient."
)
SCARCE = 10.0
"""Factor on the probability of a client that needs the patient's images for its smaller class."""
LEAKING = (
    "rule: reference reproduces the published split, which LEAKS: patients are at several hospitals and in training "
    "and test at once. Its scores are too good; use rule: disjoint for anything but a comparison."
)


@dataclass(frozen=True)
class Cohort:
    """One manifest per client, with notes for the user."""

    manifests: dict[str, pd.DataFrame]
    notes: list[str] = field(default_factory=list)
    shared: dict[str, int] = field(default_factory=dict)
    """Number of clients that a patient fits -> patients, before the assignment."""


def build(index: pd.DataFrame, split: Split, smallest_cell: int = 11) -> Cohort:
    """Split the index into the clients of the configuration."""
    keys = Keys.of(index, split.seed)
    if split.rule == "reference":
        drawn, notes = _reference(index, split, keys), [LEAKING]
        eligible = {client: _eligible(index, chosen) for client, chosen in drawn.items()}
    else:
        eligible = truths(index, split, smallest_cell)
        placed = one_place(eligible, keys, split)
        drawn, notes = {client: draw(y, keys, split, client) for client, y in placed.items()}, [ASSIGNMENT]
    manifests = {}
    for client in split.clients:
        chosen = drawn[client]
        notes += [f"{client}: {note}" for note in chosen.notes]
        manifests[client] = _manifest(index, chosen)
        check_client(manifests[client], client, split)
    return Cohort(manifests, notes, fits(truths_per_patient(eligible, keys)))


def truths(index: pd.DataFrame, split: Split, smallest_cell: int) -> dict[str, Floats]:
    """Client -> for each row of the index 1, 0, or NaN where the row is not eligible."""
    kept = np.ones(len(index), dtype=bool)
    if split.where:
        kept = holds(split.where, index, "split.where")
        if not kept.any():
            raise FdamedError(f"no row matches `{split.where}`", "split.where", "Loosen the condition.")
    out: dict[str, Floats] = {}
    for client, value in split.clients.items():
        if split.by == "condition":
            mask, label = kept, value
        else:
            mask, label = kept & _belongs(index, split, client, value, smallest_cell), str(split.label)
        y = np.where(mask, truth_of(index, label, split, client), np.float32(np.nan)).astype("float32")
        if np.isnan(y).all():
            raise FdamedError(
                f"{client} is empty: no row is {value!r} and positive or negative for {label}",
                f"split.clients.{client}",
                f"Check the value, split.where and split.negatives (now {split.negatives}).",
            )
        for side, word in ((1, "positive"), (0, "negative")):
            if not (y == side).any():
                raise FdamedError(
                    f"{client} has no {word} row for {label}", f"split.clients.{client}", _advice(label, split)
                )
        out[client] = y
    return out


def _advice(label: str, split: Split) -> str:
    if label == NO_FINDING and split.positive_is == 1:
        return "To predict findings by No Finding, set split.positive_is: 0."
    return f"Another split.negatives (zero, blank, no_finding; now {split.negatives}) or split.uncertain may give it."


def truth_of(index: pd.DataFrame, label: str, split: Split, client: str) -> Floats:
    """1, 0 or NaN for each row, by the rules for uncertain labels and for negatives; `A|B` means either."""
    raw = _raw(index, label, client, split)
    if split.negatives == "zero" and label == NO_FINDING:
        raw = np.where(np.isnan(raw) & _some_finding(index), np.float32(0), raw)
    positive = raw == 1
    if split.negatives == "zero":
        negative = raw == 0
    elif split.negatives == "blank":
        negative = np.isnan(_raw(index, label, client))
    else:
        negative = (_raw(index, NO_FINDING, client) == 1) & ~positive
    y = np.full(len(index), np.nan, dtype="float32")
    y[positive] = split.positive_is
    y[negative & ~positive] = 1 - split.positive_is
    return y


def _raw(index: pd.DataFrame, label: str, client: str, split: Split | None = None) -> Floats:
    """1 where any of the named labels is 1, else -1 where any is, else blank where any is, else 0.

    With a split, its rules for uncertain labels are applied to each of them first.
    """
    known = [c.removeprefix(LABEL) for c in label_columns(index)]
    strange = sorted(set(split.uncertain_by_label) - set(known)) if split else []
    if strange:
        what = f"unknown label {', '.join(strange)}"
        raise FdamedError(what, "split.uncertain_by_label", f"The labels: {', '.join(known)}.")
    names = [label] if label in known else [name.strip() for name in label.split("|")]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f" (nearest: {near[0]})" if near else ""
            where = f"split.clients.{client}"
            raise FdamedError(f"unknown label `{name}`{hint} for {client}", where, f"The labels: {', '.join(known)}.")
    columns = [index[LABEL + name].to_numpy(dtype="float32") for name in names]
    if split:
        columns = [_uncertainty(column, name, split) for column, name in zip(columns, names, strict=True)]
    values = np.stack(columns, axis=1)
    blank = np.where(np.isnan(values).any(axis=1), np.float32(np.nan), np.float32(0))
    doubtful = np.where((values == -1).any(axis=1), np.float32(-1), blank)
    return np.where((values == 1).any(axis=1), np.float32(1), doubtful)


def _uncertainty(raw: Floats, label: str, split: Split) -> Floats:
    policy = split.uncertain_by_label.get(label, split.uncertain)
    # NaN would make an ignored row blank, and blank may mean negative.
    counts_as = {"ones": 1.0, "zeros": 0.0, "ignore": -1.0}[policy]
    return np.where(raw == -1, np.float32(counts_as), raw)


def _some_finding(index: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Labelers leave No Finding blank, not 0, where they found something."""
    columns = [c for c in label_columns(index) if c.removeprefix(LABEL) not in NOT_A_FINDING]
    found: np.ndarray[Any, np.dtype[np.bool_]] = (index[columns].to_numpy(dtype="float32") == 1).any(axis=1)
    return found


def _belongs(
    index: pd.DataFrame, split: Split, client: str, value: str, smallest_cell: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    if split.by == "expression":
        return holds(value, index, f"split.clients.{client}")
    choices = [c for c in TEXT if c not in HIDDEN]
    if split.by not in choices:
        near = difflib.get_close_matches(split.by, ["condition", "expression", *choices], n=1)
        hint = f" (nearest: {near[0]})" if near else ""
        advice = "Use `by: expression` for numbers." if split.by in COLUMNS else ""
        raise FdamedError(
            f"cannot split by `{split.by}`{hint}",
            "split.by",
            f"Known: condition, expression, {', '.join(choices)}. {advice}",
        )
    found = (index[split.by] == value).fillna(False).to_numpy(dtype=bool)
    if not found.any():
        counts = index[split.by].value_counts()
        shown = [f"{v} ({n if n >= smallest_cell else f'under {smallest_cell}'})" for v, n in counts.head(20).items()]
        near = difflib.get_close_matches(value, [str(v) for v in counts.index], n=1)
        hint = f" (nearest: {near[0]})" if near else ""
        raise FdamedError(
            f"no row has {split.by} = {value!r}{hint}, which {client} asks for",
            f"split.clients.{client}",
            f"The index has: {', '.join(shown) or 'no value at all in this column'}.",
        )
    return found


def truths_per_patient(truth: dict[str, Floats], keys: Keys) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """(patients, clients in alphabetical order): whether the patient has a usable row there."""
    out = np.zeros((len(keys.patients), len(truth)), dtype=bool)
    for j, client in enumerate(sorted(truth)):
        out[keys.codes[~np.isnan(truth[client])], j] = True
    return out


def fits(eligible: np.ndarray[Any, np.dtype[np.bool_]]) -> dict[str, int]:
    counts = np.bincount(eligible.sum(axis=1), minlength=1)
    return {str(k): int(n) for k, n in enumerate(counts) if k and n}


def one_place(truth: dict[str, Floats], keys: Keys, split: Split) -> dict[str, Floats]:
    """Every patient at one of the clients that the patient fits, by a hash with the probabilities `shares`."""
    clients = sorted(truth)
    shares = np.array([split.shares.get(p, 1.0) for p in clients], dtype="float64")
    if not (np.isfinite(shares).all() and (shares > 0).all()):
        raise FdamedError(
            "a share is not above 0", "split.shares", "Give every hospital a positive share, or none at all."
        )
    weight = truths_per_patient(truth, keys) * shares
    if split.balanced:
        for j, client in enumerate(clients):
            weight[_needed_patients(truth[client], keys), j] *= SCARCE
    # Sums and products alone are the same on every machine; a logarithm need not be.
    reach = np.cumsum(weight, axis=1)
    place = (keys.uniform("party")[:, None] * reach[:, -1:] >= reach).sum(axis=1)
    return {
        client: np.where(place[keys.codes] == j, truth[client], np.float32(np.nan)) for j, client in enumerate(clients)
    }


def _needed_patients(y: Floats, keys: Keys) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """(patients,): whether the patient has images of the client's smaller class."""
    smaller = 0 if (y == 0).sum() < (y == 1).sum() else 1
    out = np.zeros(len(keys.patients), dtype=bool)
    out[keys.codes[y == smaller]] = True
    return out


def _reference(index: pd.DataFrame, split: Split, keys: Keys) -> dict[str, Drawn]:
    """The published rule: Yes = 1, No = the first len(Yes) blank rows of the training table, 80/20 by image."""
    if split.by != "condition":
        raise FdamedError("rule: reference is defined for a split by condition", "split.rule", "Use rule: disjoint.")
    kept = holds(split.where, index, "split.where") if split.where else np.ones(len(index), dtype=bool)
    shipped = (index["release_split"] == "train").fillna(False).to_numpy(dtype=bool)
    rows = np.flatnonzero(kept & shipped if shipped.any() else kept)
    out = {}
    for client, condition in split.clients.items():
        raw = _raw(index, condition, client)[rows]
        yes = rows[raw == 1]
        out[client] = draw_reference(yes, rows[np.isnan(raw)][: len(yes)], keys, split, client)
    return out


def _eligible(index: pd.DataFrame, chosen: Drawn) -> Floats:
    out = np.full(len(index), np.nan, dtype="float32")
    out[chosen.rows] = chosen.y
    return out


def _manifest(index: pd.DataFrame, chosen: Drawn) -> pd.DataFrame:
    frame = index.iloc[chosen.rows][list(COLUMNS)].reset_index(drop=True)
    frame["y"] = chosen.y.astype("int8")
    frame["split"] = pd.Series(chosen.part, dtype="str")
    return frame.sort_values("image", kind="stable").reset_index(drop=True)


def check_client(frame: pd.DataFrame, client: str, split: Split) -> None:
    """Raise if a class is missing where it is needed: to train anywhere, to test and to adapt at a target."""
    if not len(frame):
        raise FdamedError(
            f"{client} is empty", f"split.clients.{client}", "Check split.where, split.shares and the tables."
        )
    needed: dict[str, tuple[str, ...]] = {"train": ("train", "adapt")}
    if client in split.targets:
        needed |= {"test": ("test",), "adapt": ("adapt",)}
        if not (frame["split"] == "train").any():
            fix = "Ask for fewer labeled images, or give the hospital more."
            raise FdamedError(f"{client} has no image left beside its labeled ones", "split.labeled", fix)
    for word, splits in needed.items():
        for side in (0, 1):
            if not ((frame["y"] == side) & frame["split"].isin(splits)).any():
                raise FdamedError(
                    f"{client} has no {'positive' if side else 'negative'} image in its {word} split",
                    f"split.clients.{client}",
                    "Give the hospital more patients (split.per_class, split.shares, split.where) or leave it out.",
                )
