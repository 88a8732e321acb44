"""The theorems on a case where every expectation can be enumerated, and the survey's algebra against them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks import fedgp_figure2
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.theory import bounds as errors
from fdamed.theory import survey_client as gradients
from fdamed.theory.advice import explain
from fdamed.theory.delta_error import Moments, Rule, error, estimated
from fdamed.theory.survey import Findings, survey
from tests.support import federation as hospitals
from tests.support.federation import Altered

Q, P = 3, 4


@pytest.fixture
def case() -> tuple[Tensor, Tensor, Tensor]:
    """A target of three equally likely samples and data sets of two: all nine of them, at three thetas."""
    generator = torch.Generator().manual_seed(1)
    samples = torch.randn(3, Q, P, generator=generator, dtype=torch.float64) * 1.5 + 0.4
    g_t = samples.mean(0)
    g_hat = torch.stack([samples[list(pair)].mean(0) for pair in itertools.product(range(3), repeat=2)])
    g_s = g_t + torch.randn(2, Q, P, generator=generator, dtype=torch.float64)
    g_s[1] = -0.3 * g_t + 0.1
    return g_t, g_s, g_hat


# Definitions 4.1 to 4.3. A gradient function at samples theta ~ pi is a tensor (Q, P): Q parameters, P numbers each;
# g_hat (D, Q, P) are the target's gradients on D equally likely data sets of its size.


def square_norm(g: Tensor) -> float:
    """|g|_pi^2 = E_theta |g(theta)|^2, over all leading axes."""
    return float(g.square().sum(-1).mean())


def distance(g_t: Tensor, g_s: Tensor) -> float:
    """d_pi^2 (Def. 4.1)."""
    return square_norm(g_t - g_s.mean(0))


def variance(g_t: Tensor, g_hat: Tensor) -> float:
    """sigma_pi^2 (Def. 4.2)."""
    return square_norm(g_hat - g_t)


def delta_error(rule, g_t: Tensor, g_s: Tensor, g_hat: Tensor) -> float:
    """Delta^2 of a rule (Def. 4.3), by enumeration."""
    found = [(g_t[q] - rule(hat[q], g_s[:, q])).square().sum() for hat in g_hat for q in range(len(g_t))]
    return float(torch.stack(found).mean())


def kept(g_hat: Tensor, g_s: Tensor) -> Tensor:
    """delta(theta) by data set and parameter, (D, Q): 1 where the filter keeps the source."""
    return ((g_hat * g_s).sum(-1) > 0).to(g_s.dtype)


def unit(g: Tensor) -> Tensor:
    return g / g.norm(dim=-1, keepdim=True)


def beside(g: Tensor, u: Tensor) -> Tensor:
    """The component of g orthogonal to the unit vector u."""
    return g - (g * u).sum(-1, keepdim=True) * u


def theorem_4_6(beta: float, g_t: Tensor, g_s: Tensor, g_hat: Tensor) -> float:
    """Theorem 4.6, exact, one source g_s (Q, P), with <g_T, u_S> of its proof in the fourth term."""
    u, delta, e = unit(g_s), kept(g_hat, g_s), g_hat - g_t
    along = (e * u).sum(-1)
    return (
        (1 - beta) ** 2 * variance(g_t, g_hat)
        + beta**2 * float((delta * beside(g_t, u).square().sum(-1)).mean())
        + (2 * beta - beta**2) * float((delta * along.square()).mean())
        + 2 * beta * (1 - beta) * float((delta * (g_t * u).sum(-1) * along).mean())
        + beta**2 * float(((1 - delta) * g_t.square().sum(-1)).mean())
    )


def fedda(beta: float):
    return lambda t, s: (1 - beta) * t + beta * s.mean(0)


def fedgp(beta: float):
    def rule(t: Tensor, s: Tensor) -> Tensor:
        return (1 - beta) * t + beta * torch.stack([(t @ x).clamp(min=0) * x / (x @ x) for x in s]).mean(0)

    return rule


def test_the_error_of_target_only_is_its_variance(case) -> None:
    g_t, g_s, g_hat = case
    assert delta_error(lambda t, s: t, g_t, g_s, g_hat) == pytest.approx(variance(g_t, g_hat))
    assert variance(g_t, g_hat) > 0.1


def test_the_error_of_source_only_is_the_distance(case) -> None:
    g_t, g_s, g_hat = case
    assert delta_error(lambda t, s: s.mean(0), g_t, g_s, g_hat) == pytest.approx(distance(g_t, g_s))


@pytest.mark.parametrize("beta", [0.0, 0.25, 0.5, 1.0])
def test_theorem_4_5_is_exact(case, beta: float) -> None:
    g_t, g_s, g_hat = case
    expected = delta_error(fedda(beta), g_t, g_s, g_hat)
    assert errors.fedda_error(beta, variance(g_t, g_hat), distance(g_t, g_s)) == pytest.approx(expected)


@pytest.mark.parametrize("beta", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("source", [0, 1])
def test_theorem_4_6_is_exact_with_the_unit_vector_of_its_proof(case, beta: float, source: int) -> None:
    g_t, g_s, g_hat = case
    expected = delta_error(fedgp(beta), g_t, g_s[source : source + 1], g_hat)
    assert theorem_4_6(beta, g_t, g_s[source], g_hat) == pytest.approx(expected)


def test_the_case_separates_the_theorems_fourth_term(case) -> None:
    _g_t, g_s, g_hat = case
    share = kept(g_hat, g_s[0]).mean()
    assert 0 < float(share) < 1


def test_the_mean_field_form_is_exact_when_the_filter_keeps_everything_at_one_theta(case) -> None:
    g_t, _g_s, g_hat = (x[..., :1, :] for x in case)
    source = g_t + 0.01
    g_hat = g_t + 0.2 * (g_hat - g_t)
    assert kept(g_hat, source).min() == 1
    u = source / source.norm(dim=-1, keepdim=True)
    along2 = float(((g_hat - g_t) * u).sum(-1).square().mean())
    d2 = distance(g_t, source[None])
    tau2 = square_norm(beside(g_t, u)) / d2
    sigma2, norm2 = variance(g_t, g_hat), square_norm(g_t)
    found = errors.fedgp_error(0.3, sigma2, d2, tau2, 1.0, norm2, along2)
    assert found == pytest.approx(delta_error(fedgp(0.3), g_t, source[None], g_hat))
    alike = errors.four_errors(sigma2, d2, 0.3, 1.0, tau2, sigma2 / along2, norm2)["fedgp"]
    assert alike == pytest.approx(found)


def test_the_four_rules_win_in_the_papers_order_as_the_distance_grows() -> None:
    winners = [errors.winner(errors.four_errors(1.0, d2, **fedgp_figure2.PAPER)) for d2 in np.geomspace(0.01, 100, 60)]
    order = [name for name, _ in itertools.groupby(winners)]
    assert order == ["source_only", "fedda", "fedgp", "target_only"]


# --- several sources from inner products ------------------------------------------------------------------------------


def moments(g_t: Tensor, g_s: Tensor, g_hat: Tensor) -> Moments:
    """The exact inner products at one theta."""
    v, u = g_t, g_s / g_s.norm(dim=1, keepdim=True)
    e = (g_hat - v) @ u.t()
    cov = e.t() @ e / len(e)
    return Moments(
        variance(v, g_hat),
        float(v @ v),
        (u @ v).numpy(),
        cov.numpy(),
        g_s.norm(dim=1).numpy(),
        (u @ u.t()).numpy(),
    )


def one_theta(case) -> tuple[Tensor, Tensor, Tensor]:
    g_t, g_s, g_hat = case
    return g_t[0], g_s[:, 0], g_hat[:, 0]


@pytest.mark.parametrize("beta", [0.2, 0.5, 1.0])
def test_fedda_of_several_sources_is_exact_from_inner_products(case, beta: float) -> None:
    g_t, g_s, g_hat = one_theta(case)
    expected = delta_error(fedda(beta), g_t[None], g_s[:, None], g_hat[:, None])
    assert error(Rule("fedda", beta), moments(g_t, g_s, g_hat), [1, 1]) == pytest.approx(expected)


class Unfiltered(Moments):
    """All filters open."""

    delta = property(lambda self: np.ones(len(self.t)))


@pytest.mark.parametrize("beta", [0.2, 0.5, 1.0])
def test_fedgp_of_several_sources_is_exact_from_inner_products_without_the_filter(case, beta: float) -> None:
    g_t, g_s, g_hat = one_theta(case)

    def rule(t: Tensor, s: Tensor) -> Tensor:
        return (1 - beta) * t + beta * torch.stack([(t @ x) * x / (x @ x) for x in s]).mean(0)

    expected = delta_error(rule, g_t[None], g_s[:, None], g_hat[:, None])
    m = Unfiltered(**vars(moments(g_t, g_s, g_hat)))
    assert error(Rule("fedgp", beta), m, [1, 1]) == pytest.approx(expected)


def test_fedgp_of_one_source_is_the_mean_field_theorem() -> None:
    m = Moments(2.0, 9.0, np.array([1.2]), np.array([[0.44]]), np.array([2.0]), np.ones((1, 1)))
    t2 = 1.2**2
    delta, d2 = float(m.delta[0]), float(m.distance2[0])
    assert d2 == pytest.approx(9 - 4.8 + 4)
    expected = errors.fedgp_error(0.3, 2.0, d2, (9 - t2) / d2, delta, 9.0, 0.44)
    assert error(Rule("fedgp", 0.3), m, [7]) == pytest.approx(expected)


def test_noise_is_taken_out_of_the_inner_products_and_no_square_is_negative() -> None:
    cov = np.diag([1.0, 2.0])
    m = estimated(10.0, 12.0, np.array([3.0, 4.0]), cov, np.ones(2), np.eye(2))
    assert float(m.t @ m.t) == pytest.approx(25.0 - 3.0)
    assert m.t[1] / m.t[0] == pytest.approx(4 / 3)
    assert m.norm2 == pytest.approx(22.0)
    noise = estimated(10.0, 12.0, np.array([1.0, 1.0]), cov, np.ones(2), np.eye(2))
    assert noise.t.tolist() == [0.0, 0.0] and noise.norm2 == pytest.approx(2.0)
    odd = np.array([[1.0, 0.99, -0.99], [0.99, 1.0, 0.99], [-0.99, 0.99, 1.0]])
    hard = estimated(1.0, 1.5, np.array([1.0, -0.5, 0.8]), 0.01 * np.eye(3), np.ones(3), odd)
    assert np.linalg.eigvalsh(hard.gram).min() > 0
    for b in (0.1, 0.7, 1.0):
        rows = np.full(3, 1 / 3), np.full(3, b)
        assert hard.fedda(rows[1], rows[0]) >= (1 - b) ** 2 * hard.sigma2 - 1e-12


def test_weights_by_samples_and_a_source_left_out() -> None:
    m = Moments(1.0, 1.0, np.array([1.0, 0.0]), np.zeros((2, 2)), np.array([1.0, 1.0]), np.eye(2))
    assert error(Rule("fedavg", weighting="samples"), m, [3, 1]) == pytest.approx(0.25**2 + 0.25**2)
    assert error(Rule("fedavg"), m.without(1), [3]) == pytest.approx(0.0)
    assert error(Rule("fedavg"), m.without(1).without(0), []) == 1.0


def test_auto_weighting_takes_the_best_beta_of_each_source() -> None:
    m = Moments(1.0, 4.0, np.array([2.0]), np.zeros((1, 1)), np.array([1.0]), np.ones((1, 1)))
    assert error(Rule("fedda_auto"), m, [5]) == pytest.approx(
        min(error(Rule("fedda", b), m, [5]) for b in (0.4, 0.5, 0.6))
    )


# --- the survey and the advice ----------------------------------------------------------------------------------------


def findings(near: float = 1.0, far: float = 9.0) -> Findings:
    """Two sources along the target's own gradient (1, 0): one half its norm, one against it."""
    m = Moments(
        near, 4.0, np.array([2.0, -2.0]), 1e-6 * np.eye(2), np.array([1.5, far]), np.array([[1.0, -1.0], [-1.0, 1.0]])
    )
    return Findings(("good", "bad"), (10, 10), 20, (m, m, m, m), 100)


