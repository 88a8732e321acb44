"""The aggregation rules against numbers worked out on paper (layers A and B, two sources)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fdamed.models.flat import Layout, Segment, layout_of
from fdamed.ops import aggregation as vector


class TwoLayers(nn.Module):
    def __init__(self, buffer: bool = False) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(2))
        self.b = nn.Parameter(torch.zeros(2))
        if buffer:
            self.register_buffer("running_var", torch.ones(2))


LAYOUT = layout_of(TwoLayers())
T = torch.tensor([3.0, 4.0, 1.0, -1.0])
S = torch.tensor([[1.0, 0.0, 2.0, 2.0], [0.0, -2.0, 0.0, -3.0]])
N = [5952, 1984]
"""w = (.75, .25)"""


def assert_near(got: torch.Tensor, *expected: float) -> None:
    torch.testing.assert_close(got, torch.tensor(expected), rtol=0, atol=2e-7)


def reference(
    t: torch.Tensor, s: torch.Tensor, layout: Layout, factor: str, beta: float, w: list[float]
) -> torch.Tensor:
    """The rules as plain loops in float64."""
    out = torch.empty_like(t, dtype=torch.float64)
    for seg in layout.parameters:
        cut = slice(seg.start, seg.stop)
        gt = t[cut].double()
        total = torch.zeros_like(gt)
        for wi, row in zip(w, s, strict=True):
            gi = row[cut].double()
            dot = float(gt @ gi)
            if factor == "cos":
                scale = dot / float(gt.norm() * gi.norm()) if gt.norm() > 0 and gi.norm() > 0 else 0.0
            else:
                scale = dot / float(gi @ gi) if gi.norm() > 0 else 0.0
            total += wi * max(scale, 0.0) * gi
        out[cut] = (1 - beta) * gt + beta * total
    return out.float()


def test_shared_auxiliary_heads_are_not_projected_and_take_the_targets_change() -> None:
    """In layer b, here a head, the sources alone have moved: neither it nor its norm counts, whatever is a layer."""
    network = nn.Module()
    network.a = nn.Parameter(torch.zeros(2))
    network.auxiliary = nn.ModuleDict({"sex": nn.Linear(1, 1)})  # two numbers
    layout, t = layout_of(network), torch.tensor([3.0, 4.0, 0.0, 0.0])
    assert layout.main == 2 and layout.heads == (slice(2, 4),)
    for per_layer in (True, False):
        # cos = (0.6, -0.8): (1 - beta) T + beta * 3/4 * 0.6 * S1
        assert_near(vector.gp(t, S, layout, 0.5, N, None, per_layer), 1.725, 2.0, 0.0, 0.0)
        # <T, S1>/<S1, S1> = 3: (1 - beta) T + beta * 1/2 * 3 * S1
        assert_near(vector.fedgp(t, S, layout, 0.5, None, per_layer), 2.25, 2.0, 0.0, 0.0)


def test_cosines_by_layer_are_those_of_equation_4() -> None:
    cos = vector.cosines(*vector.inner_products(T, S, LAYOUT))
    torch.testing.assert_close(
        cos, torch.tensor([[0.6, 0.0], [-0.8, 0.70710678]], dtype=torch.float64), atol=1e-7, rtol=0
    )


def test_gp_without_alignment_is_equations_5_to_7() -> None:
    assert_near(vector.gp(T, S, LAYOUT, 0.5, N), 1.725, 2.0, 0.5, -0.76516504)
    assert_near(vector.gp(T, S, LAYOUT, 0.25, N), 2.3625, 3.0, 0.75, -0.88258252)


def test_beta_is_the_weight_of_the_source_side() -> None:
    assert_near(vector.gp(T, S, LAYOUT, 0.0, N), 3.0, 4.0, 1.0, -1.0)
    assert_near(vector.gp(T, S, LAYOUT, 1.0, N), 0.45, 0.0, 0.0, -0.53033009)
    assert_near(vector.fedda(T, S, LAYOUT, 0.0), 3.0, 4.0, 1.0, -1.0)
    assert_near(vector.fedgp(T, S, LAYOUT, 0.0), 3.0, 4.0, 1.0, -1.0)


def test_gp_aligns_magnitudes_as_equation_8() -> None:
    nominal_step = [0.005 * 100 / 16, 0.01 * 5952 / 64, 0.01 * 1984 / 64]
    align = [nominal_step[0] / r for r in nominal_step[1:]]
    assert align == pytest.approx([0.03360215, 0.10080645], abs=1e-8)
    assert_near(vector.gp(T, S, LAYOUT, 0.25, N, align), 2.25378024, 3.0, 0.75, -0.76336517)
    assert_near(vector.gp(T, S, LAYOUT, 0.5, N, align), 1.50756048, 2.0, 0.5, -0.52673035)


def test_fedgp_is_the_true_projection_of_definition_3_1() -> None:
    assert_near(vector.fedgp(T, S, LAYOUT, 0.25), 2.625, 3.0, 0.75, -0.875)


def test_projecting_the_whole_model_at_once_is_another_rule() -> None:
    assert_near(vector.fedgp(T, S, LAYOUT, 0.25, per_layer=False), 2.29166667, 3.0, 0.83333333, -0.66666667)


def test_fedda_is_uniform_or_by_samples() -> None:
    assert_near(vector.fedda(T, S, LAYOUT, 0.25), 2.375, 2.75, 1.0, -0.875)
    assert_near(vector.fedda(T, S, LAYOUT, 0.25, N), 2.4375, 2.875, 1.125, -0.5625)


@pytest.mark.parametrize("rule", [vector.gp, vector.fedgp])
def test_sources_that_oppose_the_target_are_dropped(rule) -> None:
    opposed = torch.stack([-T, -T])
    assert_near(rule(T, opposed, LAYOUT, 0.25), 2.25, 3.0, 0.75, -0.75)


def test_the_filter_can_be_switched_off() -> None:
    opposed = torch.stack([-T, -T])
    assert_near(vector.fedgp(T, opposed, LAYOUT, 0.25, keep_negative=True), 3.0, 4.0, 1.0, -1.0)
    assert_near(vector.gp(T, opposed, LAYOUT, 0.25, keep_negative=True), 3.0, 4.0, 1.0, -1.0)


@pytest.mark.parametrize("rule", [vector.gp, vector.fedgp])
def test_no_target_update_gives_no_update(rule) -> None:
    assert_near(rule(torch.zeros(4), S, LAYOUT, 0.25), 0.0, 0.0, 0.0, 0.0)


def test_a_source_that_did_not_move_contributes_nothing() -> None:
    still = torch.stack([torch.zeros(4), S[1]])
    align = [0.03360215, 0.10080645]
    assert_near(vector.gp(T, still, LAYOUT, 0.25, N, align), 2.25, 3.0, 0.75, -0.76336517)
    assert_near(vector.fedgp(T, still, LAYOUT, 0.25), 2.25, 3.0, 0.75, -0.875)


def test_the_mean_is_weighted_by_samples_and_summed_in_float64() -> None:
    assert_near(vector.mean(S, N), 0.75, -0.5, 1.5, 0.75)
    many = torch.full((3, 5), 0.1)
    assert torch.equal(vector.mean(many, [1, 1, 1]), torch.full((5,), 0.1))


def test_weights_must_be_possible() -> None:
    with pytest.raises(ValueError, match="weights"):
        vector.mean(S, [1.0, -1.0])
    with pytest.raises(ValueError, match="weights"):
        vector.mean(S, [0.0, 0.0])


@pytest.mark.parametrize("rule", [vector.gp, vector.fedgp])
def test_buffers_are_never_projected(rule) -> None:
    layout = layout_of(TwoLayers(buffer=True))
    t = torch.cat([T, torch.tensor([0.5, -0.25])])
    s = torch.cat([S, torch.full((2, 2), -90.0)], dim=1)
    out = rule(t, s, layout, 0.25)
    assert_near(out[:4], *rule(T, S, LAYOUT, 0.25).tolist())
    assert_near(out[4:], 0.5, -0.25)


@pytest.mark.parametrize("sources", [3, 5])
@pytest.mark.parametrize(("rule", "factor"), [(vector.gp, "cos"), (vector.fedgp, "proj")])
def test_large_layers_in_blocks_agree_with_the_plain_loop(rule, factor, sources) -> None:
    module = nn.Sequential(nn.Linear(700, 600), nn.Linear(600, 3), nn.Linear(3, 500_000))
    layout = layout_of(module)
    g = torch.Generator().manual_seed(1)
    t = torch.randn(layout.size, generator=g)
    s = torch.randn(sources, layout.size, generator=g) + 0.3 * t
    n = [1, 2, 5, 8, 16][:sources]
    got = rule(t, s, layout, 0.4, n)
    torch.testing.assert_close(got, reference(t, s, layout, factor, 0.4, [k / sum(n) for k in n]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", [vector.gp, vector.fedgp])
def test_vectors_that_do_not_fit_the_layout_are_refused(rule) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        rule(T[:3], S[:, :3], LAYOUT, 0.5)
    with pytest.raises(ValueError, match="do not fit"):
        rule(T, S[:, :3], LAYOUT, 0.5)


def test_a_huge_source_is_bounded_by_the_target_in_the_true_projection() -> None:
    huge = S.clone()
    huge[0] *= 1e6
    torch.testing.assert_close(vector.fedgp(T, huge, LAYOUT, 0.25), vector.fedgp(T, S, LAYOUT, 0.25))


def test_on_a_gpu_blocks_are_large_and_on_the_cpu_they_fit_into_the_cache() -> None:
    layout = Layout((Segment("w", (10**7,), 0, 10**7, "parameter"), Segment("b", (9,), 10**7, 10**7 + 9, "parameter")))
    for device, count in (("cpu", 153), ("meta", 3)):
        g = torch.empty(layout.size, device=device)
        found = vector.blocks(g, g[None], layout, per_layer=True)
        assert len(found) == count + 1
        assert [start for _, start, _ in found[1:]] == [stop for *_, stop in found[:-1]]
