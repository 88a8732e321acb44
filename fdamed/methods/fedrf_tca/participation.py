"""Who sends what in a round of FedRF-TCA: the settings of the paper's Tables II, IV, V, XIII, XIV and XV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fdamed.core.rng import Stream

Setting = Literal["I", "II", "III", "msg-I", "msg-II", "msg-III", "IV", "V", "vote-B", "vote-C", "vote-D"]
VOTES = ("IV", "V", "vote-B", "vote-C", "vote-D")
"""Settings in which classifiers are never averaged: all vote at the target after the last round."""
OFTEN = ("I", "II")
"""Settings with T_C = 1; that of the others is 50."""

Names = tuple[str, ...]


@dataclass(frozen=True)
class Senders:
    """The sources that send means (S_t), W and classifiers."""

    means: Names
    w: Names
    c: Names


def draw_senders(setting: Setting, everyone: Names, round: int, rng: Stream) -> Senders:
    """The senders of a round.

    Averaged classifiers: S_t and the nested subsets of it whose W and C arrive: A/A/A, in msg-II A/A/B, in msg-III
    A/B/C. Votes (Table XV): IV all; vote-B one in order, vote-C means in order and W at random, vote-D one at random,
    V both at random.
    """
    if setting in ("I", "IV") or not everyone:
        return Senders(everyone, everyone, everyone)
    if setting in VOTES:
        in_order = (everyone[(round - 1) % len(everyone)],)
        means, w = ((everyone[int(rng.child(k).numpy.integers(len(everyone)))],) for k in ("means", "w"))
        means = in_order if setting in ("vote-B", "vote-C") else means
        return Senders(means, means if setting in ("vote-B", "vote-D") else w, everyone)
    a = subset(rng.child("means"), everyone)
    b = subset(rng.child("w"), a) if setting == "msg-III" else a
    c = subset(rng.child("c"), b) if setting in ("msg-II", "msg-III") else b
    return Senders(a, b, c)


def classifiers_due(setting: Setting, t_c: int, steps: int, round: int) -> bool:
    """Whether a round of `steps` batches passes a multiple of T_C (0: the setting's own)."""
    every = t_c or (1 if setting in OFTEN else 50)
    return round * steps // every > (round - 1) * steps // every


def subset(rng: Stream, of: Names) -> Names:
    """A random subset whose size is uniform on 0, ..., K (section IV-B)."""
    draw = rng.numpy
    size = int(draw.integers(len(of) + 1))
    return tuple(sorted(of[i] for i in draw.permutation(len(of))[:size]))