def test_the_explanation_names_the_source_that_helps_and_the_one_that_hurts() -> None:
    result = explain(findings(), {"fedda": Rule("fedda", 0.5, "samples"), "alone": Rule("target_only")})
    verdicts = {s["source"]: s["verdict"] for s in result["sources"]}
    assert verdicts == {"good": "helps", "bad": "hurts"}
    assert result["sources"][0]["d2"]["value"] == pytest.approx(0.25)
    assert result["predicted"]["alone"]["value"] == pytest.approx(1.0)
    assert result["predicted"]["fedda"]["value"] > 1.0, "the source against the target costs more than it gives"
    assert explain(findings(near=1e-9), {})["target"]["sigma2"]["value"] == 1e-9


def surveyed(server: Any) -> Findings:
    server.begin(3, 3)
    return survey(server, hospitals.theta(), labeled=6, replicates=50)


def test_the_survey_finds_what_the_gradients_of_all_images_say() -> None:
    server = hospitals.in_process()
    found = surveyed(server)
    assert found.sources == ("east", "north", "south") and found.samples == (9, 14, 11) and found.labeled == 6
    m = found.moments[0]
    assert len(found.moments) == 1 + 50
    assert m.sigma2 > 0 and (np.abs(m.t) <= m.norm2**0.5 + 1e-9).all()
    assert np.allclose(np.diag(m.gram), 1.0) and (m.norms > 0).all()
    out = {line["kind"] for line in server.ledger.lines() if line["from"] == "target"}
    assert out == {"count", "statistic"}
    assert found.images == 9 + 14 + 11 + 6


