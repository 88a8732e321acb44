"""FADA against its paper: values of the losses, what trains on which loss, weights, bytes, and bad input."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fdamed.config.train import Norms, Validation
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.data.loader import Unlabeled
from fdamed.federation.absences import DroppedOut
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.methods._shared.adversarial_training import Batch, Game
from fdamed.methods._shared.local_training import Moved
from fdamed.methods.fada.attention import Candidate, Uncalibrated, feature_spread, inertia, recalibrate, within_share
from fdamed.methods.fada.client import Adapt, adapt
from fdamed.methods.fada.disentanglement import (
    Mine,
    branches,
    discriminator_for,
    folded_head,
    mutual_information,
    side_of,
    uniformity,
)
from fdamed.methods.fada.exchange import Discriminators
from fdamed.methods.fada.method import Fada
from fdamed.methods.fedavg import FedAvg
from fdamed.models.adversarial import Discriminator, domain_loss, frozen
from fdamed.models.flat import FlatModel
from tests.support import federation as hospitals
from tests.support.federation import Altered, clients_of
from tests.unit.test_methods_by_hand import MOVES, SAMPLES, Scripted, X

EMPTY = torch.empty(0)
FULL = (0.1, 1e-4, 0.01)


def normal(*shape: int, name: str = "x") -> Tensor:
    return torch.from_numpy(stream(2, name).numpy.normal(size=shape)).float()


def federation(names: tuple[str, ...] = hospitals.NAMES, features: bool = False, batch: int = 4):
    server = hospitals.in_process(names, labels=False)
    for client in clients_of(server).values():
        client.recipe = client.recipe.model_copy(update={"batch": batch, "optimizer": "sgd"})
        if features:
            client.release = client.release | {"features"}
    return server


def with_six_images(server):
    """Every source has as many images as the target."""
    for name in server.sources:
        data = clients_of(server)[name].data
        clients_of(server)[name].data = type(data)(data.images[:6], data.y[:6], {})
    return server


def after_one_round(method, server):
    server.begin(1, 1)
    return method.round(method.start(hospitals.theta()), server)


# --- losses ----------------------------------------------------------------------------------------------------------


def test_an_undecided_discriminator_costs_two_times_log_two() -> None:
    logit = torch.zeros(5)
    l_di = domain_loss(logit, 1.0) + domain_loss(logit, 0.0)
    l_g = domain_loss(logit, 1.0) + domain_loss(logit, 1.0)
    assert float(l_di) == pytest.approx(1.386294, abs=1e-6) and float(l_g) == pytest.approx(1.386294, abs=1e-6)


def test_a_certain_discriminator_has_a_finite_loss() -> None:
    assert float(domain_loss(torch.tensor([-500.0]), 1.0)) == 500.0


def test_class_confusion_is_least_for_constant_logits() -> None:
    assert float(uniformity(torch.full((4, 3), 7.0))) == pytest.approx(math.log(3))
    assert float(uniformity(torch.tensor([[1.0, 0.0, 0.0]]))) > math.log(3)


def test_a_constant_critic_sees_no_information() -> None:
    assert float(mutual_information(torch.full((9,), 2.5), torch.full((9,), 2.5))) == pytest.approx(0.0, abs=1e-6)


def test_the_critic_that_knows_the_density_finds_the_information_of_a_gaussian() -> None:
    rho = 0.8
    x, z = normal(200_000, name="x"), normal(200_000, name="z")
    y = rho * x + math.sqrt(1 - rho**2) * z

    def ratio(a: Tensor, b: Tensor) -> Tensor:
        quadratic = (rho**2 * (a * a + b * b) - 2 * rho * a * b) / (2 * (1 - rho**2))
        return -0.5 * math.log(1 - rho**2) - quadratic

    assert float(mutual_information(ratio(x, y), ratio(x, y.roll(1)))) == pytest.approx(0.5108, abs=0.01)


def test_scores_too_large_for_exponentials_give_a_finite_information() -> None:
    assert float(mutual_information(torch.tensor([1e4, 1e4]), torch.tensor([1e4, 0.0]))) == pytest.approx(
        math.log(2), abs=1e-3
    )


# --- who learns from what --------------------------------------------------------------------------------------------


def test_features_learn_with_a_frozen_discriminator_and_the_discriminator_from_detached_features() -> None:
    di = FlatModel(Discriminator(4, 3))
    seen = normal(6, 4).requires_grad_()
    alone = torch.autograd.grad(domain_loss(di.module(seen.detach()), 0.0), list(di.module.parameters()))
    Game(di, label=0.0, toward=1.0, pull=0.3).play(seen).backward()
    assert torch.allclose(di.grad, torch.cat([g.flatten() for g in alone]))
    with frozen(di.module):
        (g,) = torch.autograd.grad(0.3 * domain_loss(di.module(seen), 1.0), seen)
    assert torch.allclose(seen.grad, g)


def source_side(*rates: float):
    """A source's side of model III, with weights of class confusion, mutual information and reconstruction."""
    side = side_of(hospitals.hospital("north"), lambda f: f.sum() * 0.0, 1.0, EMPTY, torch.tensor(rates))
    side.d.grad.zero_(), side.own.grad.zero_()
    return side


