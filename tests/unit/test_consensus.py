"""KD3A's vote, qualities and weights against numbers worked out on paper."""

from __future__ import annotations

import itertools
from math import factorial

import numpy as np
import pytest
import torch
from torch import Tensor

from fdamed.core.rng import stream
from fdamed.methods.kd3a import consensus
from fdamed.methods.kd3a.consensus import (
    all_subsets,
    average_buffers,
    marginal_focus,
    qualities,
    shapley,
    shapley_focus,
    smoothed,
    vote,
    weights_by_confidence,
    weights_by_samples,
)

GATE = 0.8
BY_SAMPLE = [
    [(0.9, 0.05, 0.05), (0.85, 0.10, 0.05), (0.05, 0.9, 0.05)],
    [(0.5, 0.3, 0.2), (0.05, 0.05, 0.9), (0.4, 0.4, 0.2)],
    [(0.6, 0.3, 0.1), (0.3, 0.6, 0.1), (0.7, 0.2, 0.1)],
    [(0.02, 0.95, 0.03), (0.03, 0.92, 0.05), (0.04, 0.9, 0.06)],
]
Q = torch.tensor(BY_SAMPLE, dtype=torch.float64).transpose(0, 1)
"""Three teachers, four samples, three classes."""


def random_outputs(k: int, n: int, classes: int, name: str = "q") -> Tensor:
    return torch.softmax(3 * torch.randn(k, n, classes, generator=stream(1, name).torch, dtype=torch.float64), dim=2)


def by_hand(q: Tensor, gate: float, members: tuple[int, ...], low: float) -> float:
    """Q(S) in plain Python, sample by sample."""
    total = 0.0
    for sample in q[list(members)].transpose(0, 1).tolist():
        spoken = [row for row in sample if max(row) > gate]
        if not spoken:
            total += low * max(np.mean(sample, axis=0))
            continue
        said = [sum(max(r) for r in spoken if r.index(max(r)) == c) for c in range(len(sample[0]))]
        supporters = [r for r in spoken if r.index(max(r)) == said.index(max(said))]
        total += len(supporters) * max(np.mean(supporters, axis=0))
    return total


def test_the_vote_is_gate_then_class_then_mean_of_the_supporters() -> None:
    v = vote(Q, GATE)
    assert v.label.tolist() == [0, 2, 0, 1]
    assert v.supporters.tolist() == [2, 1, 0, 3]
    expected = [[0.875, 0.075, 0.05], [0.05, 0.05, 0.9], [1.6 / 3, 1.1 / 3, 0.1], [0.03, 2.77 / 3, 0.14 / 3]]
    torch.testing.assert_close(v.p, torch.tensor(expected, dtype=torch.float64))


def test_the_quality_of_every_subset() -> None:
    expected = [0.0, 1.85, 2.67, 4.52, 1.80, 2.75, 3.62, 5.42]
    assert qualities(Q, GATE, all_subsets(3)).tolist() == pytest.approx(expected)
    assert qualities(Q, GATE, all_subsets(3), low=0.001)[-1].item() == pytest.approx(5.42 + 0.001 * 1.6 / 3)


def test_the_focus_of_the_paper_and_of_the_code() -> None:
    assert marginal_focus(Q, GATE, low=0.001).tolist() == pytest.approx([1.800033, 2.669433, 0.900083], abs=5e-7)
    assert shapley(qualities(Q, GATE, all_subsets(3))).tolist() == pytest.approx(
        [1.683333, 2.528333, 1.208333], abs=5e-7
    )


def test_the_weights_of_the_paper_and_of_the_code() -> None:
    paper = weights_by_samples(marginal_focus(Q, GATE, low=0.001), [100, 300, 600], 500)
    assert paper.tolist() == pytest.approx([0.078903, 0.351037, 0.236726, 1 / 3], abs=5e-7)
    code = weights_by_confidence(shapley_focus(Q, GATE, stream(0).numpy), 0.75)
    assert code.tolist() == pytest.approx([0.252345, 0.379017, 0.181139, 0.1875], abs=5e-7)


@pytest.mark.parametrize("low", [0.0, 0.001])
def test_the_table_of_subsets_is_what_voting_with_each_of_them_gives(low) -> None:
    q = random_outputs(4, 60, 3)
    subsets = all_subsets(4)
    table = qualities(q, 0.7, subsets, low)
    for row, quality in zip(subsets.tolist(), table.tolist(), strict=True):
        members = tuple(k for k in range(4) if row[k])
        assert quality == pytest.approx(by_hand(q, 0.7, members, low) if members else 0.0)


def test_more_samples_than_one_chunk_add_up(monkeypatch) -> None:
    q = random_outputs(3, 50, 2)
    whole = qualities(q, 0.8, all_subsets(3))
    monkeypatch.setattr(consensus, "_CHUNK", 7)
    torch.testing.assert_close(qualities(q, 0.8, all_subsets(3)), whole)


def test_shapley_is_the_mean_over_all_orders() -> None:
    q = random_outputs(4, 30, 3)
    table = qualities(q, 0.7, all_subsets(4))
    value = torch.zeros(4, dtype=torch.float64)
    for order in itertools.permutations(range(4)):
        before = 0
        for k in order:
            value[k] += table[before | 1 << k] - table[before]
            before |= 1 << k
    torch.testing.assert_close(shapley(table), value / factorial(4))


