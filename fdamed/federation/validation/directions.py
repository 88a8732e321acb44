"""Directions of updates: which point against the others, where label rates do not explain it (opt-in).

An honest client with other label rates points against the others as an attacker does (docs/explanation/validation.md).
So a client is compared only with those whose label rates, as declared in the cohort, are like its own (decision 0040),
as a whole and layer by layer: large networks have layers in which honest clients share nothing, and others in which
they share much (decision 0041).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fdamed.federation.validation.norms import SMALLEST
from fdamed.ops.aggregation import BLOCK

MAJORITY = 3
"""Others without which there is no common direction."""
DEVIATIONS = 3.0
"""A cosine must be so many standard deviations from 0; in d dimensions one is 1/sqrt(d)."""
DIGITS = 5
"""Of a cosine that is kept for the next rounds, in memory and on file alike."""
Shares = tuple[float, ...]
"""The share of each class in a client's images."""
Stretch = tuple[int, int]
"""Where a layer begins and ends in the vector."""


def layer_cosines(vectors: Sequence[Tensor], layers: Sequence[Stretch], x: Tensor | None = None) -> Tensor:
    """Cosines (1 + L, N, N) of the vectors (P,), or of what they are beyond x (P,): as a whole, then layer by layer.

    The whole is what the L layers make up together, or where there are none all of the vectors. A cosine is 0 where one
    of the two is zero.
    """
    products = torch.zeros(1 + len(layers), len(vectors), len(vectors), dtype=torch.float64)
    parts = zip(products[1:], layers, strict=True) if layers else [(products[0], (0, len(vectors[0])))]
    for own, (begin, end) in parts:
        for start in range(begin, end, BLOCK):
            here = slice(start, min(start + BLOCK, end))
            rows = torch.stack([v[here] for v in vectors])
            if x is not None:
                rows -= x[here]
            own += (rows @ rows.t()).double()
    if layers:
        products[0] = products[1:].sum(0)
    norm = products.diagonal(dim1=1, dim2=2).clamp(min=0.0).sqrt()
    unit = torch.where(norm > SMALLEST, 1.0 / norm.clamp(min=SMALLEST), 0.0)
    return unit[:, :, None] * products * unit[:, None, :]


def limits(limit: float, layers: Sequence[Stretch], size: int) -> Tensor:
    """The limit (1 + L,) for the whole and each layer: the configured one, or what is beyond random in so few numbers.

    `size`: of the whole.
    """
    sizes = torch.tensor([size, *(end - begin for begin, end in layers)], dtype=torch.float64)
    return (-DEVIATIONS / sizes.clamp(min=1.0).sqrt()).clamp(max=limit)


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
    """How each points to its `others`, where these are at least three; `cos` (L, N, N) are the updates' cosines."""
    own = cos.diagonal(dim1=1, dim2=2)
    found = {}
    for i, rest in enumerate(others):
        if len(rest) >= MAJORITY:
            to_all = cos[:, :, rest].sum(2)
            square = to_all[:, rest].sum(1)
            without = (to_all - own)[:, rest] / _root(square[:, None] - (2.0 * to_all - own)[:, rest])
            found[i] = Bearing(to_all[:, i] / _root(square), without.sort(1).values[:, len(rest) // 2])
    return found


def _root(square: Tensor) -> Tensor:
    return square.clamp(min=1e-12).sqrt()


@dataclass(frozen=True, eq=False)
class Bearing:
    """The cosine (L,) of an update with the sum of the others' directions, and how well half of these agree with the
    rest of them: where everybody goes its own way nobody points against the others."""

    along: Tensor
    agreement: Tensor


@dataclass(frozen=True, eq=False)
class Past:
    """The cosine of a source so far (L,), a mean in which the last round weighs half, and where it was excluded."""

    along: Tensor
    aside: Tensor


class Bearings:
    """The cosine of each source with the others so far.

    A source is excluded where the mean of its rounds points against others who agree: one odd round does not suffice.
    It is accepted again when that mean points along with them.
    """

    def __init__(self) -> None:
        self._past: dict[tuple[str, str, str], Past] = {}
        self.news: list[dict[str, Any]] = []
        """Lines for the run's record, from which a resumed run restores them."""

    def opposed(self, round: int, step: str, part: str, found: Mapping[str, Bearing], limits: Tensor) -> list[str]:
        """Who is excluded in this round: below the `limits` (L,), where the others agree by as much, or still."""
        offenders = []
        for client, new in found.items():
            past = self._past.get((client, step, part), Past(new.along, torch.zeros(len(new.along), dtype=torch.bool)))
            along = (0.5 * (past.along + new.along)).round(decimals=DIGITS)
            aside = ((along < limits) & (new.agreement >= -limits)) | (past.aside & (along < 0.0))
            line = {"round": round, "client": client, "step": step, "part": part}
            line |= {"along": along.tolist(), "aside": aside.nonzero().flatten().tolist()}
            self.recall(line)
            self.news.append(line)
            if aside.any():
                offenders.append(client)
        return offenders

    def still(self, step: str, part: str, clients: Iterable[str]) -> list[str]:
        """Which of these were excluded last: as long as there is nobody to compare with, they stay so."""
        past = {client: self._past.get((client, step, part)) for client in clients}
        return [client for client, own in past.items() if own is not None and bool(own.aside.any())]

    def recall(self, line: Mapping[str, Any]) -> None:
        """Restore one line of this or an earlier job."""
        along = torch.tensor(line["along"], dtype=torch.float64)
        aside = torch.zeros(len(along), dtype=torch.bool)
        aside[line["aside"]] = True
        self._past[line["client"], line["step"], line["part"]] = Past(along, aside)