def batch_of(n: int = 6) -> Batch:
    return Batch(torch.empty(0), torch.arange(n) % 2, {}, stream(0, "batch"))


def gradient_at_the_feature(*rates: float) -> Tensor:
    f = normal(6, 4).requires_grad_()
    source_side(*rates)(f, batch_of()).backward()
    return f.grad


def test_information_and_reconstruction_shape_the_branches_and_never_the_extractor() -> None:
    assert torch.equal(gradient_at_the_feature(0.1, 0.0, 0.0), gradient_at_the_feature(0.1, 5.0, 5.0))
    assert not torch.equal(gradient_at_the_feature(0.1, 0.0, 0.0), gradient_at_the_feature(2.0, 0.0, 0.0))
    changes = []
    for rates in ((0.1, 0.0, 0.0), (0.1, 5.0, 0.0), (0.1, 0.0, 5.0)):
        side = source_side(*rates)
        side(normal(6, 4).requires_grad_(), batch_of()).backward()
        changes.append(side.d.grad.clone())
    assert not torch.allclose(changes[0], changes[1]) and not torch.allclose(changes[0], changes[2])


def test_the_class_identifier_learns_its_task_and_not_the_confusion() -> None:
    gradients = []
    for entropy in (0.0, 9.0):
        side = source_side(entropy, 0.0, 0.0)
        side(normal(6, 4).requires_grad_(), batch_of()).backward()
        gradients.append(side.own.module.identifier.weight.grad.clone())
    assert torch.equal(gradients[0], gradients[1]) and gradients[0].any()


def test_the_critic_maximizes_the_information_that_the_branches_minimize() -> None:
    side = source_side(0.0, 1.0, 0.0)
    side(normal(6, 4).requires_grad_(), batch_of()).backward()
    order = torch.randperm(6, generator=batch_of().rng.child("shuffle").torch)
    d, mine = side.d.module, side.own.module.mine

    def information() -> Tensor:
        f_di, f_ds = d(normal(6, 4))
        return mutual_information(mine(f_di, f_ds), mine(f_di, f_ds[order]))

    parameters = list(mine.parameters())
    for p, g in zip(parameters, torch.autograd.grad(information(), parameters), strict=True):
        assert torch.allclose(p.grad, -g, atol=1e-6)
    (up,) = torch.autograd.grad(information(), d.specific.weight)
    again = source_side(0.0, 1.0, 0.0)
    again(normal(6, 4).requires_grad_(), batch_of())  # the value's own backward is left out
    assert torch.allclose(again.d.module.specific.weight.grad, up, atol=1e-6)


