"""Leakage check: a patient is in one part and, except under the published rule, at one client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from fdamed.core.errors import FdamedError
from fdamed.data.manifest import SPLITS

FIX = "Make the manifests with `fdamed split`; it keeps patients apart. Results on leaking data mean nothing."


@dataclass(frozen=True)
class Leakage:
    """Patients and images that are in two parts or at two clients."""

    patients_in_two_splits: int
    patients_in_two_clients: int
    images_in_two_splits: int


def check_manifests(manifests: Mapping[str, pd.DataFrame], rule: str = "disjoint") -> Leakage:
    """Count leaks between parts and clients; raise on any, except under `rule: reference`."""
    for client, frame in manifests.items():
        _check_columns(client, frame)
    columns = ["image", "patient", "split"]
    everything = pd.concat([f[columns].assign(client=p) for p, f in manifests.items()], ignore_index=True)
    leakage = Leakage(
        patients_in_two_splits=_several(everything, "patient", "split"),
        patients_in_two_clients=_several(everything, "patient", "client"),
        images_in_two_splits=_several(everything, "image", "split"),
    )
    if rule == "reference":
        return leakage
    where = "manifests of " + ", ".join(manifests)
    if leakage.patients_in_two_splits:
        n, leaking_at = leakage.patients_in_two_splits, _leaking_at(everything)
        raise FdamedError(f"{n} patients are in more than one split (at {leaking_at})", where, FIX)
    if leakage.patients_in_two_clients:
        raise FdamedError(f"{leakage.patients_in_two_clients} patients are at more than one hospital", where, FIX)
    if leakage.images_in_two_splits:
        n = leakage.images_in_two_splits
        raise FdamedError(f"{n} images are in more than one split, under different patients", where, FIX)
    return leakage


def _check_columns(client: str, frame: pd.DataFrame) -> None:
    where = f"manifest of {client}"
    absent = [c for c in ("image", "patient", "split", "y") if c not in frame]
    if absent:
        raise FdamedError(f"missing column {', '.join(absent)}", where, FIX)
    for column in ("image", "patient", "split"):
        if frame[column].isna().any() or (frame[column] == "").any():
            raise FdamedError(f"rows without {column}: leakage cannot be checked", where, FIX)
    if not frame["split"].isin(SPLITS).all():
        raise FdamedError(f"split holds values outside {', '.join(SPLITS)}", where, FIX)
    if not frame["y"].isin((0, 1)).all():
        raise FdamedError("y holds values outside 0 and 1", where, FIX)
    if frame["image"].duplicated().any():
        raise FdamedError(f"{int(frame['image'].duplicated().sum())} images are listed twice", where, FIX)


def _several(frame: pd.DataFrame, key: str, other: str) -> int:
    """Number of values of `key` that occur with more than one value of `other`."""
    pairs = frame[[key, other]].drop_duplicates()
    return int(pairs.loc[pairs[key].duplicated(), key].nunique())


def _leaking_at(frame: pd.DataFrame) -> str:
    pairs = frame[["patient", "split"]].drop_duplicates()
    leaking = pairs.loc[pairs["patient"].duplicated(), "patient"]
    return ", ".join(sorted(frame.loc[frame["patient"].isin(leaking), "client"].unique()))
