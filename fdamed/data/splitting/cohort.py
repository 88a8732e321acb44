"""Splits the index into clients: which rows are eligible, which are positive, and one client for every patient.

Nothing here depends on the order of rows, on the machine or on the salt of the pseudonyms: a patient's place is a hash
of the seed and of the patient's first image path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fdamed.config.split import Split
from fdamed.core.disclosure import small
from fdamed.core.errors import FdamedError, nearest
from fdamed.data.manifest import COLUMNS, LABEL, TEXT, label_columns
from fdamed.data.splitting.assignment import Keys, draw, draw_reference
from fdamed.data.splitting.expression import HIDDEN, holds
from fdamed.data.vocabulary import ACCEPTED

NO_FINDING = "No Finding"
NOT_A_FINDING = (LABEL + NO_FINDING, LABEL + "Support Devices")
NAN = np.float32(np.nan)
Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]

ASSIGNMENT = (
    "A patient who fits several hospitals is assigned to one by a hash of seed and patient with the probabilities "
    "`shares`, in balanced cohorts ten times higher where the patient has images of the hospital's smaller class; "
    "the patient's images are used there only. Parts get whole patients, stratified by their numbers of positive and "
    "negative images, in the order of another hash of seed and patient."
)
LEFT_OUT = (
    "without a usable label",
    "of patients who are at another hospital",
    "beyond balance and sizes of the parts",
    "of a patient cut off for the exact number of labeled images",
)
"""Why rows of a client are not in its manifest."""
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
    rows: dict[str, int] = field(default_factory=dict)
    """Client -> rows of the index that belong to it, whatever their label."""
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)
    """Client -> reason -> how many of these rows are not in its manifest."""


def build(index: pd.DataFrame, split: Split, smallest_cell: int = 11) -> Cohort:
    """Split the index into the clients of the configuration."""
    keys = Keys.of(index, split.seed)
    belong: dict[str, int] = {}
    left_out: dict[str, dict[str, int]] = {}
    if split.rule == "reference":
        drawn, notes = _reference(index, split, keys), [LEAKING]
        eligible = {
            client: frame["y"].reindex(range(len(index))).to_numpy("float32") for client, frame in drawn.items()
        }
    else:
        eligible, drawn, notes = truths(index, split, smallest_cell), {}, [ASSIGNMENT]
        placed = one_place(eligible, keys, split)
        for client in split.clients:
            drawn[client], more, cut = draw(placed[client], keys, split, client)
            notes += [f"{client}: {note}" for note in more]
            belong[client] = int(members(index, split, client, smallest_cell).sum())
            usable, here = (int((~np.isnan(truth[client])).sum()) for truth in (eligible, placed))
            gone = (belong[client] - usable, usable - here, here - len(drawn[client]) - cut, cut)
            left_out[client] = dict(zip(LEFT_OUT, gone, strict=True))
    manifests = {}
    for client, frame in drawn.items():
        rows = index.loc[frame.index, list(COLUMNS)].assign(y=frame["y"].astype("int8"), split=frame["split"])
        manifests[client] = rows.astype({"split": "str"}).sort_values("image", kind="stable").reset_index(drop=True)
        check_client(manifests[client], client, split)
    counts = np.bincount(truths_per_patient(eligible, keys).sum(axis=1))
    shared = {str(k): int(n) for k, n in enumerate(counts) if k and n}
    return Cohort(manifests, notes, shared, belong, left_out)


def members(index: pd.DataFrame, split: Split, client: str, smallest_cell: int) -> Mask:
    """Which rows of the index belong to a client, whatever their label: with `by: condition` all of `split.where`."""
    kept = holds(split.where or "True", index, "split.where")
    if split.by == "condition":
        return kept
    return kept & _belongs(index, split, client, split.clients[client], smallest_cell)


def truths(index: pd.DataFrame, split: Split, smallest_cell: int) -> dict[str, Floats]:
    """Client -> for each row of the index 1, 0, or NaN where the row is not eligible."""
    kept = holds(split.where or "True", index, "split.where")
    if not kept.any():
        asked = [c for c in TEXT if c not in HIDDEN and re.search(rf"\b{c}\b", split.where or "")]
        has = " ".join(f"`{c}` has: {_values(index, c, smallest_cell)}." for c in asked)
        raise FdamedError(f"no row matches `{split.where}`", "split.where", f"Loosen the condition. {has}".strip())
    out: dict[str, Floats] = {}
    for client, value in split.clients.items():
        by_condition = split.by == "condition"
        mask = members(index, split, client, smallest_cell)
        label = value if by_condition else str(split.label)
        out[client] = np.where(mask, truth_of(index, label, split, client), NAN)
        absent = [word for side, word in ((1, "positive"), (0, "negative")) if not (out[client] == side).any()]
        if absent:
            fix = f"Check split.where, split.uncertain and split.negatives (now {split.negatives})"
            out_of = "" if client in split.targets else f", or leave {client} out (remove it from split.clients)"
            fix = f"{fix}{out_of or ', or choose another target: one class cannot be tested'}."
            if label == NO_FINDING and split.positive_is == 1:
                fix = "To predict findings by No Finding, set split.positive_is: 0."
            what = f"{client} is empty" if len(absent) == 2 else f"{client} has no {absent[0]} row"
            what += f" for {label}" + ("" if by_condition else f" where {split.by} is {value!r}")
            if not (by_condition or mask.any()) and _belongs(index, split, client, value, smallest_cell).any():
                what += ": split.where leaves none of its rows"
                fix = f"Loosen split.where (now {split.where}){out_of or ', or choose another target'}."
            raise FdamedError(what, f"split.clients.{client}", fix)
    return out


def truth_of(index: pd.DataFrame, label: str, split: Split, client: str) -> Floats:
    """1, 0 or NaN for each row, by the rules for uncertain labels and negatives; `A|B` means either."""
    raw = _raw(index, label, client, split)
    positive = raw == 1
    if split.negatives == "zero":
        negative = raw == 0
        if label == NO_FINDING:  # labelers leave it blank, not 0, where they found something
            findings = index[[c for c in label_columns(index) if c not in NOT_A_FINDING]]
            negative |= np.isnan(raw) & (findings == 1).any(axis=1).to_numpy(dtype=bool)
    elif split.negatives == "blank":
        negative = np.isnan(_raw(index, label, client))
    else:
        negative = _raw(index, NO_FINDING, client) == 1
    y = np.where(positive, split.positive_is, np.where(negative, 1 - split.positive_is, np.nan))
    return y.astype("float32")


def _raw(index: pd.DataFrame, label: str, client: str, split: Split | None = None) -> Floats:
    """1 where any of the named labels is 1, else -1 where any is, else blank where any is, else 0.

    With a split, its rule for uncertain labels is applied first.
    """
    known = [c.removeprefix(LABEL) for c in label_columns(index)]
    names = [label] if label in known else [name.strip() for name in label.split("|")]
    for name in names:
        if name not in known:
            what = f"unknown label `{name}`{nearest(name, known, 0.4)} for {client}"
            where = "split.label" if split and split.by != "condition" else f"split.clients.{client}"
            raise FdamedError(what, where, f"The labels: {', '.join(known)}.")
    values = index[[LABEL + name for name in names]].to_numpy(dtype="float32")
    if split:
        # NaN would make an ignored row blank, and blank may mean negative.
        counts_as = {"ones": 1, "zeros": 0, "ignore": -1}
        values = np.where(values == -1, np.float32(counts_as[split.uncertain]), values)
    blank = np.where(np.isnan(values).any(axis=1), NAN, np.float32(0))
    doubtful = np.where((values == -1).any(axis=1), np.float32(-1), blank)
    return np.where((values == 1).any(axis=1), np.float32(1), doubtful)


def _belongs(index: pd.DataFrame, split: Split, client: str, value: str, smallest_cell: int) -> Mask:
    """Which rows have the client's value, or fulfill its expression."""
    if split.by == "expression":
        return holds(value, index, f"split.clients.{client}")
    choices = ["condition", "expression", *(c for c in TEXT if c not in HIDDEN)]
    if split.by not in choices:
        advice = " Use `by: expression` for numbers." if split.by in COLUMNS else ""
        what = f"cannot split by `{split.by}`{nearest(split.by, choices)}"
        raise FdamedError(what, "split.by", f"Known: {', '.join(choices)}.{advice}")
    found = (index[split.by] == value).fillna(False).to_numpy(dtype=bool)
    if not found.any():
        counts = index[split.by].value_counts()
        raise FdamedError(
            f"no row has {split.by} = {value!r}{nearest(value, map(str, counts.index))}, which {client} asks for",
            f"split.clients.{client}",
            f"`{split.by}` has: {_values(index, split.by, smallest_cell)}.",
        )
    return found


