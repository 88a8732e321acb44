"""FedRF-TCA: the random features, the messages, who sends what, and what a round does, by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fdamed.cli.commands import federate, init, partition
from fdamed.config.study import Config, Privacy, Recipe
from fdamed.config.train import Faults, Norms, Validation
from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json
from fdamed.core.rng import Stream, stream
from fdamed.data.loader import Labeled
from fdamed.federation.absences import DroppedOut
from fdamed.federation.client import answer
from fdamed.federation.runner import run
from fdamed.methods._shared.adversarial_training import Batch, training_features
from fdamed.methods.fedavg import FedAvg
from fdamed.methods.fedrf_tca.client import Begin, MeanRequest, Train, begin, parts_of, send_mean, train
from fdamed.methods.fedrf_tca.method import FedRfTca
from fdamed.methods.fedrf_tca.model import Losses, Parts, hard_vote
from fdamed.methods.fedrf_tca.participation import classifiers_due, draw_senders, subset
from fdamed.models.backbone import build
from fdamed.models.flat import FlatModel, checksum
from fdamed.ops.random_features import aligned_distance, fourier_features, frequencies, unit
from fdamed.pipeline.paths import Places
from fdamed.pipeline.scoring import score, trained_model
from fdamed.pipeline.selection import StudyRun
from fdamed.training.local import predict
from tests.support import federation as hospitals
from tests.support.federation import Altered, clients_of, unreliable_server

N, M, WIDTH, K = 12, 5, 6, 3
SMALL = {"frequencies": N, "components": M, "width": WIDTH, "local_steps": 2}
P_C = (M + 1) * WIDTH + (WIDTH + 1) * WIDTH + (WIDTH + 1) * 2
MEAN, W, C = 4 * 2 * N, 4 * 2 * N * M, 4 * P_C


def federation(**seeds: int):
    server = hospitals.in_process(labels=False)
    for name, seed in seeds.items():
        clients_of(server)[name].seed = seed
    return server


def rounds(method: FedRfTca, server, count: int, of: int = 9, theta=None):
    state = method.start(hospitals.theta() if theta is None else theta)
    for number in range(1, count + 1):
        server.begin(number, of)
        state = method.round(state, server)
    return state


def begun(name: str, **recipe):
    """A hospital that has drawn Omega and its first extractor."""
    client = hospitals.hospital(name, labels=False)
    client.recipe = client.recipe.model_copy(update=recipe)
    answer(client, begin, 1, 0, Begin(x=hospitals.theta(), frequencies=N, sigma=1.0))
    return client


def call(**changes):
    return MeanRequest(**({"frequencies": N, "frozen": 0, "whole": 0} | changes))


def lesson(others, **changes):
    fields = {
        "frozen": 0,
        "components": M,
        "width": WIDTH,
        "weight": 1.0,
        "pace": 1.0,
        "aligned": 1,
        "normalize": 1,
        "steps": 1,
    }
    return Train(others=others, **(fields | {"send_w": 1, "send_c": 1} | changes))


# --- random features --------------------------------------------------------------------------------------------------


def test_a_random_feature_has_length_one_and_its_inner_products_are_the_gaussian_kernel() -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(120, 8))).float() * 0.3
    exact = torch.exp(-torch.cdist(x, x).square() / (2 * 0.7**2))
    errors = []
    for count in (50, 200, 800, 3200):
        f = fourier_features(x, frequencies(stream(1, count), count, 8, 0.7))
        assert torch.allclose(f.norm(dim=1), torch.ones(120), atol=1e-5)
        errors.append(float(torch.linalg.matrix_norm(f @ f.t() - exact, 2) / torch.linalg.matrix_norm(exact, 2)))
    assert all(0.3 < b / a < 0.75 for a, b in itertools.pairwise(errors)), errors


def test_with_the_identity_as_aligner_the_loss_is_the_mmd_of_the_random_features() -> None:
    rng = torch.Generator().manual_seed(0)
    s, t = torch.randn(7, 4, generator=rng), torch.randn(5, 4, generator=rng) + 0.5
    omega = frequencies(stream(0), N, 4, 1.0)
    sigma = torch.cat([fourier_features(s, omega), fourier_features(t, omega)]).double()
    ell = torch.tensor([1 / 7] * 7 + [-1 / 5] * 5, dtype=torch.float64)
    by_kernel = ell @ sigma @ sigma.t() @ ell
    gap = (ell @ sigma)[None]
    for normalize in (True, False):
        loss = aligned_distance(torch.eye(2 * N, dtype=torch.float64), gap, normalize)
        assert float(loss) == pytest.approx(float(by_kernel), rel=1e-9)


def test_a_small_aligner_makes_the_papers_loss_small_and_the_normalized_one_no_smaller() -> None:
    w, gap = torch.randn(3, 6, generator=Stream(1).torch), torch.randn(2, 6, generator=Stream(2).torch)
    assert aligned_distance(w / 100, gap, False) == pytest.approx(float(aligned_distance(w, gap, False)) * 1e-4)
    assert aligned_distance(w / 100, gap, True) == pytest.approx(float(aligned_distance(w, gap, True)))
    zero = torch.zeros(3, 6, requires_grad=True)
    aligned_distance(zero, gap, True).backward()
    assert torch.isfinite(zero.grad).all()


def test_the_mean_of_the_sources_means_pulls_the_targets_features_just_as_each_does_but_not_its_aligner() -> None:
    rng = Stream(3).torch
    m_i = torch.randn(4, 6, generator=rng, dtype=torch.float64)
    pulls = []
    for others in (m_i, m_i.mean(0, keepdim=True)):
        w = torch.randn(3, 6, generator=Stream(4).torch, dtype=torch.float64).requires_grad_()
        m_t = torch.randn(6, generator=Stream(5).torch, dtype=torch.float64).requires_grad_()
        loss = aligned_distance(w, others + m_t, False)
        pulls.append((loss.detach(), *torch.autograd.grad(loss, (m_t, w))))
    (each, g_each, w_each), (pooled, g_pooled, w_pooled) = pulls
    w = torch.randn(3, 6, generator=Stream(4).torch, dtype=torch.float64)
    spread = ((m_i - m_i.mean(0)) @ w.t()).square().sum(1).mean()
    assert each == pytest.approx(float(pooled + spread))
    assert torch.allclose(g_each, g_pooled) and not torch.allclose(w_each, w_pooled)


def test_a_zero_feature_stays_zero_and_has_a_finite_gradient() -> None:
    f = torch.zeros(2, 4, requires_grad=True)
    seen = fourier_features(unit(f), frequencies(stream(0), N, 4, 1.0))
    assert torch.allclose(seen[:, :N], torch.full((2, N), 1 / math.sqrt(N))) and not seen[:, N:].any()
    seen.sum().backward()
    assert torch.isfinite(f.grad).all()


# --- a message of one image is no secret ------------------------------------------------------------------------------


def inverted(message: torch.Tensor, omega: torch.Tensor) -> torch.Tensor:
    """The features behind a mean over one image: phases by atan2, whole turns by repeated least squares."""
    half = len(message) // 2
    phase = torch.atan2(message[half:], message[:half])
    x = torch.linalg.lstsq(omega, phase[:, None]).solution[:, 0]
    for _ in range(20):
        turns = torch.round((omega @ x - phase) / (2 * math.pi))
        x = torch.linalg.lstsq(omega, (phase + 2 * math.pi * turns)[:, None]).solution[:, 0]
    return x


def test_whoever_knows_the_seed_turns_the_mean_of_one_image_back_into_its_features() -> None:
    omega = frequencies(stream(9), 200, 64, 1.0).double()
    for case in range(20):
        x = unit(torch.randn(1, 64, generator=Stream(case).torch, dtype=torch.float64))
        assert torch.allclose(inverted(fourier_features(x, omega)[0], omega), x[0], atol=1e-8)
    several = unit(torch.randn(16, 64, generator=Stream(99).torch, dtype=torch.float64))
    found = inverted(fourier_features(several, omega).mean(0), omega)
    assert min(float((found - x).norm()) for x in several) > 0.5


def few(images: int, batch: int, policy: int):
    """A hospital with this many images, batches and this policy."""
    client = hospitals.hospital("north")
    client.recipe, client.smallest_batch = Recipe(lr=0.1, batch=batch), policy
    x = np.random.default_rng(0).integers(0, 256, (images, 8, 8)).astype(np.uint8)
    client.data = Labeled(x, np.zeros(images, np.int64), {})
    return client


START = Begin(x=hospitals.theta(), frequencies=N, sigma=1.0)


@pytest.mark.parametrize(
    "images, batch, policy, refused",
    [(15, 16, 16, True), (40, 15, 16, True), (16, 16, 16, False), (8, 8, 8, False)],
)
def test_a_hospital_refuses_means_over_few_images(images, batch, policy, refused) -> None:
    client = few(images, batch, policy)
    if not refused:
        assert answer(client, begin, 1, 0, START).omega == checksum(client.memory["fedrf.omega"])
        return
    for step, ask in ((begin, START), (send_mean, call())):
        with pytest.raises(FdamedError, match="turn a mean over one image back") as error:
            answer(client, step, 1, 0, ask)
        assert "north" in error.value.where and "its privacy.smallest_batch" in error.value.what
        assert "privacy.smallest_batch" in error.value.fix and not client.memory


def test_the_attack_on_one_image_succeeds_where_the_policy_allows_it_and_finds_no_message_where_not() -> None:
    """Ω has more rows than features: phases of one image give its unit feature exactly."""
    client = few(1, 2, 1)
    answer(client, begin, 1, 0, replace(START, frequencies=200))
    client.model.load(hospitals.theta())
    client.model.module.hidden.bias.data += 1.0  # awake
    client.memory["fedrf.g"] = client.model.read()
    message = answer(client, send_mean, 1, 0, call()).x
    client.model.load(client.memory["fedrf.g"])
    f = unit(training_features(client, torch.from_numpy(client.data.images).unsqueeze(1) / 255.0))[0]
    found = inverted(message.double(), client.memory["fedrf.omega"].double())
    assert float(f.norm()) == pytest.approx(1.0, abs=1e-3)
    assert torch.allclose(found.float(), f, atol=1e-4)
    client.smallest_batch = 16
    with pytest.raises(FdamedError, match="fewer than 16"):
        answer(client, send_mean, 1, 0, call())


def test_a_run_with_too_few_images_stops_before_a_mean_leaves() -> None:
    server = federation()
    clients_of(server)["south"].smallest_batch = 16
    with pytest.raises(FdamedError, match="fewer than 16") as error:
        run(FedRfTca(**SMALL), server, hospitals.theta(), 3, hospitals.no_judge)
    assert "south" in error.value.where
    assert not server.ledger.total(kind="statistic") and not server.ledger.total(sender="north", kind="weights")


# --- who sends what ---------------------------------------------------------------------------------------------------

ALL = ("a", "b", "c")


def test_the_size_of_a_random_subset_is_uniform_from_nobody_to_everybody() -> None:
    sizes = [len(subset(stream(0, i), ALL)) for i in range(2000)]
    assert all(430 < sizes.count(k) < 570 for k in range(4))
    members = [p for i in range(2000) for p in subset(stream(0, i), ALL)]
    assert all(abs(members.count(p) / 1000 - 1) < 0.09 for p in ALL)


def test_settings_lose_the_messages_that_their_tables_lose() -> None:
    drawn = {
        s: [draw_senders(s, ALL, 1, stream(1, i)) for i in range(300)]
        for s in ("I", "II", "III", "msg-I", "msg-II", "msg-III")
    }
    assert all(r.means == r.w == r.c == ALL for r in drawn["I"])
    for s in ("II", "III", "msg-I"):
        assert all(r.means == r.w == r.c for r in drawn[s]) and {len(r.means) for r in drawn[s]} == {0, 1, 2, 3}
    assert all(r.means == r.w and set(r.c) <= set(r.w) for r in drawn["msg-II"])
    assert any(r.c != r.w for r in drawn["msg-II"])
    assert all(set(r.c) <= set(r.w) <= set(r.means) for r in drawn["msg-III"])
    assert any(len(r.c) < len(r.w) < len(r.means) for r in drawn["msg-III"])


def test_votes_take_messages_in_order_or_at_random_as_in_table_xv() -> None:
    drawn = {
        s: [draw_senders(s, ALL, i, stream(1, i)) for i in range(1, 200)]
        for s in ("IV", "V", "vote-B", "vote-C", "vote-D")
    }
    assert all(r.means == r.w == ALL for r in drawn["IV"])
    assert [r.means for r in drawn["vote-B"][:4]] == [("a",), ("b",), ("c",), ("a",)]
    assert all(r.means == r.w for r in drawn["vote-B"]) and all(r.means == r.w for r in drawn["vote-D"])
    assert [r.means for r in drawn["vote-C"]] == [r.means for r in drawn["vote-B"]]
    assert {r.w for r in drawn["vote-C"] if r.means == ("a",)} == {("a",), ("b",), ("c",)}
    assert {r.means for r in drawn["vote-D"]} == {("a",), ("b",), ("c",)}
    assert len({(r.means, r.w) for r in drawn["V"]}) == 9


def test_classifiers_are_averaged_every_t_c_batches() -> None:
    assert [r for r in range(1, 16) if classifiers_due("III", 0, 10, r)] == [5, 10, 15]
    assert [r for r in range(1, 101) if classifiers_due("msg-I", 0, 1, r)] == [50, 100]
    assert all(classifiers_due(s, 0, 10, r) for s in ("I", "II") for r in range(1, 9))
    assert [r for r in range(1, 8) if classifiers_due("I", 15, 10, r)] == [2, 3, 5, 6]


def test_most_votes_win_then_the_larger_log_probability_then_the_first_class() -> None:
    sure, faint = 5.0, 0.1
    logits = torch.tensor(
        [
            [[faint, 0, 0], [sure, 0, 0], [1, 0, 0]],
            [[faint, 0, 0], [0, faint, 0], [0, 1, 0]],
            [[0, 0, sure], [0, 0, faint], [0, 0, 1]],
        ]
    )
    scores = hard_vote(logits)
    assert scores.argmax(1).tolist() == [0, 0, 0]
    assert torch.allclose(scores.exp().sum(1), torch.ones(3))
    assert hard_vote(logits.flip(2)).argmax(1).tolist() == [2, 2, 0]  # the last is a tie in everything


# --- inside a hospital ------------------------------------------------------------------------------------------------


def test_a_source_sends_the_mean_of_its_random_features_and_the_target_its_negative() -> None:
    for name, sign in (("north", 1.0), ("target", -1.0)):
        client = begun(name, batch=64)
        sent = answer(client, send_mean, 1, 0, call()).x
        client.model.load(hospitals.theta())
        f = training_features(client, torch.from_numpy(client.data.images).unsqueeze(1) / 255.0)
        by_hand = fourier_features(f / (f.norm(dim=1, keepdim=True) + 1e-5), client.memory["fedrf.omega"]).mean(0)
        assert torch.allclose(sent, sign * by_hand, atol=1e-6)
        assert float(sent.norm()) < 1.0


def test_equal_batches_under_equal_extractors_are_no_distance_apart() -> None:
    target = begun("target")
    m_t = answer(target, send_mean, 1, 0, call()).x
    assert answer(target, train, 1, 0, lesson(-m_t[None])).distance == pytest.approx(0.0, abs=1e-12)
    target = begun("target")
    three = torch.stack([-m_t] * 3)  # the released code's sum of messages would not vanish
    assert answer(target, train, 1, 0, lesson(three)).distance == pytest.approx(0.0, abs=1e-12)
    target = begun("target")
    assert answer(target, train, 1, 0, lesson(m_t[None])).distance > 0.1


def test_the_gradient_of_both_losses_is_that_of_finite_differences_with_the_others_held_constant() -> None:
    rng = Stream(7).torch
    parts = Parts(N, M, WIDTH, 2).double()
    x, g = torch.randn(9, 5, generator=rng).double(), torch.randn(5, 4, generator=rng).double().requires_grad_()
    omega, others = frequencies(stream(0), N, 4, 1.0).double(), torch.randn(2, 2 * N, generator=rng).double() * 0.1
    labels = torch.arange(9) % 2
    for y in (labels, None):
        for normalize in (True, False):
            losses = Losses(
                SimpleNamespace(auxiliary_losses=lambda f, b: 0.0),
                SimpleNamespace(module=parts),
                omega,
                others,
                0.7,
                normalize,
            )
            batch = Batch(x, y, {}, Stream(0))
            assert torch.autograd.gradcheck(lambda g, a=losses, b=batch: a(x @ g, b), (g,))
    both, task = (Losses(losses.local, losses.parts, omega, others, 0.7, True, aligned=a) for a in (True, False))
    source = Batch(x, labels, {}, Stream(0))
    value = float(both(x @ g, source).detach())
    assert value == pytest.approx(float(task(x @ g, source).detach()) + 0.7 * both.distance)


def test_a_source_goes_through_its_images_and_continues_with_its_optimizer() -> None:
    """Two questions of one batch are one question of two."""
    others = torch.zeros(1, 2 * N)
    once, twice = begun("north"), begun("north")
    answer(once, train, 1, 0, lesson(others, steps=2))
    answer(twice, train, 1, 0, lesson(others))
    answer(twice, train, 2, 0, lesson(others))
    assert once.memory.keys() == twice.memory.keys()
    assert all(torch.equal(once.memory[k], twice.memory[k]) for k in once.memory)
    assert int(once.memory["fedrf.step"]) == 2


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_layers_before_the_first_that_learns_stay_as_they_are_with_their_statistics(decay) -> None:
    server = federation()
    for client in clients_of(server).values():
        client.recipe = client.recipe.model_copy(update={"weight_decay": decay})
    start = hospitals.theta()
    start[120:124] = 1.0  # hidden.bias: with the statistics of the start no unit of this network would be awake
    rounds(FedRfTca(**SMALL, trained_from="hidden"), server, 2, theta=start)
    for client in clients_of(server).values():
        for s in server.layout:
            same = torch.equal(client.memory["fedrf.g"][s.start : s.stop], start[s.start : s.stop])
            assert same == (not s.name.startswith("hidden")) or s.name.startswith("head"), (client.name, s.name)
        assert all(p.requires_grad for p in client.model.module.parameters())
    client.model.module.train()
    assert client.model.module.norm.training
    everything = federation()
    rounds(FedRfTca(**SMALL), everything, 1)
    assert not torch.equal(clients_of(everything)["north"].memory["fedrf.g"][:72], start[:72])


def test_a_layer_that_the_network_does_not_have_is_an_error() -> None:
    for name in ("layer4", "hid", "head"):
        with pytest.raises(FdamedError, match="has no layer"):
            rounds(FedRfTca(**SMALL, trained_from=name), federation(), 1)


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_omega_and_another_is_refused_before_anything_is_sent() -> None:
    first, second, third = begun("north"), begun("target"), hospitals.hospital("east")
    third.seed = 6
    other = answer(third, begin, 1, 0, Begin(x=hospitals.theta(), frequencies=N, sigma=1.0))
    assert torch.equal(first.memory["fedrf.omega"], second.memory["fedrf.omega"])
    assert other.omega != checksum(first.memory["fedrf.omega"])
    server = federation(east=6)
    with pytest.raises(FdamedError, match="east drew another Omega"):
        rounds(FedRfTca(**SMALL), server, 1)
    assert {line["step"] for line in server.ledger.lines()} == {"fedrf_tca.begin"}


def sent_and_received(server, round: int) -> dict[tuple[str, str], int]:
    """(step, up or down) -> bytes of arrays in a round."""
    out: dict[tuple[str, str], int] = {}
    for line in server.ledger.lines():
        if line["round"] == round and line["kind"] == "statistic":
            key = (line["step"].rpartition(".")[2], "down" if line["from"] == "server" else "up")
            out[key] = out.get(key, 0) + line["bytes"]
    return out


def test_bytes_of_a_round_are_those_of_the_formula() -> None:
    server = federation()
    rounds(FedRfTca(**SMALL), server, 2)
    for number in (1, 2):
        assert sent_and_received(server, number) == {
            ("send_mean", "up"): MEAN * (1 + K),
            ("train", "down"): MEAN * (K + K),
            ("train", "up"): W * (K + 1) + C * K,
            ("receive_average", "down"): (W + C) * (K + 1),
        }
    assert server.ledger.total(kind="weights") == 4 * server.layout.size * (K + 1)  # once, the common start
    assert server.ledger.total(kind="weights", sender="north") == server.ledger.total(kind="update") == 0


def test_bytes_of_a_random_subset_are_those_of_its_members() -> None:
    server, seen = federation(), set()
    method = FedRfTca(**SMALL, setting="II")
    state = method.start(hospitals.theta())
    for number in range(1, 13):
        server.begin(number, 99)
        state = method.round(state, server)
        k = int(server.notes["sources"])
        seen.add(k)
        expected = {("send_mean", "up"): MEAN * (1 + k), ("train", "down"): MEAN * (K + k)}
        expected |= {("train", "up"): (W * (k + 1) + C * k) if k else 0}
        expected |= {("receive_average", "down"): (W + C) * (k + 1)} if k else {}
        assert sent_and_received(server, number) == expected
    assert {0, 3} < seen


def test_bytes_do_not_depend_on_the_number_of_images_nor_on_the_batch() -> None:
    ledgers = []
    for times in (1, 2):
        server = federation()
        for client in clients_of(server).values():
            x = np.concatenate([client.data.images] * times)
            y = (
                {"y": np.concatenate([client.data.y] * times), "auxiliary": {}}
                if isinstance(client.data, Labeled)
                else {}
            )
            client.data = type(client.data)(x, **y)
            client.recipe = client.recipe.model_copy(update={"batch": 4 * times})
        rounds(FedRfTca(**SMALL), server, 2)
        ledgers.append(server.ledger.lines())
    assert ledgers[0] == ledgers[1]


def test_extractors_stay_at_home_and_come_apart() -> None:
    server = federation()
    deliver, left = server.transport.deliver, []

    def watched(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        left.extend(v.numel() for v in vars(reply).values() if isinstance(v, torch.Tensor))
        return reply

    server.transport = Altered(server.transport, watched)
    rounds(FedRfTca(**SMALL), server, 2)
    assert set(left) <= {2 * N, 2 * N * M, P_C, 0}
    extractors = [s.memory["fedrf.g"] for s in clients_of(server).values()]
    assert all(not torch.equal(a, b) for i, a in enumerate(extractors) for b in extractors[:i])


def test_without_a_weight_it_is_fedavg_of_aligner_and_classifier_with_private_extractors() -> None:
    server = federation()
    method = FedRfTca(**SMALL, weight=0.0)
    state = rounds(method, server, 2)
    clients = {n: begun(n) for n in ("north", "east", "south")}
    for number in (1, 2):
        none = torch.empty(0, 2 * N)
        replies = [answer(s, train, number, 0, lesson(none, aligned=0, steps=2)) for s in clients.values()]
        w, c = (torch.stack([getattr(r, part) for r in replies]).mean(0) for part in ("x", "c"))
        for s in clients.values():
            s.memory |= {"fedrf.w": w, "fedrf.c": c}
    assert torch.allclose(state.w, w, atol=1e-6) and torch.allclose(state.c, c, atol=1e-6)
    assert torch.equal(clients_of(server)["target"].memory["fedrf.w"], state.w)
    assert torch.equal(clients_of(server)["target"].memory["fedrf.g"], hospitals.theta())
    assert not any(line["step"].endswith("send_mean") for line in server.ledger.lines())


def chosen(monkeypatch, *members: str) -> None:
    """S_t is these sources."""
    import fdamed.methods.fedrf_tca.participation as senders

    monkeypatch.setattr(senders, "subset", lambda rng, of: tuple(m for m in members if m in of))


def test_only_members_and_the_target_are_given_the_average(monkeypatch) -> None:
    chosen(monkeypatch, "east")
    server = federation()
    state = rounds(FedRfTca(**SMALL, setting="II"), server, 1)
    memory = {n: s.memory for n, s in clients_of(server).items()}
    assert torch.equal(memory["east"]["fedrf.w"], state.w) and torch.equal(memory["target"]["fedrf.w"], state.w)
    assert torch.equal(memory["east"]["fedrf.c"], state.c) and torch.equal(memory["target"]["fedrf.c"], state.c)
    for name in ("north", "south"):
        alone = begun(name)
        own = answer(alone, train, 1, 0, lesson(torch.zeros(1, 2 * N), aligned=0, steps=2))
        assert torch.equal(memory[name]["fedrf.w"], own.x) and torch.equal(memory[name]["fedrf.c"], own.c)


def test_an_empty_subset_leaves_aligner_and_classifier_and_the_sources_learn_their_task(monkeypatch) -> None:
    chosen(monkeypatch)
    server = federation()
    state = rounds(FedRfTca(**SMALL, setting="II"), server, 1)
    assert not state.w.numel() and not state.c.numel()
    assert "fedrf.w" not in clients_of(server)["target"].memory
    assert torch.equal(clients_of(server)["target"].memory["fedrf.g"], hospitals.theta())
    alone = begun("north")
    answer(alone, train, 1, 0, lesson(torch.zeros(1, 2 * N), aligned=0, steps=2))
    assert torch.equal(clients_of(server)["north"].memory["fedrf.g"], alone.memory["fedrf.g"])


def lossy(server, lost):
    deliver = server.transport.deliver

    def unreliable(client, step, nth, msg):
        if lost(client, step.name.rpartition(".")[2]):
            raise DroppedOut(client, "lost")
        return deliver(client, step, nth, msg)

    server.transport = Altered(server.transport, unreliable)
    return server


def test_a_source_whose_mean_is_lost_is_not_a_member_but_still_learns() -> None:
    server = lossy(federation(), lambda client, step: client == "east" and step == "send_mean")
    rounds(FedRfTca(**SMALL), server, 1)
    alone = begun("east")
    answer(alone, train, 1, 0, lesson(torch.zeros(1, 2 * N), aligned=0, steps=2))
    assert torch.equal(clients_of(server)["east"].memory["fedrf.g"], alone.memory["fedrf.g"])


@pytest.mark.parametrize("lost", ["send_mean", "train"])
def test_without_the_target_the_sources_average_among_themselves_and_it_keeps_what_it_has(lost) -> None:
    server = lossy(federation(), lambda client, step: server.round == 2 and client == "target" and step == lost)
    method = FedRfTca(**SMALL)
    before = rounds(method, server, 1)
    sent = {}
    deliver = server.transport.deliver

    def watched(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        if step is train:
            sent[client] = reply.x.clone()
        return reply

    server.transport = Altered(server.transport, watched)
    server.begin(2, 9)
    after = method.round(before, server)
    assert after.w is before.w and after.c is before.c
    average = torch.stack([sent[n] for n in server.sources]).mean(0)
    assert torch.allclose(clients_of(server)["north"].memory["fedrf.w"], average, atol=1e-6)
    assert torch.equal(clients_of(server)["target"].memory["fedrf.w"], before.w)
    if lost == "send_mean":  # no mean to go to: the task alone
        assert not any(
            line["step"].endswith("send_mean") and line["round"] == 2 and line["from"] != "server"
            for line in server.ledger.lines()
        )


def test_a_run_whose_every_round_was_lost_ends_with_one_clear_error_and_not_with_a_shape() -> None:
    method, server = FedRfTca(), federation()
    with pytest.raises(FdamedError, match="nothing to predict with"):
        method.named(method.final(method.start(hospitals.theta())), server.layout)


def test_a_round_in_which_every_mean_is_lost_has_a_defined_result() -> None:
    server = lossy(federation(), lambda client, step: step == "send_mean")
    with pytest.raises(FdamedError, match="nothing to predict with"):
        run(FedRfTca(**SMALL), server, hospitals.theta(), 2, hospitals.no_judge)
    server = lossy(federation(), lambda client, step: step == "send_mean" and client != "target")
    theta, _ = run(FedRfTca(**SMALL), server, hospitals.theta(), 2, hospitals.no_judge)
    assert torch.isfinite(theta).all()


def test_a_hospital_that_comes_late_is_started_then() -> None:
    server = lossy(federation(), lambda client, step: server.round == 1 and client == "east")
    method = FedRfTca(**SMALL)
    state = rounds(method, server, 2)
    assert state.begun.tolist() == [1.0] * (K + 1)
    starts = [(x["round"], x["to"]) for x in server.ledger.lines() if x["kind"] == "weights"]
    assert starts == [(1, "east"), (1, "north"), (1, "south"), (1, "target"), (2, "east")]


def test_one_source_averages_with_the_target_alone() -> None:
    server = hospitals.in_process(("north", "target"), labels=False)
    sent = {}
    deliver = server.transport.deliver

    def watched(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        if step is train:
            sent[client] = reply.x.clone()
        return reply

    server.transport = Altered(server.transport, watched)
    state = rounds(FedRfTca(**SMALL), server, 1)
    assert torch.allclose(state.w, (sent["north"] + sent["target"]) / 2, atol=1e-7)


def test_with_norm_checks_an_aligner_that_dwarfs_the_others_is_rejected() -> None:
    server = federation()
    server.validator.settings = Validation(norms=Norms())
    deliver = server.transport.deliver

    def swollen(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        if client == "east" and step is train:
            reply.x.mul_(1e6)
        return reply

    server.transport = Altered(server.transport, swollen)
    state = rounds(FedRfTca(**SMALL), server, 1)
    assert {a["client"] for a in server.absences} == {"east"}
    assert float(state.w.norm()) < 100


@pytest.mark.parametrize("setting", ["IV", "V", "vote-B", "vote-C", "vote-D"])
def test_in_a_vote_every_classifier_travels_once_and_all_of_them_vote(setting) -> None:
    server = federation()
    method = FedRfTca(**SMALL, setting=setting)
    theta, _ = run(method, server, hospitals.theta(), 3, hospitals.no_judge)
    k = K if setting == "IV" else 1
    for number in (1, 2, 3):
        last = C * K if number == 3 else 0
        found = sent_and_received(server, number)
        assert found[("train", "up")] == W * (k + 1) + last
        assert found[("receive_average", "down")] == W * (k + 1) + last
    own = {n: clients_of(server)[n].memory["fedrf.c"] for n in server.sources}
    assert torch.equal(clients_of(server)["target"].memory["fedrf.c"], torch.stack(list(own.values())))
    assert method.named(theta, server.layout)["classifiers"].shape == (K, P_C)


def test_the_target_predicts_with_its_own_extractor_and_what_all_share() -> None:
    server = federation()
    method = FedRfTca(**SMALL)
    theta, _ = run(method, server, hospitals.theta(), 2, hospitals.no_judge)
    memory = clients_of(server)["target"].memory
    kept = {k: memory[k] for k in method.keeps}
    p = predict(FlatModel(method.predictor(hospitals.model().module, kept)), hospitals.images("target"))

    extractor = hospitals.model()
    extractor.load(memory["fedrf.g"])
    extractor.module.eval()
    x = torch.from_numpy(hospitals.images("target").images).unsqueeze(1) / 255.0
    f = extractor.module.features(x).detach()
    seen = fourier_features(f / (f.norm(dim=1, keepdim=True) + 1e-5), memory["fedrf.omega"])
    h = seen @ memory["fedrf.w"].view(M, 2 * N).t()
    h = h / (h.norm(dim=1, keepdim=True) + 1e-5)
    at, sizes = 0, [(WIDTH, M), (WIDTH, WIDTH), (2, WIDTH)]
    for number, (rows, columns) in enumerate(sizes):
        weight = memory["fedrf.c"][at : at + rows * columns].view(rows, columns)
        bias = memory["fedrf.c"][at + rows * columns : at + rows * columns + rows]
        at += rows * columns + rows
        h = h @ weight.t() + bias
        h = torch.relu(h) if number < 2 else h
    assert torch.allclose(torch.from_numpy(p), torch.softmax(h, 1), atol=1e-5)
    shared = method.named(theta, server.layout)
    assert torch.equal(shared["aligner"].flatten(), memory["fedrf.w"])
    assert torch.equal(shared["classifiers"][0], memory["fedrf.c"])
    assert method.predictor(hospitals.model().module, {k: v for k, v in kept.items() if k != "fedrf.c"}) is None


def test_a_target_that_never_gets_a_classifier_is_an_error_and_a_long_t_c_ends_with_an_average() -> None:
    server = lossy(federation(), lambda client, step: client == "target" and step == "send_mean")
    with pytest.raises(FdamedError, match="nothing to predict with"):
        run(FedRfTca(**SMALL), server, hospitals.theta(), 2, hospitals.no_judge)
    server = federation()
    run(FedRfTca(**SMALL, T_C=1000), server, hospitals.theta(), 3, hospitals.no_judge)
    assert [sent_and_received(server, r)[("train", "up")] - W * (K + 1) for r in (1, 2, 3)] == [0, 0, C * K]


def test_constant_images_and_one_class_have_a_defined_result() -> None:
    server = federation()
    for name in ("north", "target"):
        client = clients_of(server)[name]
        flat = np.full_like(client.data.images, 7)
        client.data = Labeled(flat, np.zeros(len(flat), np.int64), {}) if name == "north" else type(client.data)(flat)
    theta, _ = run(FedRfTca(**SMALL), server, hospitals.theta(), 2, hospitals.no_judge)
    assert torch.isfinite(theta).all()


def test_parameters_beyond_the_network_are_counted() -> None:
    own = 1000 * 100 + (101 * 100 + 101 * 100 + 101 * 2) - 129 * 2
    assert FedRfTca().extra_parameters(4, 128, 2) == 5 * own


# --- warm-up ---------------------------------------------------------------------------------------------------------


def test_after_a_warm_up_all_extractors_start_from_its_model() -> None:
    server = federation()
    average, _ = run(FedAvg(), server, hospitals.theta(), 2, hospitals.no_judge)
    starts = []
    deliver = server.transport.deliver

    def watched(client, step, nth, msg):
        starts.extend([msg.x] if step is begin else [])
        return deliver(client, step, nth, msg)

    server.transport = Altered(server.transport, watched)
    run(FedRfTca(**SMALL), server, average, 3, hospitals.no_judge, done=2)
    assert len(starts) == K + 1 and all(torch.equal(x, average) for x in starts)


def test_extractors_travel_in_a_warm_up_alone() -> None:
    server = federation()
    average, _ = run(FedAvg(), server, hospitals.theta(), 2, hospitals.no_judge)
    _, record = run(FedRfTca(**SMALL), server, average, 4, hospitals.no_judge, done=2)
    assert {line["round"] for line in record.ledger} == {3, 4}
    assert not [line for line in record.ledger if line["kind"] == "weights" and line["from"] != "server"]
    down = {(x["round"], x["to"], x["bytes"]) for x in record.ledger if x["kind"] == "weights"}
    assert down == {(3, name, 4 * server.layout.size) for name in hospitals.NAMES}  # once, when all begin


def test_no_weights_need_to_be_released() -> None:
    server = federation()
    for client in clients_of(server).values():
        client.release = frozenset({"statistic", "scalar", "count"})
    assert torch.isfinite(run(FedRfTca(**SMALL), server, hospitals.theta(), 2, hospitals.no_judge)[0]).all()


def test_a_mean_over_an_epoch_is_the_mean_over_its_batches() -> None:
    client = begun("north")  # 14 images, batches of 4: three whole ones
    whole = answer(client, send_mean, 1, 0, call(whole=1)).x
    each = []
    for number in range(3):
        client.memory["fedrf.step"] = torch.tensor([number])
        each.append(answer(client, send_mean, 1, 0, call()).x)
    assert torch.allclose(whole, torch.stack(each).mean(0), atol=1e-6)


def test_with_adam_the_target_follows_at_its_pace_with_aligner_and_extractor() -> None:
    moved = {}
    for pace in (0.0, 0.1, 1.0):
        client = begun("target")
        before = _first_aligner(client)
        answer(client, train, 1, 0, lesson(torch.full((1, 2 * N), 0.1), pace=pace))
        ways = (client.memory["fedrf.w"] - before, (client.memory["fedrf.g"] - hospitals.theta())[:100])
        moved[pace] = tuple(float(way.norm()) for way in ways)
    assert moved[0.0] == (0.0, 0.0)
    for part in (0, 1):
        assert moved[0.1][part] == pytest.approx(0.1 * moved[1.0][part], rel=1e-3)


def _first_aligner(client) -> torch.Tensor:
    """W as it begins everywhere."""
    return parts_of(client, M, WIDTH).read()[: 2 * N * M].clone()


# --- lost rounds ------------------------------------------------------------------------------------------------------


def test_an_error_means_that_the_target_has_no_whole_model() -> None:
    """Whatever is lost below the quorum: what the server forgot and the target has is no reason to stop."""
    method, ended = FedRfTca(**SMALL), {"error": 0, "whole": 0}
    for seed in range(40):
        faults = Faults.model_validate({"lost": {"every": {"down": 0.15, "up": 0.3}}})
        server = federation()
        memory = clients_of(server)["target"].memory
        try:
            run(method, unreliable_server(server, faults, seed, quorum=2), hospitals.theta(), 3, hospitals.no_judge)
        except FdamedError:
            assert not set(method.keeps) <= set(memory), seed
            ended["error"] += 1
        else:
            ended["whole"] += set(method.keeps) <= set(memory)
    assert ended["error"] and ended["whole"], ended


def test_an_average_whose_receipt_was_lost_counts_although_later_rounds_are_lost() -> None:
    server = federation()
    deliver = server.transport.deliver

    def forgetful(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        if (server.round > 1 and client != "target") or (client == "target" and step.name.endswith("receive_average")):
            raise DroppedOut(client, "answer lost")
        return reply

    server.transport = Altered(server.transport, forgetful)
    theta, _ = run(FedRfTca(**SMALL), server, hospitals.theta(), 3, hospitals.no_judge)
    memory = clients_of(server)["target"].memory
    assert torch.equal(theta[-P_C:], memory["fedrf.c"]) and set(FedRfTca.keeps) <= set(memory)


def test_a_classifier_that_never_arrived_is_sent_again_at_the_end() -> None:
    server = lossy(
        federation(), lambda client, step: server.round == 2 and client == "target" and step == "receive_average"
    )
    run(
        FedRfTca(**SMALL, T_C=4), server, hospitals.theta(), 3, hospitals.no_judge
    )  # due in round 2 of two batches each
    assert [sent_and_received(server, r)[("train", "up")] - W * (K + 1) for r in (1, 2, 3)] == [0, C * K, C * K]
    assert "fedrf.c" in clients_of(server)["target"].memory


# --- through the stages -----------------------------------------------------------------------------------------------


def study(folder: Path, **run: object) -> Config:
    """Three sets of vectors around two centers; each set is shifted a little."""
    rng = np.random.default_rng(3)
    for number, name in enumerate(("a", "b", "t")):
        y = np.arange(120) % 2
        x = rng.normal(size=(120, 6)) + 2.0 * y[:, None] - 1.0 + 0.2 * number
        np.savez(folder / f"{name}.npz", x=x[:80], y=y[:80], x_test=x[80:], y_test=y[80:])
    return Config.model_validate(
        {
            "study": "vectors",
            "results": str(folder / "results"),
            "data": {
                "layout": "benchmark",
                "domains": {n: {"kind": "npz", "root": str(folder / f"{n}.npz")} for n in ("a", "b", "t")},
            },
            "split": {"by": "domain", "domains": ["a", "b", "t"], "target": "t", "labeled": 8, "val": 0.2},
            "model": {"backbone": "mlp", "inputs": 6, "layers": [8, 6], "classes": 2},
            "train": {
                "rounds": 4,
                "device": "cpu",
                "source": {"lr": 0.01, "batch": 16},
                "target": {"lr": 0.001, "batch": 16},
            },
            "runs": {
                "fedavg": {},
                "ours": {"method": "fedrf_tca", "frequencies": 50, "components": 10, "width": 8, **run},
            },
            "seeds": [0],
        }
    )


@pytest.mark.parametrize("setting", ["I", "IV"])
def test_a_run_keeps_every_extractor_in_its_hospital_and_is_scored_at_the_target(setting, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    config = study(tmp_path, setting=setting)
    places, spec = Places.of(config), config.expanded_runs()["ours"]
    partition.write(config, places)
    init.write(config, 0, places.init(0))
    one = StudyRun.of(config, "ours", "t", 0)
    federate.federate(one, 1)
    method, folder = FedRfTca(**spec.options), places.run("ours", "t", 0)

    shared = load_file(folder / "theta.safetensors")
    assert {k: tuple(v.shape) for k, v in shared.items()} == {
        "aligner": (10, 100),
        "classifiers": (2 if setting == "IV" else 1, 178),
    }
    kept = {p: load_file(one.own_model(p)) for p in ("a", "b", "t")}
    assert all(set(k) == set(method.keeps) for k in kept.values())
    assert torch.equal(kept["t"]["fedrf.c"].flatten(), shared["classifiers"].flatten())
    secret = {p: k["fedrf.g"].numpy().tobytes()[:64] for p, k in kept.items()}
    for path in places.root.rglob("*"):
        inside = next((p for p in kept if places.client(p) in path.parents), None)
        if path.is_file():
            content = path.read_bytes()
            assert not any(bytes_ in content for p, bytes_ in secret.items() if p != inside), path

    judged = [line for line in one.rounds().read_text().splitlines() if "test/acc" in line]
    assert len(judged) == (1 if setting == "IV" else 4)  # before the classifiers come there is nothing to judge
    model = trained_model(one, "t", FlatModel(build(config.model)))
    data = divide_test_part(places)
    score(one, "t", FlatModel(model.module.network))
    scores = read_json(one.scores("t"))
    right = (predict(model, data).argmax(1) == data.y).mean()
    assert scores["acc"] == pytest.approx(right) and f'"test/acc": {scores["acc"]}' in judged[-1]


def test_a_public_study_has_no_smallest_batch_unless_it_sets_one(tmp_path: Path) -> None:
    public = study(tmp_path).model_copy(update={"privacy": Privacy(public=True)})
    chosen = study(tmp_path).model_copy(update={"privacy": Privacy(public=True, smallest_batch=17)})
    assert (public.smallest_batch, chosen.smallest_batch) == (1, 17)


def test_the_smallest_batch_of_the_configuration_is_the_hospitals_policy(tmp_path: Path) -> None:
    strict = study(tmp_path).model_copy(update={"privacy": Privacy(smallest_batch=17)})  # batches have 16
    places = Places.of(strict)
    partition.write(strict, places)
    init.write(strict, 0, places.init(0))
    with pytest.raises(FdamedError, match=r"fewer than 17 \(its privacy.smallest_batch\)"):
        federate.federate(StudyRun.of(strict, "ours", "t", 0), 1)
    assert not (places.run("ours", "t", 0) / "done").exists()


def divide_test_part(places: Places) -> Labeled:
    from fdamed.data.loader import load

    return load(places.client("t"), parts=("test",))


def test_a_method_with_one_model_is_judged_and_saved_as_before(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    config = study(tmp_path)
    places = Places.of(config)
    partition.write(config, places)
    init.write(config, 0, places.init(0))
    federate.federate(StudyRun.of(config, "fedavg", "t", 0), 1)
    found = load_file(places.run("fedavg", "t", 0) / "theta.safetensors")
    assert list(found) == list(load_file(places.init(0) / "theta.safetensors"))
    assert not (places.client("t") / "models").exists()