def test_a_survey_needs_four_labeled_images() -> None:
    with pytest.raises(FdamedError, match="at least 4 are needed"):
        survey(hospitals.in_process(), hospitals.theta(), labeled=3)


def test_a_source_answers_with_its_mean_gradient_and_that_means_variance_by_tensor() -> None:
    client = hospitals.hospital("east")
    client.rng = stream(1, "east")
    answer = gradients.gradient.run(client, gradients.Part(x=hospitals.theta(), images=99, batch=3))
    seen: list[Tensor] = []
    client.model.load(hospitals.theta())
    gradients._visit(client, 3, stream(1, "east"), lambda g: seen.append(g.clone().double()))
    g, layout = torch.stack(seen), client.model.layout
    torch.testing.assert_close(answer.g[: layout.trainable].double(), g.mean(0), rtol=1e-5, atol=1e-7)
    assert float(answer.g[layout.trainable :].abs().sum()) == 0.0
    variance = g.var(0) / len(g)
    expected = torch.stack([variance[s.start : s.stop].sum() for s in layout.parameters])
    torch.testing.assert_close(answer.noise2, expected, rtol=1e-3, atol=1e-9)


def test_the_target_answers_with_the_moments_of_its_batches(monkeypatch) -> None:
    monkeypatch.setattr(gradients, "FOLD", 100)
    client = hospitals.hospital("target")
    layout = client.model.layout
    u = torch.zeros(2, layout.size)
    u[0, :5], u[1, -26:-16] = 5**-0.5, 10**-0.5
    unit = torch.arange(1.0, 1.0 + len(layout.parameters), dtype=torch.float64)
    question = gradients.Question(x=hospitals.theta(), u=u, unit=unit, images=6, batch=2, replicates=400)
    answer = gradients.measure_geometry.run(client, question)
    seen: list[Tensor] = []
    client.model.load(hospitals.theta())
    rng = stream(client.seed, "target", "advice").child("order")
    scale = torch.cat([torch.full((s.stop - s.start,), float(k)) for k, s in enumerate(layout.parameters, 1)])
    gradients._visit(client, 2, rng, lambda g: seen.append((g / scale).double()))
    assert len(seen) == 3
    g, v = torch.stack(seen), torch.stack(seen).mean(0)
    t = g @ u[:, : layout.trainable].double().t()
    assert float(answer.sigma2[0]) == pytest.approx(float((g - v).square().sum()) / 2 / 3, rel=1e-5)
    assert float(answer.mean2[0]) == pytest.approx(float(v @ v), rel=1e-5)
    torch.testing.assert_close(answer.t[0], t.mean(0), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(answer.cov[0], torch.cov(t.t()) / 3, rtol=1e-4, atol=1e-10)
    spread = answer.t[1:].std(0) / (answer.cov[0].diagonal() * 2 / 3).sqrt()
    assert ((spread > 0.8) & (spread < 1.2)).all()


def test_the_survey_leaves_out_clients_that_drop_out_and_needs_one() -> None:
    server = hospitals.in_process()
    deliver = server.transport.deliver

    def poisoned(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        if client in bad and hasattr(reply, "g"):
            reply.g[0] = float("nan")
        return reply

    server.transport = Altered(server.transport, poisoned)
    bad = {"east"}
    assert surveyed(server).sources == ("north", "south")
    assert {a["client"] for a in server.absences} == {"east"}
    bad = {"north", "east", "south"}
    with pytest.raises(FdamedError, match="no source"):
        surveyed(server)