def _values(index: pd.DataFrame, column: str, smallest_cell: int) -> str:
    """The values of a column that may be named, the most frequent first, and what they were made from."""
    counts = index[column].value_counts()
    shown = [str(value) for value, n in counts.items() if not small(n, smallest_cell)][:20]
    more = ["rarer ones"] * (len(shown) < len(counts))
    normalized = f" (normalized: the table may have {ACCEPTED[column]})" if column in ("view", "sex", "race") else ""
    return (", ".join(shown + more) or "no value at all, or no column of the table is mapped to it") + normalized


def truths_per_patient(truth: dict[str, Floats], keys: Keys) -> Mask:
    """(patients, clients in alphabetical order): whether the patient has a usable row there."""
    return np.stack([_with_rows(~np.isnan(truth[client]), keys) for client in sorted(truth)], axis=1)


def _with_rows(rows: Mask, keys: Keys) -> Mask:
    """(patients,): whether the patient has one of these rows."""
    out = np.zeros(len(keys.patients), dtype=bool)
    out[keys.codes[rows]] = True
    return out


def one_place(truth: dict[str, Floats], keys: Keys, split: Split) -> dict[str, Floats]:
    """Every patient at one of the clients that the patient fits, by a hash with the probabilities `shares`."""
    clients = sorted(truth)
    weight = truths_per_patient(truth, keys) * np.array([split.shares.get(p, 1.0) for p in clients], dtype="float64")
    if split.balanced:
        for j, client in enumerate(clients):
            y = truth[client]
            smaller = 0 if (y == 0).sum() < (y == 1).sum() else 1
            weight[_with_rows(y == smaller, keys), j] *= SCARCE
    # Sums and products alone are the same on every machine; a logarithm need not be.
    reach = np.cumsum(weight, axis=1)
    # "party" is the name of a random stream: another word would assign other patients.
    place = (keys.uniform("party")[:, None] * reach[:, -1:] >= reach).sum(axis=1)
    return {client: np.where(place[keys.codes] == j, truth[client], NAN) for j, client in enumerate(clients)}


