"""KD3A's rules (Feng et al. 2021) on teachers' outputs: knowledge vote, consensus quality and focus, domain weights.

q (K, n, C) holds the softmax outputs of K teachers on n samples. A teacher votes on a sample if its confidence, the
largest of its C outputs, is above the gate. The class with the most confidence wins; ties go to the lowest class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import factorial

import numpy as np
import torch
from torch import Tensor

LARGEST_TABLE, ORDERS = 10, 50
"""Up to so many teachers Shapley values are exact, over all subsets; beyond, over so many sampled orders."""
_CHUNK = 2048
"""Samples at a time in the subset table: its rows stay in the cache."""


@dataclass(frozen=True)
class Vote:
    """What the teachers agree on, sample by sample."""

    p: Tensor
    """(n, C): mean of the supporters' outputs; of all teachers where none voted."""
    label: Tensor
    """(n,): the class with the largest p."""
    supporters: Tensor
    """(n,): n_p, the number of teachers that voted for the class."""


def vote(q: Tensor, gate: float) -> Vote:
    """The knowledge vote: confidence gate, class vote, mean vote."""
    confidence, top = q.max(dim=2)
    votes = confidence > gate
    score = torch.zeros(q.shape[1:], dtype=torch.float64)
    score.scatter_add_(1, top.t(), (confidence.double() * votes).t())
    support = votes & (top == score.argmax(1))
    n_p = support.sum(0)
    counted = support | (n_p == 0)
    p = torch.einsum("kn,knc->nc", counted.double(), q.double()) / counted.sum(0).unsqueeze(1)
    return Vote(p, p.argmax(1), n_p)


def qualities(q: Tensor, gate: float, subsets: Tensor, low: float = 0.0) -> Tensor:
    """Q(S) = sum_i n_p(S) max p_i(S) for each row of `subsets` (S, K) bool, the vote redone with these teachers: (S,).

    `low` is n_p where nobody in S votes. The empty set has quality 0.
    """
    confidence, top = q.max(dim=2)
    voted = torch.where(confidence > gate, confidence, 0.0).double().t()  # (n, K)
    # n_p max p is the sum of the supporters' confidences: the largest, over the classes named, of S's sum for each.
    some = voted.any(1)
    sure, named, member = voted[some], top.t()[some], subsets.double().t().contiguous()
    total = torch.zeros(len(subsets), dtype=torch.float64)
    for a, c in zip(torch.split(sure, _CHUNK), torch.split(named, _CHUNK), strict=True):
        alike = a.unsqueeze(1) * (c.unsqueeze(1) == c.unsqueeze(2))  # [i, j, k]: k's confidence in the class j names
        total += torch.matmul(alike, member).amax(1).sum(0)
    if low:
        total += low * torch.stack([_without_vote(q[s], voted[:, s]) for s in subsets])
    return total


def _without_vote(q: Tensor, voted: Tensor) -> Tensor:
    """Sum of max p_i over the samples on which none of these teachers votes; 0 without teachers."""
    if not len(q):
        return torch.zeros((), dtype=torch.float64)
    return q[:, ~voted.any(1)].double().mean(0).amax(1).sum()


def all_subsets(k: int) -> Tensor:
    """(2^K, K) bool: row s has the teachers whose bits are set in s."""
    return (torch.arange(1 << k).unsqueeze(1) >> torch.arange(k) & 1).bool()


def shapley(quality: Tensor) -> Tensor:
    """Shapley values (K,) from the table of all subsets (2^K,), in the order of `all_subsets`."""
    k = len(quality).bit_length() - 1
    member = all_subsets(k)
    joins = [0.0, *(factorial(s - 1) * factorial(k - s) / factorial(k) for s in range(1, k + 1)), 0.0]
    by_size, size = torch.tensor(joins, dtype=torch.float64), member.sum(1)
    # A set with the teacher counts for it, the same set without it against it, both by the size of the larger one.
    gain, loss = by_size[size], by_size[size + 1]
    return (torch.where(member, gain.unsqueeze(1), -loss.unsqueeze(1)) * quality.double().unsqueeze(1)).sum(0)


def shapley_focus(q: Tensor, gate: float, rng: np.random.Generator) -> Tensor:
    """Consensus focus of the released code: Shapley values of Q, (K,); exact up to ten teachers, then by sampling."""
    k = len(q)
    if k <= LARGEST_TABLE:
        return shapley(qualities(q, gate, all_subsets(k)))
    orders = [rng.permutation(k).tolist() for _ in range(ORDERS)]
    grown = torch.zeros(ORDERS * k, k, dtype=torch.bool)
    for row, first in enumerate(p for order in orders for p in accumulate([[j] for j in order])):
        grown[row, first] = True
    quality = qualities(q, gate, grown).view(ORDERS, k)
    joined = quality.diff(dim=1, prepend=torch.zeros(ORDERS, 1, dtype=torch.float64))
    return torch.zeros(k, dtype=torch.float64).index_add_(0, torch.tensor(orders).view(-1), joined.reshape(-1)) / ORDERS


def marginal_focus(q: Tensor, gate: float, low: float = 0.0) -> Tensor:
    """Consensus focus of the paper: CF(k) = Q(all) - Q(all but k), (K,)."""
    k = len(q)
    subsets = torch.vstack([torch.ones(1, k, dtype=torch.bool), ~torch.eye(k, dtype=torch.bool)])
    quality = qualities(q, gate, subsets, low)
    return quality[0] - quality[1:]


def weights_by_confidence(focus: Tensor, passed: float) -> Tensor:
    """(K+1,), the target last: `passed`/(K+1) for the target, the rest in proportion to the focus (released code)."""
    return _weights(focus, passed / (len(focus) + 1))


def weights_by_samples(focus: Tensor, n: Sequence[int], n_target: int) -> Tensor:
    """(K+1,), the target last: its share of all samples, the rest in proportion to N_k CF(k) (paper)."""
    if not bool((focus > 0).any()):
        focus = torch.ones_like(focus)
    return _weights(focus * torch.tensor(n, dtype=torch.float64), n_target / (sum(n) + n_target))


def _weights(merit: Tensor, target: float) -> Tensor:
    merit = merit.double().clamp(min=0.0)
    if not float(merit.sum()) > 0:
        merit = torch.ones_like(merit)
    own = torch.tensor([target], dtype=torch.float64)
    return torch.cat([(1.0 - target) * merit / merit.sum(), own])


def smoothed(new: Tensor, old: Tensor, keep: float) -> Tensor:
    """keep * old + (1 - keep) * new, adding up to 1; where `old` is negative there was none, and `new` stands."""
    mixed = torch.where(old < 0, new, keep * old + (1.0 - keep) * new)
    return mixed / mixed.sum()


def average_buffers(buffers: Tensor, alpha: Tensor, pairs: Sequence[tuple[slice, slice]]) -> Tensor:
    """BatchNorm statistics (B,) of the average of models with `buffers` (K, B); `pairs`: where (mean, variance) are.

    The pairs take the closed form of the BatchNorm-MMD: mean and second moment are averaged, so the variance gains
    what lies between the models, sum_k a_k (mu_k - mu)^2. Without pairs everything is averaged plainly.
    """
    b, a = buffers.double(), alpha.double()
    out = a @ b
    for mean, variance in pairs:
        out[variance] = (a @ (b[:, variance] + b[:, mean].square()) - out[mean].square()).clamp_(min=0.0)
    return out.to(buffers.dtype)
