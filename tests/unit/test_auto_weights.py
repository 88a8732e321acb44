"""Auto-weights against the estimators written out over all steps, and numbers worked out on paper."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fdamed.ops.auto_weights import Estimates, estimates, fedda_betas, fedgp_betas, weight

STEPS = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 3.0]], dtype=torch.float64)


def from_sums(steps: Tensor, sources: Tensor) -> Estimates:
    norm = sources.norm(dim=1)
    u = sources / norm.where(norm > 0, torch.ones_like(norm))[:, None]
    mean = steps.mean(0)
    return estimates([u @ g for g in steps], [float(g @ g) for g in steps], float(mean @ mean), norm)


def written_out(steps: Tensor, source: Tensor) -> dict[str, float]:
    """The estimators with all steps side by side, as the paper has them."""
    b, mean = len(steps), steps.mean(0)
    s_b = (steps - mean).square().sum() / (b - 1)
    u = source / source.norm()
    r = steps - (steps @ u)[:, None] * u
    share = ((steps @ source) > 0).double().mean()
    return {
        "sigma2": float(s_b / b),
        "d2": max(float((steps - source).square().sum(1).mean() - s_b), 0.0),
        "p2": max(float(r.square().sum(1).mean() - (r - r.mean(0)).square().sum() / (b - 1)), 0.0),
        "delta": float(1 - (1 - share) / b),
    }


def test_three_steps_and_one_source_give_the_numbers_worked_out_on_paper() -> None:
    e = from_sums(STEPS, torch.tensor([[1.0, -1.0]], dtype=torch.float64))
    assert e.sigma2 == pytest.approx(4 / 3)
    assert e.mean2 == pytest.approx(5.0)
    assert float(e.d2) == pytest.approx(11 / 3)
    assert float(e.p2) == pytest.approx(23 / 6)
    assert float(e.delta) == pytest.approx(8 / 9)
    assert float(fedda_betas(e)) == pytest.approx(0.26666667, abs=1e-8)
    assert float(fedgp_betas(e)) == pytest.approx(0.25806452, abs=1e-8)
    assert float(fedgp_betas(e, threshold=True)) == pytest.approx(0.25174825, abs=1e-8)


def test_a_source_nearer_than_the_noise_gets_all_the_weight() -> None:
    e = from_sums(STEPS, torch.tensor([[1.0, 1.0]], dtype=torch.float64))
    assert float(e.d2) == 0.0 and float(e.p2) == 0.0
    assert float(fedda_betas(e)) == 1.0 and float(fedgp_betas(e)) == 1.0


@pytest.mark.parametrize("steps", [2, 3, 25])
def test_running_sums_are_the_estimators_written_out(steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    g = torch.randn(steps, 7, generator=generator, dtype=torch.float64) + 0.8
    sources = torch.randn(4, 7, generator=generator, dtype=torch.float64) * torch.tensor([[0.1], [1.0], [3.0], [20.0]])
    e = from_sums(g, sources)
    for i, source in enumerate(sources):
        expected = written_out(g, source)
        found = {"sigma2": e.sigma2, "d2": float(e.d2[i]), "p2": float(e.p2[i]), "delta": float(e.delta[i])}
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_source_says_nothing_about_another() -> None:
    sources = torch.tensor([[1.0, -1.0], [1e20, 3e20], [0.0, 0.0]], dtype=torch.float64)
    together, alone = from_sums(STEPS, sources), from_sums(STEPS, sources[:1])
    assert fedda_betas(together)[0] == fedda_betas(alone)[0]
    assert fedgp_betas(together, True)[0] == fedgp_betas(alone, True)[0]
    assert torch.isfinite(fedda_betas(together)).all()
    assert float(fedda_betas(together)[1]) == pytest.approx(0.0, abs=1e-30)


def test_a_source_that_does_not_move_is_as_far_as_the_target_is_long() -> None:
    e = from_sums(STEPS, torch.zeros(1, 2, dtype=torch.float64))
    assert float(e.d2) == pytest.approx(5.0 - 4 / 3) and float(e.p2) == pytest.approx(5.0 - 4 / 3)
    assert float(e.delta) == pytest.approx(1 - 1 / 3)


def test_the_opposite_source_is_far_for_fedda_and_near_for_a_projection_without_filter() -> None:
    own = STEPS.mean(0)
    e = from_sums(STEPS, torch.stack([own, -own]))
    assert float(e.d2[1]) == pytest.approx(4 * 5.0 - 4 / 3)
    assert float(e.p2[0]) == pytest.approx(float(e.p2[1]))
    assert float(fedgp_betas(e, True)[1]) < float(fedgp_betas(e, True)[0])


def test_one_step_has_no_variance() -> None:
    with pytest.raises(ValueError, match="at least two"):
        estimates([torch.ones(1)], [1.0], 1.0, torch.ones(1))


def test_a_target_without_variance_needs_nobody_even_a_source_at_no_distance() -> None:
    assert weight(0.0, torch.tensor([0.0, 2.0])).tolist() == [0.0, 0.0]
    same = from_sums(STEPS[:1].repeat(4, 1), STEPS[:1])
    assert fedda_betas(same).tolist() == [0.0]