def test_information_that_is_not_finite_is_left_out_and_counted() -> None:
    side = source_side(*FULL)
    with torch.no_grad():
        side.own.module.mine.x.weight.fill_(3e38)
    f = normal(6, 4).requires_grad_()
    side(f, batch_of()).backward()
    assert side.skipped == 1
    assert all(torch.isfinite(g).all() for g in (side.d.grad, side.own.grad, f.grad))


# --- parts -----------------------------------------------------------------------------------------------------------


def test_the_parts_of_four_sources_have_the_papers_number_of_parameters() -> None:
    # D 2 (128 + 1) 64, CI 65 2, M 65 32 + 64 32 + 33, R 129 128, DI 65 32 + 33, four times
    source = 2 * 129 * 64 + 65 * 2 + (65 * 32 + 64 * 32 + 33) + 129 * 128 + (65 * 32 + 33)
    assert Fada().extra_parameters(4, 128, 2) == 4 * source == 157_712
    assert 4 * source == pytest.approx(56_369_000 - 56_212_170, rel=0.01)
    assert Fada(model="I").extra_parameters(4, 128, 2) == 0
    assert Fada(model="II").extra_parameters(4, 128, 2) == 4 * (129 * 32 + 33)


def test_branch_and_classifier_fold_into_one_linear_head() -> None:
    d = branches(hospitals.hospital("north"), EMPTY)
    for i in range(3):
        d.module(normal(20, 4, name=f"f{i}") + 2.0)
    d.module.eval()
    f, head = normal(5, 4), folded_head(d.read(), hospitals.model().layout)
    expected = d.module.classifier(d.module(f)[0])
    assert torch.allclose(F.linear(f, head[:8].view(2, 4), head[8:]), expected, atol=1e-5)


def test_the_learned_model_predicts_what_the_branches_predict() -> None:
    server = federation(batch=16)
    state = after_one_round(Fada(), server)
    client = hospitals.hospital("target")
    d = branches(client, state.d)
    client.model.load(state.x)
    client.model.module.eval(), d.module.eval()
    x = normal(4, 1, 8, 8)
    with torch.inference_mode():
        expected = d.module.classifier(d.module(client.model.module.features(x))[0])
        assert torch.allclose(client.model.module(x), expected, atol=1e-5)


# --- rounds ----------------------------------------------------------------------------------------------------------


SPREADS = {"before": 10.0, "S1": 9.8, "S2": 9.95}


class WithSpreads(Scripted):
    def deliver(self, client, step, nth, msg):
        if hasattr(msg, "models"):
            moved = msg.models[0] - X
            which = next((k for k in ("S1", "S2") if torch.equal(moved, MOVES[k])), "before")
            return step.answer(i=SPREADS[which])
        return super().deliver(client, step, nth, msg)


def test_model_one_weighs_updates_by_how_much_tighter_the_target_clusters() -> None:
    server = Server(WithSpreads(lambda p, x: x + MOVES[p], SAMPLES, dict.fromkeys(SAMPLES, 1.0)), "T", "test")
    server.begin(1, 1)
    method = Fada(model="I")
    got = method.round(method.start(X), server).x - X
    w = torch.softmax(torch.tensor([0.4, 0.1]), 0)  # relative gains 0.02 and 0.005 over 0.05
    assert torch.allclose(got, w[0] * MOVES["S1"] + w[1] * MOVES["S2"], atol=1e-5)
    assert server.notes["weight/S1"] == pytest.approx(float(w[0]), abs=1e-6)
    assert Moved in {s.answer for s in method.asks()}


def test_with_equal_weights_and_without_its_losses_it_is_the_plain_mean() -> None:
    warm = {"temperature": 1e9}  # the softmax of gains is flat
    server = with_six_images(federation(batch=16))  # FedAvg's weights are equal too
    theta = {}
    for name, method in (
        ("avg", FedAvg()),
        ("I", Fada(model="I", **warm)),
        ("II", Fada(model="II", adversarial=0.0, adversarial_start=0.0, **warm)),
    ):
        theta[name] = after_one_round(method, server).x
    p = hospitals.model().layout.trainable
    assert torch.allclose(theta["I"], theta["avg"], atol=1e-6)
    assert torch.allclose(theta["II"][:p], theta["avg"][:p], atol=1e-6)
    assert not torch.equal(theta["avg"], hospitals.theta())


