"""Auto-weighted FedDA and FedGP: hand-worked rounds, the target's steps, and invalid updates of sources."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from fdamed.config.study import Recipe
from fdamed.config.train import Norms, Validation
from fdamed.data.loader import Labeled
from fdamed.federation.method import Model
from fdamed.federation.server import Server
from fdamed.federation.transport.base import Transport
from fdamed.methods._shared.local_training import Moved
from fdamed.methods.auto_weighted import Compared, Directions, FedDAAuto, FedGPAuto, compare_steps, move_paced
from fdamed.models.flat import layout_of
from fdamed.ops.auto_weights import fedda_betas, fedgp_betas
from fdamed.training.local import fit
from fdamed.training.optimizer import Optimizer
from tests.support import federation as hospitals
from tests.support.federation import Altered, clients_of
from tests.unit.test_aggregation import TwoLayers
from tests.unit.test_auto_weights import written_out
from tests.unit.test_methods_by_hand import MOVES, REACH, SAMPLES, X

METHODS = [FedDAAuto(), FedGPAuto(), FedGPAuto(projection="cosine", estimator="threshold", granularity="model")]
D2 = {"S1": 4.0, "S2": 2.0 / 3.0}
"""With sigma^2 = 1: beta = 0.2 and 0.6."""


def answers(moves: dict[str, Tensor], steps: int = 5, buffers: bool = False) -> Server:
    server = Server(Answers(moves, steps, buffers), "T", "test")
    server.begin(1, 2)
    return server


class Answers(Transport):
    """Clients with prepared answers; the target's estimates are those of the sources it is asked about."""

    def __init__(self, moves: dict[str, Tensor], steps: int = 5, buffers: bool = False) -> None:
        super().__init__(moves, layout_of(TwoLayers(buffers)))
        self.moves, self.count = moves, steps

    def release(self, client) -> frozenset[str]:
        return hospitals.RELEASE | {"individual"}

    def inquire(self, question, heads, body=b"") -> dict:
        raise AssertionError(f"a round asks no {question}")

    def close(self) -> None: ...

    def deliver(self, client, step, nth, msg):
        g = self.moves[client]
        if step is move_paced:
            return Moved(g=g.clone(), n=SAMPLES[client], nominal_step=REACH[client], loss=0.5)
        assert step is compare_steps and client == "T"
        asked = []
        for u in msg.u[:, :4]:
            asked.append(next((s for s in D2 if torch.allclose(u, MOVES[s] / MOVES[s].norm())), "S1"))  # none: no way
        d2 = torch.tensor([D2[s] for s in asked], dtype=torch.float64)
        known = self.count > 1
        return Compared(
            g=g,
            n=100,
            nominal_step=REACH["T"],
            loss=0.5,
            steps=self.count,
            sigma2=float(known),
            mean2=1.0,
            d2=d2 * known,
            p2=d2 * known,
            delta=torch.ones_like(d2),
        )


def after(method, server: Server) -> list[float]:
    return (method.round(Model(x=X), server).x - X).tolist()


def test_fedgp_auto_with_the_cosine_is_the_published_update() -> None:
    server = answers(MOVES)
    found = after(FedGPAuto(projection="cosine", weighting="samples"), server)
    assert found == pytest.approx([2.10302419, 2.8, 0.7, -0.73207642], abs=4e-6)
    assert (server.notes["beta/S1"], server.notes["beta/S2"]) == pytest.approx((0.2, 0.6))


def test_fedda_auto_unaligned_is_the_published_update() -> None:
    assert after(FedDAAuto(align=False), answers(MOVES)) == pytest.approx([2.25, 2.5, 1.0, -0.85], abs=4e-6)


def test_fedda_auto_brings_the_sources_to_the_targets_reach() -> None:
    scale = (REACH["T"] / REACH["S1"], REACH["T"] / REACH["S2"])
    expected = 0.7 * 4.0 + 0.75 * 0.2 * scale[0] * 0.0 + 0.25 * 0.6 * scale[1] * -2.0
    assert after(FedDAAuto(), answers(MOVES))[1] == pytest.approx(expected, abs=4e-6)


