"""The kernels' discrepancy and FADA's attention, against numbers worked out on paper and against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fdamed.core.rng import stream
from fdamed.methods.fada.attention import attention, inertia, k_means
from fdamed.ops.mmd import bandwidth, fourier, fourier_mmd, kernel_sum, mmd, squared_distances


def rows(n: int, d: int, name: str, shift: float = 0.0) -> torch.Tensor:
    return torch.from_numpy(stream(3, name).numpy.normal(size=(n, d))) + shift


def test_two_points_have_the_discrepancy_of_their_definition() -> None:
    between = sum(math.exp(-(2.0**-j)) for j in range(-2, 3))
    got = mmd(torch.tensor([[0.0]]), torch.tensor([[3.0]]))  # h = 9, the one distance there is
    assert float(got) == pytest.approx(2 * 5 - 2 * between, abs=1e-5)


def test_five_kernels_by_squaring_are_five_exponentials() -> None:
    d = squared_distances(rows(6, 3, "a"), rows(7, 3, "b"))
    direct = sum(torch.exp(-d / (2.0**j * 1.7)) for j in range(-2, 3))
    assert torch.allclose(kernel_sum(d, 1.7), direct, rtol=0, atol=1e-12)


def test_the_discrepancy_is_the_quadratic_form_of_the_joint_kernel() -> None:
    f_s, f_t = rows(6, 4, "a"), rows(9, 4, "b", 0.5)
    joint = torch.cat([f_s, f_t])
    d = torch.cdist(joint, joint).square()
    h = float(d.sum() / (15 * 14))
    ell = torch.tensor([1 / 6] * 6 + [-1 / 9] * 9, dtype=torch.float64)
    k = sum(torch.exp(-d / (2.0**j * h)) for j in range(-2, 3))
    assert float(mmd(f_s, f_t)) == pytest.approx(float(ell @ k @ ell), abs=1e-12)
    assert float(mmd(f_t, f_s)) == pytest.approx(float(mmd(f_s, f_t)), abs=1e-12)


def test_identical_batches_do_not_differ_and_no_pair_is_less_than_alike() -> None:
    f = rows(8, 4, "a")
    assert float(mmd(f, f)) == pytest.approx(0.0, abs=1e-12)
    assert all(float(mmd(rows(5, 3, f"x{i}"), rows(4, 3, f"y{i}"))) > -1e-7 for i in range(20))


def test_the_gradient_is_that_of_finite_differences_at_a_constant_bandwidth() -> None:
    f_s, f_t = rows(4, 2, "a").requires_grad_(), rows(5, 2, "b", 1.0)
    (g,) = torch.autograd.grad(mmd(f_s, f_t), f_s)
    joint = torch.cat([f_s.detach(), f_t])
    h = float(torch.cdist(joint, joint).square().sum() / (9 * 8))

    def at(x: torch.Tensor) -> float:
        k = [kernel_sum(squared_distances(a, b), h).mean() for a, b in ((x, x), (f_t, f_t), (x, f_t))]
        return float(k[0] + k[1] - 2 * k[2])

    for i, j in np.ndindex(4, 2):
        step = torch.zeros(4, 2, dtype=torch.float64)
        step[i, j] = 1e-5
        assert float(g[i, j]) == pytest.approx((at(f_s.detach() + step) - at(f_s.detach() - step)) / 2e-5, abs=1e-8)


def test_features_that_are_all_equal_give_no_loss_and_no_gradient() -> None:
    f_s = torch.ones(3, 2, requires_grad=True)
    loss = mmd(f_s, torch.ones(4, 2))
    (g,) = torch.autograd.grad(loss, f_s)
    assert float(loss.detach()) == 0.0 and not g.any()


def test_the_bandwidth_is_the_mean_squared_distance_of_different_rows() -> None:
    f = rows(11, 3, "a")
    assert bandwidth(f) == pytest.approx(float(torch.cdist(f, f).square().sum() / (11 * 10)))
    assert bandwidth(f[:1]) == 0.0


def test_means_of_random_features_are_as_far_apart_as_the_kernels_say() -> None:
    f_s, f_t = rows(40, 3, "a").float(), rows(50, 3, "b", 0.7).float()
    h = bandwidth(torch.cat([f_s, f_t]))
    omega = torch.from_numpy(stream(1, "omega").numpy.normal(size=(3, 20_000))).float()
    exact = float(mmd(f_s, f_t))
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