def _reference(index: pd.DataFrame, split: Split, keys: Keys) -> dict[str, pd.DataFrame]:
    """The published rule: Yes = 1, No = the first len(Yes) blank rows of the training table, 80/20 by image."""
    if split.by != "condition":
        raise FdamedError("rule: reference is defined for a split by condition", "split.rule", "Use rule: disjoint.")
    kept = holds(split.where or "True", index, "split.where")
    shipped = (index["release_split"] == "train").fillna(False).to_numpy(dtype=bool)
    rows = np.flatnonzero(kept & shipped if shipped.any() else kept)
    out = {}
    for client, condition in split.clients.items():
        raw = _raw(index, condition, client)[rows]
        yes = rows[raw == 1]
        out[client] = draw_reference(yes, rows[np.isnan(raw)][: len(yes)], keys, split, client)
    return out


def check_client(frame: pd.DataFrame, client: str, split: Split) -> None:
    """Raise if a class is missing where it is needed: to train anywhere, to test and to adapt at a target."""
    where = f"split.clients.{client}"
    needed: dict[str, tuple[str, ...]] = {"train": ("train", "adapt")}
    if client in split.targets:
        needed |= {"test": ("test",), "adapt": ("adapt",)}
        if not (frame["split"] == "train").any():
            fix = "Ask for fewer labeled images, or give the hospital more."
            raise FdamedError(f"{client} has no images left besides its labeled ones", "split.labeled", fix)
    for word, parts in needed.items():
        for side, name in ((0, "negative"), (1, "positive")):
            if not ((frame["y"] == side) & frame["split"].isin(parts)).any():
                fix = (
                    "Give the hospital more patients (split.shares, split.where), ask for smaller parts "
                    "(split.per_class, split.val, split.test) or leave it out."
                )
                raise FdamedError(f"{client} has no {name} image in its {word} part", where, fix)