def test_fedgp_auto_projects_as_definition_3_1_says() -> None:
    # own = (0.8 + 0.4) / 2; A: only S1 agrees, Proj = (3, 0); B: only S2, Proj = (0, -1)
    expected = [0.6 * 3 + 0.1 * 3, 0.6 * 4, 0.6 * 1, 0.6 * -1 + 0.3 * -1]
    assert after(FedGPAuto(), answers(MOVES)) == pytest.approx(expected, abs=4e-6)


def test_with_one_step_beta_is_what_the_option_and_the_log_say(caplog) -> None:
    server = answers(MOVES, steps=1)
    after(FedGPAuto(unestimated=0.25), server)
    assert (server.notes["beta/S1"], server.notes["beta/S2"]) == (0.25, 0.25)
    assert "one step at T, so beta is 0.25" in caplog.text


@pytest.mark.parametrize("method", METHODS, ids=["fedda", "fedgp", "cosine"])
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (torch.full((4,), float("nan")), "not finite"),
        (torch.tensor([1.0, float("inf"), 0.0, 0.0]), "not finite"),
        (MOVES["S2"] * 1e9, "norm"),
        (MOVES["S2"] * 1e37, "norm"),
    ],
    ids=["nan", "infinite", "huge", "boundless"],
)
def test_the_round_is_the_one_without_the_rejected_source_which_is_named(method, bad, why) -> None:
    with_offender = answers(MOVES | {"S2": bad})
    with_offender.validator.settings = Validation(norms=Norms())
    without = answers({p: g for p, g in MOVES.items() if p != "S2"})
    assert after(method, with_offender) == after(method, without)
    assert [(a["client"], a["reason"]) for a in with_offender.absences] == [("S2", why)]


@pytest.mark.parametrize("method", METHODS, ids=["fedda", "fedgp", "cosine"])
def test_without_a_sound_source_the_target_goes_its_own_way(method) -> None:
    nothing = torch.full((4,), float("nan"))
    server = answers(MOVES | {"S1": nothing, "S2": nothing})
    assert after(method, server) == [3.0, 4.0, 1.0, -1.0]


@pytest.mark.parametrize("method", METHODS, ids=["fedda", "fedgp", "cosine"])
def test_a_source_that_has_not_moved_is_no_offender_and_adds_nothing_to_the_targets_share(method) -> None:
    server = answers(MOVES | {"S1": torch.zeros(4), "S2": torch.zeros(4)})
    moved = torch.tensor(after(method, server))
    share = float(moved @ MOVES["T"] / MOVES["T"].square().sum())
    assert server.absences == [] and 0.0 < share <= 1.0
    assert moved.tolist() == pytest.approx((share * MOVES["T"]).tolist(), abs=1e-6)


@pytest.mark.parametrize("method", METHODS, ids=["fedda", "fedgp", "cosine"])
def test_buffers_are_the_targets_and_never_travel_as_directions(method) -> None:
    moves = {p: torch.cat([g, torch.full((2,), 0.5 if p == "T" else -90.0)]) for p, g in MOVES.items()}
    server = answers(moves, buffers=True)
    seen = []
    deliver = server.transport.deliver

    def watched(client, step, nth, msg):
        if step is compare_steps:
            seen.append(msg.u[:, 4:].abs().sum())
        return deliver(client, step, nth, msg)

    server.transport = Altered(server.transport, watched)
    x = torch.cat([X, torch.ones(2)])
    out = method.round(Model(x=x), server).x
    assert out[4:].tolist() == [1.5, 1.5]
    assert [float(s) for s in seen] == [0.0]


def watched_steps(client) -> list[Tensor]:
    """Each of the target's steps, kept whole: what the hospital itself never does."""
    client.model.load(hospitals.theta())
    kept = [hospitals.theta()]
    optimizer = Optimizer(client.model, client.recipe)
    take = optimizer.step

    def step(*given: object) -> None:
        take(*given)
        kept.append(client.model.read())

    optimizer.step = step
    fit(client.model, client.data, client.recipe, client.rng, optimizer=optimizer)
    cut = client.model.layout.trainable
    return [(b - a)[:cut].double() for a, b in itertools.pairwise(kept)]