def test_weights_are_noted_and_sum_to_one_in_every_model() -> None:
    for model in ("I", "II", "III"):
        server = federation()
        after_one_round(Fada(model=model), server)
        weights = [server.notes[f"weight/{s}"] for s in server.sources]
        assert sum(weights) == pytest.approx(1.0) and min(weights) >= 0.0


def test_a_single_source_has_the_whole_weight_without_a_look() -> None:
    server = federation(("north", "target"))
    after_one_round(Fada(model="II"), server)
    assert server.notes["weight/north"] == 1.0
    assert server.ledger.total(kind="individual") == 0


def target_images() -> Tensor:
    return torch.from_numpy(hospitals.images("target").images).unsqueeze(1).float() / 255


def test_running_statistics_are_the_targets_own() -> None:
    server = federation(batch=16)
    state = after_one_round(Fada(model="II"), server)
    p = server.layout.trainable
    alone = hospitals.model()
    alone.module.train()
    with torch.no_grad():
        alone.module(target_images())
    assert torch.allclose(state.x[p:], alone.read()[p:], atol=1e-6)


@pytest.mark.parametrize("wire", ["discriminator", "features"])
def test_the_branches_read_the_target_in_units_of_the_model_that_was_learned(wire) -> None:
    server = federation(batch=16, features=True)
    state = after_one_round(Fada(wire=wire), server)
    client = hospitals.hospital("target")
    client.model.load(state.x)
    d = branches(client, state.d)
    p = server.layout.trainable
    with torch.no_grad():
        maps = client.model.module.conv(target_images())
        assert torch.allclose(state.x[p:], torch.cat([maps.mean((0, 2, 3)), maps.var((0, 2, 3))]), atol=1e-6)
        client.model.module.train()
        z = d.module.invariant(client.model.module.features(target_images()))
    assert torch.allclose(d.module.invariant_norm.running_mean, z.mean(0), atol=1e-5)
    assert torch.allclose(d.module.invariant_norm.running_var, z.var(0), atol=1e-5)


def test_the_target_is_sent_the_learned_model_once_more_in_model_three() -> None:
    server = federation()
    after_one_round(Fada(), server)
    k, m = 3, 4 * server.layout.size
    assert server.ledger.total(kind="weights") == (k + 2) * m and server.ledger.total(kind="update") == (k + 1) * m


def test_statistics_of_many_batches_are_their_plain_mean_and_leave_the_momentum_alone() -> None:
    client = hospitals.hospital("target", labels=False)
    client.data = Unlabeled(client.data.images.repeat(100, axis=0))  # 600 images are three batches
    before = hospitals.theta()
    reply = recalibrate.run(client, Uncalibrated(x=before, d=branches(client, EMPTY).read(), probe=1000))
    with torch.no_grad():
        maps = hospitals.model().module.conv(target_images())
    assert torch.allclose(reply.x[:8], maps.mean((0, 2, 3)), atol=1e-5)
    assert client.model.module.norm.momentum == 0.1
    assert torch.equal(client.model.read()[: client.model.layout.trainable], before[: client.model.layout.trainable])


