"""The kernels' discrepancy and FADA's attention, against numbers worked out on paper and against their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from fdamed.core.rng import stream
from fdamed.methods.fada.attention import attention, inertia, k_means
from fdamed.ops.random_features import bandwidth, fourier, fourier_mmd


def rows(n: int, d: int, name: str, shift: float = 0.0) -> torch.Tensor:
    return torch.from_numpy(stream(3, name).numpy.normal(size=(n, d))) + shift


def test_the_bandwidth_is_the_mean_squared_distance_of_different_rows() -> None:
    f = rows(11, 3, "a")
    assert bandwidth(f) == pytest.approx(float(torch.cdist(f, f).square().sum() / (11 * 10)))
    assert bandwidth(f[:1]) == 0.0


def test_means_of_random_features_are_as_far_apart_as_the_kernels_say() -> None:
    f_s, f_t = rows(40, 3, "a").float(), rows(50, 3, "b", 0.7).float()
    h = bandwidth(torch.cat([f_s, f_t]))
    omega = torch.from_numpy(stream(1, "omega").numpy.normal(size=(3, 20_000))).float()
    joint = torch.cat([f_s, f_t])
    distances = torch.cdist(joint, joint).square()
    k = sum(torch.exp(-distances / (2.0**j * h)) for j in range(-2, 3))
    exact = float(k[:40, :40].mean() + k[40:, 40:].mean() - 2.0 * k[:40, 40:].mean())
    assert float(fourier_mmd(fourier(f_s, omega, h), fourier(f_t, omega, h))) == pytest.approx(exact, rel=0.03)


def test_the_squared_spread_is_the_sum_over_pairs() -> None:
    f, own = rows(12, 3, "a"), torch.tensor([0, 1, 2] * 3 + [0, 1, 1])
    pairs = sum(float(torch.cdist(p, p).square().sum()) / (2 * len(p)) for p in (f[own == r] for r in range(3)))
    assert inertia(f, own) == pytest.approx(pairs, abs=1e-12)


def test_a_cluster_of_one_contributes_nothing_to_the_inertia() -> None:
    f = torch.tensor([[0.0, 0.0], [3.0, 4.0], [9.0, 9.0]])
    own = torch.tensor([0, 0, 1])
    assert inertia(f, own) == pytest.approx((25 + 25) / 4)


def test_k_means_finds_two_far_groups_from_any_beginning() -> None:
    f = torch.cat([rows(5, 2, "a", -50.0), rows(6, 2, "b", 50.0)])
    for i in range(5):
        centers, own = k_means(f, 2, stream(i, "k"))
        assert len(set(own[:5].tolist())) == 1 and len(set(own[5:].tolist())) == 1 and own[0] != own[5]
        assert torch.allclose(centers[own[0]], f[:5].mean(0))


def test_an_empty_cluster_begins_anew_at_the_farthest_row() -> None:
    f = torch.tensor([[0.0], [1.0], [10.0]])
    centers, own = k_means(f, 2, stream(0, "k"), centers=torch.tensor([[1.0], [1000.0]]))
    assert own.tolist() == [0, 0, 1] and centers.flatten().tolist() == [0.5, 10.0]


@pytest.mark.parametrize("f", [torch.ones(5, 2), torch.ones(1, 2)])
def test_equal_rows_and_fewer_rows_than_clusters_are_finite(f: torch.Tensor) -> None:
    centers, own = k_means(f, 3, stream(0, "k"))
    assert torch.isfinite(centers).all() and len(centers) == min(3, len(f))
    assert inertia(f, own) == 0.0


def test_attention_is_the_softmax_of_relative_gains_over_the_temperature() -> None:
    weights = attention(10.0, [9.8, 9.95, 10.1], temperature=0.05)
    assert weights == pytest.approx([0.43675, 0.32355, 0.23969], abs=1e-5)
    assert attention(7.0, [6.0, 6.0, 6.0]) == pytest.approx([1 / 3] * 3)


def test_gains_that_are_not_finite_weigh_nothing_and_equal_features_weigh_alike() -> None:
    assert attention(1.0, [math.nan, 1.0, 1.0]) == [0.0, 0.5, 0.5]
    assert attention(1.0, [math.nan, math.inf]) == [0.5, 0.5]
    assert attention(0.0, [0.0, 0.0]) == [0.5, 0.5]
    assert attention(2.0, [1.0]) == [1.0]
