"""The FedGTST paper's bounds: by hand, against brute force, and against descent on linear models."""

from __future__ import annotations

import numpy as np
import pytest

from fdamed.theory.transfer import (
    Squares,
    Statistics,
    after_round,
    best_rate,
    cross_client,
    cross_client_divergence,
    decrease,
    h_discrepancy,
    lemma_4_1,
    printed_decrease,
    source_target_discrepancy,
    theorem_1,
    theorem_2,
)


def test_definition_4_by_hand() -> None:
    assert cross_client(np.array([[-1.0, 0.0], [0.0, -1.0]])) == Statistics(0.5, 0.5)
    assert cross_client(np.array([[3.0, 4.0]])) == Statistics(25.0, 0.0)
    assert cross_client(np.array([[1.0], [-1.0]])) == Statistics(0.0, 1.0)


def test_a_round_by_hand() -> None:
    # Two sources 1/2 |w - c_k|^2, c = (1, 0), (0, 1), alpha = 1, from w = 0: |J|^2 = sigma^2 = 1/2, loss 1/2.
    s = Statistics(0.5, 0.5)
    assert best_rate(s, 1.0) == 0.5
    assert decrease(s, 1.0) == 0.125 == 0.5 - after_round(0.5, s, 0.5, 1.0)
    # The step goes to (1/4, 1/4), where the loss is 0.3125: 0.1875 less, which the lemma's 0.125 allows for.
    assert 0.5 * ((0.25 - 1) ** 2 + 0.25**2) == 0.3125 <= 0.5 - 0.125
    # The least loss there is, at (1/2, 1/2), is 1/4: the printed 2 |J|^2 / (alpha (1 + 1)) = 1/2 cannot be lost.
    assert printed_decrease(s, 1.0) == 0.5 > 0.5 - 0.25


def test_the_printed_constant_is_four_times_the_one_of_the_lemma_at_its_best_rate() -> None:
    s, alpha = Statistics(1.3, 0.7), 2.0
    rates = np.linspace(0.0, 1.0, 100_001)
    losses = [after_round(0.0, s, float(rate), alpha) for rate in rates]
    assert rates[int(np.argmin(losses))] == pytest.approx(best_rate(s, alpha), abs=1e-5)
    assert -min(losses) == pytest.approx(decrease(s, alpha), abs=1e-9)
    assert decrease(s, alpha) == pytest.approx(1.3 / (2 * 2.0 * (1 + 0.7 / 1.3)))
    assert printed_decrease(s, alpha) == pytest.approx(2 * 1.3 / (2.0 * (1 + 0.7 / 1.3)))
    assert decrease(Statistics(0.0, 1.0), alpha) == best_rate(Statistics(0.0, 1.0), alpha) == 0.0


def test_the_least_loss_in_a_ball_by_hand() -> None:
    assert Squares(np.diag([1.0, 2.0]), np.array([1.0, 2.0]), 0.0).least(10.0) == pytest.approx(-3.0)
    assert Squares(np.array([[1.0]]), np.array([2.0]), 4.0).least(1.0) == pytest.approx(1.0), "at the edge, w = 1"
    assert Squares(np.array([[-1.0]]), np.array([0.0]), 0.0).least(2.0) == pytest.approx(-4.0), "a saddle"
    assert Squares(np.zeros((1, 1)), np.array([1.0]), 0.0).least(3.0) == pytest.approx(-6.0), "a slope"
    assert Squares(np.diag([1.0, -1.0]), np.array([1.0, 0.0]), 0.0).least(1.0) == pytest.approx(-1.5), "the hard case"
    assert Squares(np.zeros((2, 2)), np.zeros(2), 7.0).least(1.0) == 7.0


def test_the_least_loss_in_a_ball_is_below_every_point_and_reached_by_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        m = rng.standard_normal((2, 2))
        square = Squares(m + m.T, rng.standard_normal(2), 0.3)
        angle, r = np.meshgrid(np.linspace(0, 2 * np.pi, 721), np.linspace(0, 1.5, 301))
        w = np.stack([r * np.cos(angle), r * np.sin(angle)], -1)
        grid = np.einsum("...i,ij,...j", w, square.a, w) - 2 * w @ square.b + square.c
        assert square.least(1.5) <= grid.min() + 1e-9
        assert square.least(1.5) == pytest.approx(grid.min(), abs=2e-3)


def domains(seed: int, count: int, d: int = 3) -> list[Squares]:
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal(d)
    out = []
    for _ in range(count):
        x = rng.standard_normal((50, d)) * rng.uniform(0.5, 1.5, d)
        out.append(Squares.of(x, x @ (truth + 0.4 * rng.standard_normal(d)) + 0.1 * rng.standard_normal(50)))
    return out


@pytest.mark.parametrize("seed", range(5))
def test_the_bounds_hold_along_descent_on_linear_models_and_the_printed_one_does_not(seed) -> None:
    *sources, target = domains(seed, 5)
    alpha = max(s.alpha for s in sources)
    radius = 10.0
    far = source_target_discrepancy(sources, target, radius)

    def source_loss(w) -> float:
        return float(np.mean([s.loss(w) for s in sources]))

    w = np.zeros(3)
    first, seen, rates = source_loss(w), [], []
    for _ in range(25):
        j = np.stack([s.jacobian(w) for s in sources])
        seen.append(cross_client(j))
        rates.append(best_rate(seen[-1], alpha))
        before, w = source_loss(w), w - rates[-1] * j.mean(0)
        assert source_loss(w) <= after_round(before, seen[-1], rates[-1], alpha) + 1e-12
    bound = theorem_2(first, seen, alpha, far)
    assert bound == pytest.approx(lemma_4_1(first, seen, rates, alpha, far))
    assert target.least(radius) <= source_loss(w) + far <= bound + 1e-12
    printed = first - sum(printed_decrease(s, alpha) for s in seen)
    assert printed < source_loss(w), "as printed, Theorem 2 bounds the sources' own loss from below"


@pytest.mark.parametrize("seed", range(5))
def test_theorem_1_holds_and_its_terms_vanish_where_they_should(seed) -> None:
    *sources, target = domains(seed, 4)
    assert target.least(3.0) <= theorem_1(sources, target, 3.0)
    alike = [sources[0]] * 3
    assert cross_client_divergence(alike, 3.0) == 0.0
    assert theorem_1(alike, sources[0], 3.0) == pytest.approx(sources[0].least(3.0))
    assert cross_client_divergence(sources[:1], 3.0) == 0.0


def test_discrepancies_by_hand() -> None:
    # E x^2 = 1 and 2, no y: losses w^2 and 2 w^2 differ most at the edge, by r^2; both have the least loss 0.
    p, q = Squares(np.eye(1), np.zeros(1), 0.0), Squares(2 * np.eye(1), np.zeros(1), 0.0)
    assert h_discrepancy(p, q, 3.0) == pytest.approx(9.0) == h_discrepancy(q, p, 3.0)
    assert cross_client_divergence([p, q, q], 3.0) == pytest.approx((9 + 9 + 0) / 3)
    assert source_target_discrepancy([p, q], Squares(np.eye(1), np.zeros(1), 0.5), 3.0) == pytest.approx(0.5)