def test_a_target_with_one_image_measures_nothing() -> None:
    client = hospitals.hospital("target", labels=False)
    client.data = Unlabeled(client.data.images[:1])
    reply = recalibrate.run(client, Uncalibrated(x=hospitals.theta(), d=EMPTY, probe=1000))
    assert len(reply.x) == 0 and len(reply.d) == 0


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_a_source_gains_nothing_by_the_size_of_the_features(scale) -> None:
    """The size of the last hidden layer is the size of the features, and no cluster is tighter for it."""
    client = hospitals.hospital("target", labels=False)
    theta = hospitals.theta()
    bias, weight = (next(s for s in client.model.layout if s.name == f"hidden.{k}") for k in ("bias", "weight"))
    theta[bias.start : bias.stop] = 1.0  # no feature is cut off
    larger = theta.clone()
    for s in (bias, weight):
        larger[s.start : s.stop] *= scale

    def look(x: Tensor) -> float:
        client.memory.clear()
        return feature_spread.run(client, Candidate(models=x[None], probe=6, first=1)).i

    assert look(larger) == pytest.approx(look(theta), rel=1e-3)
    f, own = normal(6, 2), torch.arange(6) % 2
    assert inertia(scale * f, own) == pytest.approx(scale**2 * inertia(f, own))  # the paper's I


def test_the_spread_is_the_share_of_the_scatter_inside_the_clusters() -> None:
    f, own = torch.tensor([[0.0], [2.0], [10.0], [12.0]]), torch.tensor([0, 0, 1, 1])
    assert within_share(f, own) == pytest.approx(4 / 104)  # 1 + 1 + 1 + 1 of 36 + 16 + 16 + 36
    assert within_share(torch.ones(4, 1), own) == 1.0  # features that are all one tell nothing apart


def test_the_clusters_of_a_candidate_are_not_where_the_next_one_begins() -> None:
    client = hospitals.hospital("target", labels=False)
    theta = hospitals.theta()
    place = next(s for s in client.model.layout if s.name == "hidden.bias")
    theta[place.start : place.stop] = 1.0  # no feature is cut off
    client.rng = stream(0, "test")

    def look(x: Tensor, first: int) -> float:
        return feature_spread.run(client, Candidate(models=x[None], probe=5, first=first)).i

    look(theta, 1)
    centers = client.memory["fada.centers"].clone()
    assert len(centers) == 2 and look(theta * 2.0, 0) > 0.0
    assert torch.equal(client.memory["fada.centers"], centers)


# --- the wire --------------------------------------------------------------------------------------------------------


def test_bytes_of_a_round_are_those_of_the_formula() -> None:
    server = federation()
    after_one_round(Fada(model="I"), server)
    k, m = 3, 4 * server.layout.size
    assert server.ledger.total(kind="weights") + server.ledger.total(kind="update") == 2 * k * m
    assert server.ledger.total(kind="individual") == (k + 1) * m


def test_the_shared_discriminator_costs_its_copies_down_and_up() -> None:
    server = federation()
    method = Fada(model="II")
    state = after_one_round(method, server)
    first = server.ledger.total(kind="statistic")
    server.begin(2, 2)
    method.round(state, server)
    k, p_di, rates = 3, sum(p.numel() for p in Discriminator(4, 2).parameters()), 3 * 8
    assert server.ledger.total(kind="statistic") - first == 2 * (k + 1) * 4 * p_di + (k + 1) * rates
    assert (
        server.ledger.total(kind="weights") + server.ledger.total(kind="update")
        == 2 * (2 * (k + 1)) * 4 * server.layout.size
    )
    assert server.ledger.total(kind="features") == 0


def test_features_are_refused_before_any_byte_leaves_unless_every_hospital_releases_them() -> None:
    server = federation()
    with pytest.raises(FdamedError, match="features"):
        run(Fada(wire="features"), server, hospitals.theta(), 1, hospitals.no_judge)
    assert server.ledger.lines() == []
    run(Fada(), server, hospitals.theta(), 1, hospitals.no_judge)


@pytest.mark.parametrize(("model", "d"), [("II", 4), ("III", 2)])
def test_published_features_cost_16_b_d_for_each_pair_and_step(model, d) -> None:
    server = with_six_images(federation(features=True, batch=3))
    run(Fada(model=model, wire="features"), server, hospitals.theta(), 1, hospitals.no_judge)
    pairs, steps, b = 3, 2, 3
    assert server.ledger.total(kind="features") == 16 * b * d * pairs * steps


