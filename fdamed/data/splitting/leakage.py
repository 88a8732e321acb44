"""Leakage check: a patient is in one part and, except under the published rule, at one client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from fdamed.core.disclosure import vague
from fdamed.core.errors import FdamedError
from fdamed.data.manifest import PARTS

FIX = "Make the manifests with `fdamed split`; it keeps patients apart. Results on leaking data mean nothing."


@dataclass(frozen=True)
class Leakage:
    """Patients and images that are in two parts or at two clients."""

    patients_in_two_splits: int
    patients_in_two_clients: int
    images_in_two_splits: int


def check_manifests(manifests: Mapping[str, pd.DataFrame], rule: str = "disjoint", smallest: int = 1) -> Leakage:
    """Count leaks between parts and clients; raise on any, except under `rule: reference`.

    Of counts below `smallest` the error says only the range.
    """
    for client, frame in manifests.items():
        _check_columns(client, frame, smallest)
    leakage = count_leaks(manifests)
    if rule == "reference" or leakage == Leakage(0, 0, 0):
        return leakage
    if leakage.patients_in_two_splits:
        rows = _joined(manifests)
        leaking = rows["patient"].isin(_in_several(rows, "patient", "split"))
        clients = ", ".join(sorted(rows.loc[leaking, "client"].unique()))
        what = f"{vague(leakage.patients_in_two_splits, smallest)} patients are in more than one part (at {clients})"
    elif leakage.patients_in_two_clients:
        what = f"{vague(leakage.patients_in_two_clients, smallest)} patients are at more than one hospital"
    else:
        images = vague(leakage.images_in_two_splits, smallest)
        what = f"{images} images are in more than one part, under different patients"
    raise FdamedError(what, f"manifests of {', '.join(manifests)}", FIX)


def count_leaks(manifests: Mapping[str, pd.DataFrame]) -> Leakage:
    """Patients and images in two parts or at two clients."""
    rows = _joined(manifests)
    pairs = ("patient", "split"), ("patient", "client"), ("image", "split")
    return Leakage(*(len(_in_several(rows, key, other)) for key, other in pairs))


def _joined(manifests: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    columns = ["image", "patient", "split"]
    return pd.concat([frame[columns].assign(client=client) for client, frame in manifests.items()], ignore_index=True)


def _check_columns(client: str, frame: pd.DataFrame, smallest: int) -> None:
    where = f"manifest of {client}"
    absent = [c for c in ("image", "patient", "split", "y") if c not in frame]
    if absent:
        raise FdamedError(f"missing column {', '.join(absent)}", where, FIX)
    blank = [c for c in ("image", "patient", "split") if (frame[c].fillna("") == "").any()]
    twice = int(frame["image"].duplicated().sum())
    faults = {
        f"rows without {', '.join(blank)}: leakage cannot be checked": bool(blank),
        f"split holds values outside {', '.join(PARTS)}": not frame["split"].isin(PARTS).all(),
        "y holds values outside 0 and 1": not frame["y"].isin((0, 1)).all(),
        f"{vague(twice, smallest)} images are listed twice": twice > 0,
    }
    for what, wrong in faults.items():
        if wrong:
            raise FdamedError(what, where, FIX)


def _in_several(rows: pd.DataFrame, key: str, other: str) -> pd.Series:
    """The values of `key` that occur with more than one value of `other`."""
    pairs = rows[[key, other]].drop_duplicates()
    return pairs.loc[pairs[key].duplicated(), key].drop_duplicates()
