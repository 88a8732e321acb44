"""Who points against the others: a sign that an update was turned round, where label rates are no reason for it.

An honest hospital with other label rates points against the others as a liar does (docs/guard.md has the figures). So a
hospital is held only against those whose label rates, as declared in the cohort, are like its own (decision 0040).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fdamed.algebra.vector import BLOCK
from fdamed.federation.guard import SHORTEST

MAJORITY = 3
"""Others without which there is no common direction."""
HEAD = 0.5
"""So much of the limit is that for a head, where honest hospitals have most in common (decision 0040)."""
CHANCE = 2.0
"""Standard deviations by which a cosine must leave what chance gives; in d dimensions one is 1/sqrt(d)."""
Shares = tuple[float, ...]
"""How much of a hospital's images each class has."""


def gram(vectors: Sequence[Tensor], x: Tensor | None = None) -> Tensor:
    """Cosines (N, N) of the vectors (P,), or of what they are beyond x (P,); 0 where one has no length."""
    total = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
    for start in range(0, len(vectors[0]), BLOCK):
        rows = torch.stack([v[start : start + BLOCK] for v in vectors])
        if x is not None:
            rows -= x[start : start + BLOCK]
        total += (rows @ rows.t()).double()
    length = total.diagonal().clamp(min=0.0).sqrt()
    unit = torch.where(length > SHORTEST, 1.0 / length.clamp(min=SHORTEST), 0.0)
    return unit[:, None] * total * unit[None, :]


def beyond_chance(limit: float, dimensions: int) -> float:
    """The limit of a cosine, or what is beyond chance in so few dimensions that honest directions scatter as widely."""
    return min(limit, -CHANCE / math.sqrt(max(1, dimensions)))


def peers(names: Sequence[str], declared: Mapping[str, Shares], within: float | None) -> list[list[int]]:
    """For each of `names` the others whose classes have shares like its own; None: all others, whatever they declared.

    Alike are shares whose total variation is at most `within`: for two classes the difference of the label rates.
    """

    def alike(here: str, there: str) -> bool:
        if within is None:
            return True
        p, q = declared.get(here), declared.get(there)
        return p is not None and q is not None and total_variation(p, q) <= within + 1e-9

    return [[k for k, there in enumerate(names) if k != i and alike(here, there)] for i, here in enumerate(names)]


def total_variation(p: Shares, q: Shares) -> float:
    return 0.5 * sum(abs(a - b) for a, b in zip(p, q, strict=True))


def bearings(cos: Tensor, others: Sequence[Sequence[int]]) -> dict[int, Bearing]:
    """How each points to its `others`, where these are at least three; `cos` (N, N) are the cosines of the updates."""

    def along(own: int, rest: Sequence[int]) -> float:
        return float(cos[own, rest].sum() / cos[rest][:, rest].sum().clamp(min=1e-12).sqrt())

    found = {}
    for i, rest in enumerate(others):
        if len(rest) >= MAJORITY:
            agreement = sorted(along(j, [k for k in rest if k != j]) for j in rest)
            found[i] = Bearing(along(i, rest), agreement[len(agreement) // 2])
    return found


@dataclass(frozen=True)
class Bearing:
    """The cosine of an update with the sum of the others' directions, and how well half of these agree with the rest of
    them: where everybody goes its own way nobody points against the others."""

    along: float
    agreement: float


class Bearings:
    """How each source has pointed so far, and how its others agreed: of each the mean of the last round and of all
    before, so one odd round weighs half."""

    def __init__(self) -> None:
        self._mean: dict[tuple[str, str, str], Bearing] = {}
        self.news: list[dict[str, Any]] = []
        """Lines for the run's record, with which a run that is taken up again knows them too."""

    def opposed(self, round: int, step: str, part: str, found: Mapping[str, Bearing], limit: float) -> list[str]:
        """Who points against the others below `limit`, in the mean of its rounds, where these agree by as much."""
        for party, bearing in found.items():
            line = {"round": round, "party": party, "step": step, "part": part} | asdict(bearing)
            self.recall(line)
            self.news.append(line)
        means = {party: self._mean[party, step, part] for party in found}
        return [party for party, mean in means.items() if mean.along < limit and mean.agreement >= -limit]

    def recall(self, line: Mapping[str, Any]) -> None:
        """Take up one bearing of this or an earlier job."""
        key, new = (line["party"], line["step"], line["part"]), Bearing(line["along"], line["agreement"])
        old = self._mean.get(key, new)
        self._mean[key] = Bearing(0.5 * (old.along + new.along), 0.5 * (old.agreement + new.agreement))