@pytest.mark.parametrize("model", ["II", "III"])
@pytest.mark.parametrize("shape", [(3, 7), (0, 4), (12,)])
def test_features_of_another_shape_are_rejected_and_the_round_continues_without_their_source(model, shape) -> None:
    server = federation(features=True)
    deliver = server.transport.deliver

    def bent(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        return dataclasses.replace(reply, f=torch.ones(shape)) if client == "north" and hasattr(reply, "f") else reply

    server.transport = Altered(server.transport, bent)
    theta, record = run(Fada(model=model, wire="features"), server, hospitals.theta(), 1, hospitals.no_judge)
    assert [(a["client"], a["reason"]) for a in record.absences] == [("north", "shape")]
    assert not record.metrics[0].get("lost") and not torch.equal(theta, hospitals.theta())


def taught(f_s: Tensor, f_t: Tensor, steps: int) -> FlatModel:
    """The server's discriminator of north after so many batches with these features."""
    server = federation(features=True)
    judges = Discriminators(server, EMPTY, apart=False, lr=1e-2, pull=1.0)
    for _ in range(steps):
        judges.gradients("north", f_s, f_t)
    di = FlatModel(discriminator_for(server.layout, apart=False))
    di.load(judges.read()[server.sources.index("north")])
    return di


def test_a_discriminator_of_identical_domains_stays_undecided() -> None:
    f = normal(32, 4)
    logit = taught(f, f, 200).module(f).detach()
    assert float(domain_loss(logit, 1.0) + domain_loss(logit, 0.0)) == pytest.approx(2 * math.log(2), abs=0.01)


def test_a_discriminator_of_different_domains_learns_to_tell_them_apart() -> None:
    f_s, f_t = normal(32, 4) + 2.0, normal(32, 4) - 2.0
    di = taught(f_s, f_t, 60).module
    assert bool((di(f_s) > 0).all()) and bool((di(f_t) < 0).all())


def test_the_servers_discriminators_begin_differently_in_runs_with_other_seeds() -> None:
    starts = []
    for seed in (1, 2, 1):
        server = federation(features=True)
        server.invite(1.0, seed)
        starts.append(Discriminators(server, EMPTY, apart=False, lr=1e-2, pull=1.0).read())
    assert not torch.equal(starts[0], starts[1]) and torch.equal(starts[0], starts[2])


def test_the_server_returns_the_gradients_with_which_both_sides_pass_for_a_source() -> None:
    server = federation(features=True)
    judges = Discriminators(server, EMPTY, apart=False, lr=1e-2, pull=0.3)
    f_s, f_t = normal(6, 4), normal(5, 4, name="t")
    g_s, g_t = judges.gradients("north", f_s, f_t)
    di = FlatModel(discriminator_for(server.layout, apart=False))
    di.load(judges.read()[server.sources.index("north")])  # after its step, as in the paper's order
    for f, g in ((f_s, g_s), (f_t, g_t)):
        seen = f.clone().requires_grad_()
        (expected,) = torch.autograd.grad(0.3 * domain_loss(di.module(seen), 1.0), seen)
        assert torch.allclose(g, expected, atol=1e-7) and g.any()


def test_published_features_teach_both_sides_and_resume_between_questions() -> None:
    results = []
    for build in (hospitals.in_process, hospitals.rebuilt):
        server = build(labels=False)
        for client in clients_of(server).values():
            client.release = client.release | {"features"}
        theta, record = run(Fada(wire="features"), server, hospitals.theta(), 2, hospitals.no_judge)
        assert torch.isfinite(theta).all() and not record.absences
        results.append(theta)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], hospitals.theta())


# --- what may go wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["discriminator", "features"])
def test_a_source_that_leaves_in_mid_round_is_out_of_the_round(wire) -> None:
    server = federation(features=True)
    deliver = server.transport.deliver
    asked = []

    def leaving(client, step, nth, msg):
        if client == "east":
            asked.append(step.name)
            if wire == "discriminator" or len(asked) > 3:
                raise DroppedOut(client, "gone")
        return deliver(client, step, nth, msg)

    server.transport = Altered(server.transport, leaving)
    theta, record = run(Fada(wire=wire), server, hospitals.theta(), 1, hospitals.no_judge)
    assert torch.isfinite(theta).all() and not torch.equal(theta, hospitals.theta())
    assert "weight/east" not in record.metrics[0] and "weight/north" in record.metrics[0]