@pytest.mark.parametrize("k", [1, 2, 6, 12])
def test_the_shapley_values_add_up_to_the_quality_of_all(k) -> None:
    q = random_outputs(k, 40, 3)
    focus = shapley_focus(q, 0.7, stream(3).numpy)
    everyone = qualities(q, 0.7, torch.ones(1, k, dtype=torch.bool))
    assert focus.sum().item() == pytest.approx(everyone.item(), rel=1e-12)


def test_sampled_orders_come_near_the_exact_values(monkeypatch) -> None:
    q = random_outputs(5, 200, 2)
    exact = shapley_focus(q, 0.7, stream(3).numpy)
    monkeypatch.setattr(consensus, "LARGEST_TABLE", 4)
    sampled = shapley_focus(q, 0.7, stream(3).numpy)
    assert not torch.equal(sampled, exact)
    torch.testing.assert_close(sampled, exact, rtol=0.1, atol=0)


@pytest.mark.parametrize("focus", [marginal_focus, lambda q, gate: shapley_focus(q, gate, stream(0).numpy)])
def test_other_names_for_the_teachers_change_only_the_names(focus) -> None:
    q = random_outputs(4, 40, 3)
    torch.testing.assert_close(focus(q[[2, 0, 3, 1]], 0.7), focus(q, 0.7)[[2, 0, 3, 1]])


def test_a_silent_teacher_has_no_focus_and_twins_have_the_same() -> None:
    q = random_outputs(3, 40, 3)
    q = torch.cat([q, q[:1], torch.full((1, 40, 3), 1 / 3, dtype=torch.float64)])
    focus = shapley_focus(q, 0.7, stream(0).numpy)
    assert focus[4].item() == pytest.approx(0.0, abs=1e-12)
    assert focus[0].item() == pytest.approx(focus[3].item())
    assert marginal_focus(q, 0.7)[4].item() == 0.0


def test_more_teachers_never_lower_the_quality() -> None:
    table = qualities(random_outputs(5, 80, 4), 0.6, all_subsets(5))
    for s, k in itertools.product(range(32), range(5)):
        assert table[s | 1 << k] >= table[s] - 1e-12


def test_ties_go_to_the_lowest_class_and_the_gate_itself_is_closed() -> None:
    q = torch.tensor([[[0.1, 0.9]], [[0.9, 0.1]]], dtype=torch.float64)
    assert vote(q, 0.8).label.item() == 0
    assert vote(q, 0.9).supporters.item() == 0


def test_a_class_that_no_teacher_knows_changes_nothing() -> None:
    wider = torch.cat([Q, torch.zeros(3, 4, 1, dtype=torch.float64)], dim=2)
    torch.testing.assert_close(
        shapley_focus(wider, GATE, stream(0).numpy), shapley_focus(Q, GATE, stream(0).numpy), rtol=1e-12, atol=0
    )


def test_without_any_vote_the_sources_are_equal_and_the_target_weighs_nothing() -> None:
    focus = shapley_focus(Q, 1.0, stream(0).numpy)
    assert weights_by_confidence(focus, 0.0).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])
    assert weights_by_samples(torch.zeros(2, dtype=torch.float64), [100, 300], 100).tolist() == pytest.approx(
        [0.2, 0.6, 0.2]
    )


def test_one_source_gets_what_the_target_leaves() -> None:
    assert weights_by_confidence(torch.tensor([2.5]), 0.5).tolist() == pytest.approx([0.75, 0.25])


def test_a_source_that_spoils_the_consensus_weighs_nothing() -> None:
    focus = torch.tensor([3.0, -1.0, 1.0], dtype=torch.float64)
    assert weights_by_confidence(focus, 0.8).tolist() == pytest.approx([0.6, 0.0, 0.2, 0.2])
    assert weights_by_samples(focus, [10, 10, 30], 50).tolist() == pytest.approx([0.25, 0.0, 0.25, 0.5])


def test_smoothing_keeps_nine_tenths_and_starts_from_the_first_weights() -> None:
    new = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    none = torch.full((3,), -1.0, dtype=torch.float64)
    assert smoothed(new, none, 0.9).tolist() == pytest.approx([0.5, 0.3, 0.2])
    old = torch.tensor([0.1, 0.7, 0.2], dtype=torch.float64)
    assert smoothed(new, old, 0.9).tolist() == pytest.approx([0.14, 0.66, 0.2])
    assert smoothed(new, old, 0.0).tolist() == pytest.approx(new.tolist())


def test_averaged_moments_keep_the_variance_between_the_models() -> None:
    buffers = torch.tensor([[0.0, 1.0, 7.0], [1.0, 4.0, 7.0], [3.0, 0.25, 7.0]])
    alpha = torch.tensor([0.5, 0.3, 0.2])
    pair = (slice(0, 1), slice(1, 2))
    assert average_buffers(buffers, alpha, [pair]).tolist() == pytest.approx([0.9, 3.04, 7.0])
    assert average_buffers(buffers, alpha, []).tolist() == pytest.approx([0.9, 1.75, 7.0])
