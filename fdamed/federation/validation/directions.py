"""Directions of updates: which point against the others although their label rates are alike (opt-in).

An honest client with another label rate points against the others as an attacker does (docs/explanation/validation.md).
So a client is compared only with peers, whose label rates in the cohort are like its own (decision 0040), as a whole
and layer by layer: in some layers of a large network honest updates share nothing, in others much (decision 0041).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fdamed.federation.validation.norms import SMALLEST
from fdamed.ops.aggregation import BLOCK

MAJORITY = 3
"""Fewer peers have no common direction."""
DEVIATIONS = 3.0
"""A cosine must be so many standard deviations from 0; in d dimensions one is 1/sqrt(d)."""
DIGITS = 5
"""Decimals of a cosine that is kept for later rounds, in memory and on file alike."""
Shares = tuple[float, ...]
"""The share of each class in a client's images."""
Stretch = tuple[int, int]
"""Start and stop of a layer in the vector."""


def layer_cosines(vectors: Sequence[Tensor], layers: Sequence[Stretch], x: Tensor | None = None) -> Tensor:
    """Cosines (1 + L, N, N) of the vectors (P,), or of their differences from x (P,): as a whole, then by layer.

    The whole consists of the L layers, or without any of the complete vectors. A cosine with a zero vector is 0.
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
    """The limit (1 + L,) for the whole, which has `size` numbers, and each layer: lower where chance alone goes below
    the configured one."""
    sizes = torch.tensor([size, *(end - begin for begin, end in layers)], dtype=torch.float64)
    return (-DEVIATIONS / sizes.clamp(min=1.0).sqrt()).clamp(max=limit)


def peers(names: Sequence[str], declared: Mapping[str, Shares], gap: float | None) -> list[list[int]]:
    """For each of `names` the others whose class shares have a total variation of at most `gap`; None: all others.

    With two classes the total variation is the difference of the label rates.
    """

    def alike(here: str, there: str) -> bool:
        if gap is None:
            return True
        p, q = declared.get(here), declared.get(there)
        return p is not None and q is not None and total_variation(p, q) <= gap + 1e-9

    return [[k for k, there in enumerate(names) if k != i and alike(here, there)] for i, here in enumerate(names)]


def total_variation(p: Shares, q: Shares) -> float:
    return 0.5 * sum(abs(a - b) for a, b in zip(p, q, strict=True))


class Similarity(NamedTuple):
    """The cosine (L,) of an update with the sum of its peers' directions, and the agreement (L,) of the peers: the
    median cosine of one of them with the rest of them."""

    cosine: Tensor
    agreement: Tensor


def similarities(cos: Tensor, others: Sequence[Sequence[int]]) -> dict[int, Similarity]:
    """The similarity of each client with its peers, if there are at least three; from the cosines (L, N, N)."""
    own = cos.diagonal(dim1=1, dim2=2)
    found = {}
    for i, rest in enumerate(others):
        if len(rest) >= MAJORITY:
            to_all = cos[:, :, rest].sum(2)
            square = to_all[:, rest].sum(1)
            without = (to_all - own)[:, rest] / _root(square[:, None] - (2.0 * to_all - own)[:, rest])
            found[i] = Similarity(to_all[:, i] / _root(square), without.sort(1).values[:, len(rest) // 2])
    return found


def _root(square: Tensor) -> Tensor:
    return square.clamp(min=1e-12).sqrt()


class DirectionHistory:
    """The mean cosine of each source so far, in which the last round weighs half, and where it was excluded.

    A source is excluded if its mean cosine is below the limit and its peers agree by as much; one odd round is not
    enough. It is accepted again when the mean is not negative.
    """

    def __init__(self) -> None:
        self._past: dict[tuple[str, str, str], tuple[Tensor, Tensor]] = {}
        """Client, step and field -> mean cosine (L,), and whether it was excluded (L,)."""
        self.news: list[dict[str, Any]] = []
        """Lines for the run's record, from which a resumed run restores them."""

    def excluded(self, round: int, step: str, field: str, found: Mapping[str, Similarity], limits: Tensor) -> list[str]:
        """Which of the clients are excluded in this round, with limits (L,)."""
        out = []
        for client, (cosine, agreement) in found.items():
            past, was_out = self._past.get((client, step, field), (cosine, torch.zeros(len(cosine), dtype=torch.bool)))
            mean = (0.5 * (past + cosine)).round(decimals=DIGITS)
            is_out = ((mean < limits) & (agreement >= -limits)) | (was_out & (mean < 0.0))
            line = {"round": round, "client": client, "step": step, "field": field}
            line |= {"cosine": mean.tolist(), "excluded": is_out.nonzero().flatten().tolist()}
            self.recall(line)
            self.news.append(line)
            if is_out.any():
                out.append(client)
        return out

    def still_excluded(self, step: str, field: str, clients: Iterable[str]) -> list[str]:
        """Which of these were excluded last: without enough peers to compare with, they stay excluded."""
        return [c for c in clients if (past := self._past.get((c, step, field))) is not None and bool(past[1].any())]

    def recall(self, line: Mapping[str, Any]) -> None:
        """Restore one line of this or an earlier job."""
        cosine = torch.tensor(line["cosine"], dtype=torch.float64)
        excluded = torch.zeros(len(cosine), dtype=torch.bool)
        excluded[line["excluded"]] = True
        self._past[line["client"], line["step"], line["field"]] = cosine, excluded