@pytest.mark.parametrize("wire", ["discriminator", "features"])
@pytest.mark.parametrize("images", [0, 1])
def test_a_target_with_one_image_or_none_leaves_a_finite_model(wire, images) -> None:
    server = federation(features=True)
    client = clients_of(server)["target"]
    client.data = Unlabeled(client.data.images[:images])
    theta, _ = run(Fada(wire=wire), server, hospitals.theta(), 2, hospitals.no_judge)
    assert torch.isfinite(theta).all() and not torch.equal(theta, hospitals.theta())


def test_a_source_with_one_image_trains_with_running_statistics() -> None:
    client = hospitals.hospital("north")
    client.data = type(client.data)(client.data.images[:1], client.data.y[:1], {})
    theta = hospitals.theta()
    ask = Adapt(
        x=theta, d=EMPTY, di=EMPTY, rates=torch.tensor([0.1, 1e-4, 0.01]), pull=0.1, pace=1.0, source=1, apart=1
    )
    client.rng = stream(0, "test")
    reply = adapt.run(client, ask)
    assert torch.isfinite(reply.g).all() and torch.isfinite(reply.d).all()
    assert not torch.equal(reply.d, branches(client, EMPTY).read())
    assert not reply.g[client.model.layout.trainable :].any() and reply.d[-8:].tolist() == [0, 0, 1, 1] * 2


def test_the_critic_and_the_identifier_stay_in_their_hospital() -> None:
    server = federation()
    after_one_round(Fada(), server)
    assert {s: "opponents" in clients_of(server)[s].memory for s in (*server.sources, "target")} == {
        "north": True,
        "east": True,
        "south": True,
        "target": False,
    }
    mine = sum(p.numel() for p in Mine(2).parameters())
    assert mine > 0 and len(clients_of(server)["north"].memory["opponents"]) > mine


TRAINING = ("compute_update", "adapt", "train", "align", "end")


def spoiling(server, client: str, change) -> None:
    """Every update or model that the client sends is changed on its way."""
    deliver = server.transport.deliver

    def spoiled(who, step, nth, msg):
        reply = deliver(who, step, nth, msg)
        for name in ("g", "x") if who == client else ():
            if isinstance(getattr(reply, name, None), Tensor) and step.name.split(".")[-1] in TRAINING:
                reply = dataclasses.replace(reply, **{name: change(getattr(reply, name))})
        return reply

    server.transport = Altered(server.transport, spoiled)


@pytest.mark.parametrize("options", [{"model": "I"}, {"model": "II"}, {}, {"wire": "features"}])
@pytest.mark.parametrize(("factor", "why"), [(math.nan, "not finite"), (1e6, "norm|negative variance")])
def test_a_source_with_an_unsound_update_is_rejected_by_name_and_the_others_go_on(options, factor, why) -> None:
    server = federation(features=True)
    server.validator.settings = Validation(norms=Norms())
    spoiling(server, "east", lambda g: g * factor)
    theta, record = run(Fada(**options), server, hospitals.theta(), 1, hospitals.no_judge)
    (absence,) = record.absences
    assert absence["client"] == "east" and re.fullmatch(why, absence["reason"])
    assert "weight/east" not in record.metrics[0]
    without = federation(tuple(n for n in hospitals.NAMES if n != "east"), features=True)
    expected, _ = run(Fada(**options), without, hospitals.theta(), 1, hospitals.no_judge)
    if options.get("wire") != "features":  # there the target has answered east's turns by then
        assert torch.allclose(theta, expected, atol=1e-6)
    assert torch.isfinite(theta).all() and not torch.equal(theta, hospitals.theta())