def test_the_targets_estimates_are_those_of_all_its_steps_side_by_side() -> None:
    client = hospitals.hospital("target")
    client.recipe = Recipe(lr=0.01, batch=2, epochs=2)
    layout = client.model.layout
    generator = torch.Generator().manual_seed(3)
    steps = torch.stack(watched_steps(client))
    direction = torch.randn(2, layout.size, generator=generator)
    direction[0, : layout.trainable] += 8 * steps.mean(0).float() / steps.mean(0).norm()
    direction[:, layout.trainable :] = 0.0
    u = direction / direction.norm(dim=1, keepdim=True)
    norm = torch.tensor([3.0, 0.5], dtype=torch.float64)
    answer = compare_steps.run(client, Directions(x=hospitals.theta(), u=u, norm=norm, pace=1.0))
    assert answer.steps == len(steps) == 6
    for i in range(2):
        source = u[i, : layout.trainable].double() * norm[i] * 0.01
        expected = written_out(steps, source)
        assert answer.sigma2 == pytest.approx(expected["sigma2"], rel=1e-4)
        assert float(answer.d2[i]) == pytest.approx(expected["d2"], rel=1e-3, abs=1e-8)
        assert float(answer.p2[i]) == pytest.approx(expected["p2"], rel=1e-3, abs=1e-8)
        assert float(answer.delta[i]) == pytest.approx(expected["delta"])
    assert answer.mean2 == pytest.approx(float(steps.mean(0).square().sum()), rel=1e-4)


def test_the_pace_slows_every_hospital_down_and_is_forgotten_afterwards() -> None:
    server = hospitals.in_process()
    fast, slow = FedDAAuto(), FedDAAuto(pace=0.1)
    moved = []
    for method in (fast, slow):
        server.begin(1, 1)
        x = hospitals.theta()
        moved.append(float((method.round(Model(x=x), server).x - x)[: server.layout.trainable].norm()))
    assert moved[1] < 0.3 * moved[0]
    assert clients_of(server)["north"].recipe.lr == 0.02


@pytest.mark.parametrize("method", METHODS, ids=["fedda", "fedgp", "cosine"])
def test_one_labeled_sample_leaves_a_finite_model_with_positive_variances(method) -> None:
    server = hospitals.in_process()
    data = clients_of(server)["target"].data
    clients_of(server)["target"].data = Labeled(data.images[:1], data.y[:1], {})
    state = Model(x=hospitals.theta())
    for r in (1, 2, 3):
        server.begin(r, 3)
        state = method.round(state, server)
    variances = next(s for s in server.layout if s.name == "norm.running_var")
    assert torch.isfinite(state.x).all()
    assert (state.x[variances.start : variances.stop] > 0).all()
    assert server.notes["beta/north"] == 0.5


def test_betas_are_noted_by_source_and_lie_between_0_and_1() -> None:
    for method in METHODS:
        server = hospitals.in_process()
        server.begin(1, 1)
        method.round(Model(x=hospitals.theta()), server)
        betas = {k: v for k, v in server.notes.items() if k.startswith("beta/")}
        assert set(betas) == {"beta/north", "beta/east", "beta/south"}
        assert all(0.0 <= b <= 1.0 for b in betas.values())


def test_the_server_computes_beta_from_the_targets_numbers_alone() -> None:
    server = hospitals.in_process()
    replies: list[Compared] = []
    deliver = server.transport.deliver

    def watched(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        if client == "target":
            replies.append(reply)
        return reply

    server.transport = Altered(server.transport, watched)
    for method, betas in (
        (FedDAAuto(), fedda_betas),
        (FedGPAuto(estimator="threshold"), lambda e: fedgp_betas(e, True)),
    ):
        server.begin(1, 1)
        method.round(Model(x=hospitals.theta()), server)
        found = [server.notes[f"beta/{s}"] for s in server.sources]
        assert found == pytest.approx(betas(replies[-1]).tolist())
