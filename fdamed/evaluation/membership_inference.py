"""Membership inference: an attacker takes patients with a low loss for members (Yeom et al. 2018).

The unit is the patient, as in differential privacy: the attacker uses the mean log-likelihood of a patient's images.
The calibrated attacker subtracts that of models without these members, because a difficult image says nothing about
membership (Watson et al. 2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from fdamed.core.disclosure import small
from fdamed.core.rng import Stream
from fdamed.evaluation.bootstrap import draws, percentiles
from fdamed.evaluation.metrics import Curve, area, sensitivity_at

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
RATES = {"tpr_at_1": 0.01, "tpr_at_01": 0.001}
"""Name of a true positive rate -> its false positive rate."""
GATE = 0.60
"""An AUC above this means that a model reveals its members."""
REPLICATES = 1000
LEAST = 1e-6
"""Probabilities are clipped here, so that one image does not outweigh a patient's others."""


def reveals(attack: Mapping[str, Any] | None, untrained: Mapping[str, Any] | None) -> bool:
    """Whether an attack does better than the gate, than chance and than the same attack on the untrained model."""
    if not attack or not attack["auc"]:
        return False
    least = max(0.5, untrained["auc"]["value"] if untrained and untrained["auc"] else 0.5)
    return bool(attack["auc"]["value"] > GATE and attack["auc"]["low"] > least)


def surprise(y: ArrayLike, probabilities: ArrayLike) -> Floats:
    """Log-likelihood (n,) of labels `y` under probabilities (n, C): high where the loss is low."""
    p, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(y, dtype=np.intp)
    return np.asarray(np.log(np.clip(p[np.arange(len(labels)), labels], LEAST, 1.0)))


def within_class(values: Floats, y: ArrayLike, outside: NDArray[np.bool_]) -> Floats:
    """Values (n,) less the mean of their class among the images `outside`; NaN where it has none there.

    Classes are not equally difficult, nor equally frequent among members and others: even an untrained model would seem
    to reveal members. An attacker who knows labels corrects for this, too (Song and Mittal 2021).
    """
    labels = pd.Series(np.asarray(y))
    usual = pd.Series(values[outside]).groupby(labels[outside].to_numpy()).mean()
    return np.asarray(values - labels.map(usual))


def attack_patients(
    likelihoods: Sequence[Floats],
    inside: Sequence[NDArray[np.bool_]],
    outside: NDArray[np.bool_],
    owner: Ints,
    y: ArrayLike,
    stream: Stream,
    smallest: int,
) -> dict[str, Any] | None:
    """The attack on patients, from the log-likelihoods (n,) of images under each seed's model.

    `inside`: the images that trained each model; `outside`: those of the test part. A patient who has images on both
    sides (in a split that leaks) is a member, and only the images inside count.
    """
    patients = int(owner.max(initial=-1)) + 1
    members, values = [], []
    for mine, likelihood in zip(inside, likelihoods, strict=True):
        member = np.bincount(owner[mine], minlength=patients) > 0
        others = outside & ~member[owner]
        known = within_class(likelihood, y, others)
        used = (mine | others) & np.isfinite(known)
        members.append(member)
        means = pd.Series(known[used]).groupby(owner[used]).mean().reindex(range(patients))
        values.append(np.asarray(means, dtype=np.float64))
    return attacked(members, values, stream, smallest)


def attacked(
    members: Sequence[NDArray[np.bool_]],
    said: Sequence[Floats],
    stream: Stream,
    smallest: int,
    replicates: int = REPLICATES,
) -> dict[str, Any] | None:
    """How well an attacker separates members (K,) from others by the value of each patient with each seed, (K,).

    NaN: a patient who is left out with this seed. Name -> value and interval over patients and seeds, both drawn with
    replacement; None where either side has few patients. A rate that a single patient would exceed is undefined, and
    one that stands for few patients is given as a bound.
    """
    asked = [np.isfinite(values) for values in said]
    seeds = [(m[a], s[a], a) for m, s, a in zip(members, said, asked, strict=True)]
    inside, outside = (min(int((m == side).sum()) for m, _, _ in seeds) for side in (True, False))
    if min(inside, outside) < max(2, smallest):
        return None
    once = np.ones((1, len(said[0])), dtype=np.float32)
    found = {name: float(values.mean()) for name, values in _of_seeds(seeds, once).items()}
    parts = [_of_seeds(seeds, times) for times in draws(stream.child("patients"), replicates, once.size, once.size)]
    which = stream.child("seeds").numpy.integers(0, len(seeds), size=(len(seeds), replicates))
    out: dict[str, Any] = {}
    for name in found:
        drawn = np.take_along_axis(np.concatenate([part[name] for part in parts], axis=1), which, axis=0).mean(axis=0)
        ends = percentiles(drawn)
        if RATES.get(name, 1.0) * outside < 1 or ends is None:
            out[name] = None
        elif name in RATES and small(round(found[name] * inside), smallest):
            out[name] = {"below": smallest / inside}
        else:
            out[name] = {"value": found[name], "low": ends[0], "high": ends[1]}
    return out


def _of_seeds(
    seeds: Sequence[tuple[NDArray[np.bool_], Floats, NDArray[np.bool_]]], times: NDArray[np.float32]
) -> dict[str, Floats]:
    """Name -> (S, R): the attack on each seed's model in R draws; `times` (R, K): how often each patient was drawn."""
    parts = []
    for members, values, asked in seeds:
        caught, alarms = Curve.of(members, values, np.arange(len(members))).counts(times[:, asked])
        rates = {name: sensitivity_at(caught, alarms, rate) for name, rate in RATES.items()}
        parts.append({"auc": area(caught, alarms)} | rates)
    return {name: np.stack([part[name] for part in parts]) for name in ("auc", *RATES)}
