"""FedGTST: the guide norm, the subset that also trains without the regularizer, and the messages."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from benchmarks.fedgtst_figure2 import statistics
from fdamed.config.train import Norms, Validation
from fdamed.core.errors import FdamedError
from fdamed.data.loader import Labeled
from fdamed.federation.absences import DroppedOut
from fdamed.federation.client import answer
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess
from fdamed.methods.fedavg import FedAvg
from fdamed.methods.fedgtst import NONE, FedGTST, Guided, State, Trained, train_guided
from fdamed.ops.aggregation import mean
from fdamed.training.input import as_input
from tests.support import federation as hospitals
from tests.support.federation import Altered


def watched(method: FedGTST, server: Server, rounds: int = 2):
    """The run, with every question and answer of training: (round, client) -> (ask, reply)."""
    seen: dict[tuple[int, str], tuple[Guided, Trained]] = {}
    deliver = server.transport.deliver

    def deliver_and_see(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        if step is train_guided:
            seen[server.round, client] = msg, reply
        return reply

    server.transport = Altered(server.transport, deliver_and_see)
    return *run(method, server, hospitals.theta(), rounds, hospitals.no_judge), seen


def question(**options) -> Guided:
    given = {"gamma": 0.5, "xi": 0.1, "exact": 0, "full": 0, "plain": 0}
    return Guided(**{"x": hospitals.theta()} | given | options)


def trained(client=None, **options) -> Trained:
    return answer(client or hospitals.hospital("north"), train_guided, 1, 0, question(**options))


def jacobian(theta, data: Labeled, train: bool = False):
    """The gradient over all images by plain autograd."""
    model = hospitals.model()
    model.load(theta)
    model.module.train(train)
    model.grad.zero_()
    x, y = as_input(torch.from_numpy(data.images)), torch.from_numpy(data.y)
    F.cross_entropy(model.module(x), y).backward()
    return model.grad.clone()


# --- the server ------------------------------------------------------------------------------------------------------


def test_the_guide_is_the_largest_norm_of_the_round_before() -> None:
    _, record, seen = watched(FedGTST(), hospitals.in_process(), 3)
    assert {ask.gamma for (r, _), (ask, _) in seen.items() if r == 1} == {NONE}, "the first round has no guide"
    for r in (2, 3):
        largest = max(reply.gamma for (at, _), (_, reply) in seen.items() if at == r - 1)
        assert {ask.gamma for (at, _), (ask, _) in seen.items() if at == r} == {largest}
        assert record.metrics[r - 2]["jacobian/guide"] == largest


def test_models_are_averaged_all_alike_or_by_images() -> None:
    for weighting, weights in (("uniform", [1.0, 1.0, 1.0]), ("samples", [9.0, 14.0, 11.0])):
        theta, _, seen = watched(FedGTST(weighting=weighting), hospitals.in_process(), 1)
        assert torch.equal(theta, mean([seen[1, p][1].x for p in ("east", "north", "south")], weights))


def test_without_its_regularizer_it_is_fedavg_bit_by_bit_and_reports_the_norms() -> None:
    theta, record, _ = watched(FedGTST(xi=0.0, weighting="samples"), hospitals.in_process(), 3)
    plain, other = run(FedAvg(), hospitals.in_process(), hospitals.theta(), 3, hospitals.no_judge)
    assert torch.equal(theta, plain)
    assert [m["train/loss"] for m in record.metrics] == [m["train/loss"] for m in other.metrics]
    assert all(m["jacobian/norm"] > 0.0 for m in record.metrics)


def test_the_first_round_is_fedavgs_and_the_second_is_not() -> None:
    states = []
    for rounds in (1, 2):
        theta, _, _ = watched(FedGTST(weighting="samples"), hospitals.in_process(), rounds)
        plain, _ = run(FedAvg(), hospitals.in_process(), hospitals.theta(), rounds, hospitals.no_judge)
        states.append(torch.equal(theta, plain))
    assert states == [True, False]


@pytest.mark.parametrize(("share", "sources", "expected"), [(0.1, 3, 1), (0.1, 25, 3), (0.5, 4, 2), (0.0, 3, 1)])
def test_a_tenth_of_all_sources_and_at_least_one_also_train_plainly(share, sources, expected) -> None:
    names = tuple(f"s{i:02}" for i in range(sources))
    one = hospitals.hospital("north")
    clients = {**{n: replace(one, name=n) for n in names}, "target": hospitals.hospital("target")}
    server = Server(InProcess(clients), "target", "t")
    server.invite(0.5, 1)
    chosen = []
    for r in range(1, 5):
        server.begin(r, 4)
        asked = []

        def answer(client, step, nth, msg, asked=asked):
            asked.append((client, msg.plain))
            return Trained(x=msg.x + 1.0, n=3, loss=0.1, gamma=1.0)

        server.transport = Altered(server.transport, answer)
        FedGTST(phi=share).round(State(x=hospitals.theta(), gamma=1.0), server)
        assert {p for p, _ in asked} == set(server.participants) and len(asked) == len(server.participants)
        chosen.append(tuple(sorted(p for p, plain in asked if plain)))
        assert len(chosen[-1]) == min(expected, len(server.participants))
    assert sources < 10 or len(set(chosen)) > 1, "drawn anew each round"


def scripted(gammas: dict[str, float]) -> Server:
    server = hospitals.in_process()
    server.begin(1, 2)
    server.transport = Altered(
        server.transport,
        lambda client, step, nth, msg: Trained(x=msg.x + 1.0, n=3, loss=0.1, gamma=gammas[client]),
    )
    return server


def test_the_guide_can_be_held_to_so_many_medians(capsys) -> None:
    far = {"east": 1.0, "north": 2.0, "south": 100.0}
    state = State(x=hospitals.theta(), gamma=5.0)
    assert FedGTST().round(state, scripted(far)).gamma == 100.0
    assert "the largest Jacobian norm is 50 times the median" in capsys.readouterr().err
    assert FedGTST(cap=10.0).round(state, scripted(far)).gamma == 20.0
    assert FedGTST(cap=10.0).round(state, scripted(dict.fromkeys(far, 3.0))).gamma == 3.0


def test_a_norm_that_is_not_there_is_passed_over() -> None:
    state = State(x=hospitals.theta(), gamma=5.0)
    some = FedGTST().round(state, scripted({"east": NONE, "north": 2.0, "south": 3.0}))
    assert some.gamma == 3.0 and torch.allclose(some.x, state.x + 1.0), "its model counts all the same"
    assert FedGTST().round(state, scripted(dict.fromkeys(("east", "north", "south"), NONE))).gamma == 5.0


def test_an_answer_with_a_norm_that_is_not_finite_is_left_out_by_name() -> None:
    server = scripted({"east": math.inf, "north": 2.0, "south": math.nan})
    assert FedGTST().round(State(x=hospitals.theta(), gamma=5.0), server).gamma == 2.0
    assert {a["client"] for a in server.absences} == {"east", "south"}


def test_an_unsound_model_does_not_set_the_guide() -> None:
    server = hospitals.in_process()
    server.validator.settings = Validation(norms=Norms())
    server.begin(1, 2)
    step = {"east": 1.0, "north": 1.0, "south": 1e9}
    server.transport = Altered(
        server.transport,
        lambda client, s, nth, msg: Trained(x=msg.x + step[client], n=3, loss=0.1, gamma=step[client]),
    )
    after = FedGTST().round(State(x=hospitals.theta(), gamma=5.0), server)
    assert after.gamma == 1.0 and [a["client"] for a in server.absences] == ["south"]


def test_when_all_drop_out_model_and_guide_stay() -> None:
    server = hospitals.in_process()
    server.begin(1, 2)

    def gone(client, step, nth, msg):
        raise DroppedOut(client, "gone")

    server.transport = Altered(server.transport, gone)
    state = State(x=hospitals.theta(), gamma=5.0)
    assert FedGTST().round(state, server) is state


# --- a source --------------------------------------------------------------------------------------------------------


def test_in_phi_the_guided_model_is_sent_and_the_larger_norm() -> None:
    for full in (1, 0):
        outside, inside = (trained(xi=3.0, gamma=0.0, full=full, plain=p) for p in (0, 1))
        plain = trained(xi=0.0, full=full)
        assert torch.equal(inside.x, outside.x) and inside.loss == outside.loss
        assert not torch.equal(inside.x, plain.x)
        assert inside.gamma == max(outside.gamma, plain.gamma)
    assert inside.gamma > outside.gamma, "a guide of zero shortens the gradient, so the plain norm is the larger"


def test_in_phi_auxiliary_heads_are_those_of_the_guided_training() -> None:
    kept = []
    for plain in (0, 1):
        client = hospitals.hospital("north", auxiliary=True)
        trained(client, plain=plain)
        kept.append(client.memory["heads"])
    assert torch.equal(*kept)


def test_the_full_norm_is_that_of_all_images_at_the_trained_model() -> None:
    client = hospitals.hospital("north")
    x = trained(client, xi=0.0).x
    full, path = trained(client, x=x, full=1), trained(client, x=x)
    assert full.gamma == pytest.approx(float(jacobian(full.x, client.data).norm()), rel=1e-5)
    assert torch.equal(full.x, path.x), "which norm is sent does not change the training"


def test_where_a_round_is_one_step_the_norm_of_the_path_is_that_of_the_papers_jacobian() -> None:
    client = hospitals.hospital("north")
    client.recipe = client.recipe.model_copy(update={"batch": len(client.data)})
    there = float(jacobian(hospitals.theta(), client.data, train=True).norm())
    assert trained(client).gamma == pytest.approx(there, rel=1e-5)


def test_a_guide_below_shortens_the_gradient_and_one_above_lengthens_it() -> None:
    plain = trained(xi=0.0).gamma
    for exact in (0, 1):
        norm = {g: trained(xi=3.0, gamma=g, exact=exact).gamma for g in (0.0, 3.0)}
        assert norm[0.0] < plain < norm[3.0]


@pytest.mark.parametrize("exact", [0, 1])
@pytest.mark.parametrize("full", [0, 1])
@pytest.mark.parametrize("auxiliary", [False, True])
def test_every_variant_trains_to_something_finite(exact, full, auxiliary) -> None:
    reply = trained(hospitals.hospital("north", auxiliary=auxiliary), exact=exact, full=full, plain=1)
    assert torch.isfinite(reply.x).all() and math.isfinite(reply.gamma) and reply.gamma > 0.0


@pytest.mark.parametrize("full", [0, 1])
@pytest.mark.parametrize("exact", [0, 1])
def test_one_image_or_one_class_is_enough(full, exact) -> None:
    client = hospitals.hospital("north")
    data = client.data
    for rows in (slice(0, 1), data.y == 1):
        client.data = Labeled(data.images[rows], data.y[rows], {k: v[rows] for k, v in data.auxiliary.items()})
        reply = trained(client, full=full, exact=exact, plain=1)
        assert torch.isfinite(reply.x).all() and reply.gamma >= 0.0


def test_a_norm_beyond_float_is_sent_as_none(monkeypatch) -> None:
    monkeypatch.setattr("fdamed.methods.fedgtst.norm_of", lambda g: math.inf)
    assert trained(full=1, gamma=NONE).gamma == NONE


def test_differences_in_bfloat16_are_refused_and_the_exact_way_is_not() -> None:
    client = hospitals.hospital("north")
    client.precision = "bfloat16"
    with pytest.raises(FdamedError, match="bfloat16"):
        trained(client)
    assert torch.isfinite(trained(client, exact=1).x).all()
    assert torch.isfinite(trained(client, gamma=NONE).x).all(), "without a guide there is no difference"


@pytest.mark.parametrize(
    "options",
    [
        {"guide": "full"},
        {"hessian": "exact"},
        {"cap": 2.0, "weighting": "samples"},
    ],
)
@pytest.mark.parametrize("auxiliary", [False, True])
def test_every_variant_gives_the_same_bits_in_rebuilt_hospitals_and_in_any_order(options, auxiliary) -> None:
    servers = (
        hospitals.in_process(auxiliary=auxiliary),
        hospitals.in_process(tuple(reversed(hospitals.NAMES)), auxiliary=auxiliary),
        hospitals.rebuilt(auxiliary=auxiliary),
    )
    first, *others = (run(FedGTST(**options), server, hospitals.theta(), 3, hospitals.no_judge) for server in servers)
    assert torch.isfinite(first[0]).all()
    for theta, record in others:
        assert torch.equal(theta, first[0]) and record.ledger == first[1].ledger
        assert record.metrics == first[1].metrics


# --- the wire --------------------------------------------------------------------------------------------------------


def test_bytes_are_fedavgs_and_a_guide_settings_and_a_norm_for_each_participant() -> None:
    _, record, _ = watched(FedGTST(), hospitals.in_process(), 2)
    _, plain = run(FedAvg(), hospitals.in_process(), hospitals.theta(), 2, hospitals.no_judge)
    spent, before = ({"up": 0, "down": 0} for _ in range(2))
    for counts, lines in ((spent, record.ledger), (before, plain.ledger)):
        for line in lines:
            counts["down" if line["from"] == "server" else "up"] += line["bytes"]
    participants = 2 * 3
    assert spent["up"] - before["up"] == 8 * participants, "the norm"
    assert spent["down"] - before["down"] == (8 + 4 * 8) * participants, "the guide, and four settings"


def test_statistics_by_hand_and_what_norms_alone_can_show() -> None:
    assert statistics([torch.tensor([3.0, 4.0]), torch.tensor([3.0, -4.0])]) == pytest.approx((3.0, 16.0))
    rng = np.random.default_rng(0)
    for _ in range(20):
        j = [torch.from_numpy(rng.standard_normal(5)) for _ in range(4)]
        norms = np.array([float(g.norm()) for g in j])
        assert norms.var() - 1e-12 <= statistics(j)[1] <= np.square(norms).mean()
    assert statistics([torch.ones(3)])[1] == pytest.approx(0.0, abs=1e-12)
