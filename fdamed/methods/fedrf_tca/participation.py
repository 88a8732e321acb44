"""Who sends what in a round of FedRF-TCA: the settings of the paper's Tables II, IV, V, XIII, XIV and XV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fdamed.core.rng import Stream

Setting = Literal["I", "II", "III", "msg-I", "msg-II", "msg-III", "IV", "V", "vote-B", "vote-C", "vote-D"]
VOTES = ("IV", "V", "vote-B", "vote-C", "vote-D")
"""Settings in which classifiers are never averaged: all vote at the target, in the end."""
OFTEN = ("I", "II")
"""Settings with T_C = 1; that of the others is 50."""

Names = tuple[str, ...]


@dataclass(frozen=True)
class Senders:
    """The sources that send means (S_t), W and classifiers."""

    means: Names
    w: Names
    c: Names


def averaging(setting: Setting, everyone: Names, rng: Stream) -> Senders:
    """S_t and the subsets of it whose other messages arrive: A/A/A, in msg-II A/A/B, in msg-III A/B/C."""
    a = everyone if setting == "I" else subset(rng.child("means"), everyone)
    b = subset(rng.child("w"), a) if setting == "msg-III" else a
    c = subset(rng.child("c"), b) if setting in ("msg-II", "msg-III") else b
    return Senders(a, b, c)


def voting(setting: Setting, everyone: Names, round: int, rng: Stream) -> Senders:
    """Table XV: (A) = IV all, (B) one in order, (C) means in order and W at random, (D) one at random, (E) = V two."""
    if setting == "IV" or not everyone:
        return Senders(everyone, everyone, everyone)
    in_order = (everyone[(round - 1) % len(everyone)],)
    means, w = ((everyone[int(rng.child(k).numpy.integers(len(everyone)))],) for k in ("means", "w"))
    means = in_order if setting in ("vote-B", "vote-C") else means
    return Senders(means, means if setting in ("vote-B", "vote-D") else w, everyone)


def due(setting: Setting, t_c: int, steps: int, round: int) -> bool:
    """Whether a round of `steps` batches passes a multiple of T_C (0: the setting's own)."""
    every = t_c or (1 if setting in OFTEN else 50)
    return round * steps // every > (round - 1) * steps // every


def subset(rng: Stream, of: Names) -> Names:
    """How many is uniform on 0, ..., K; who, without replacement (section IV-B)."""
    draw = rng.numpy
    size = int(draw.integers(len(of) + 1))
    return tuple(sorted(of[i] for i in draw.permutation(len(of))[:size]))
