"""SCAFFOLD against its paper: no drift, variates that are mean gradients, and c = mean of the c_k whoever drops out."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fdamed.config.study import Recipe
from fdamed.config.train import Faults, Norms, Validation
from fdamed.core.errors import FdamedError
from fdamed.data.loader import Labeled
from fdamed.federation.client import Client, answer
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.methods import scaffold
from fdamed.methods._shared.full_gradient import epoch_gradient
from fdamed.methods.fedavg import FedAvg
from fdamed.methods.scaffold import NEVER, SENT, SENT_IN, TAKEN, VARIATE, Ask, Scaffold, State, train_corrected
from fdamed.training.input import as_input
from tests.support import federation as hospitals
from tests.support import quadratics
from tests.support.federation import Altered, clients_of, unreliable_server

SGD = Recipe(lr=0.05, batch=4, optimizer="sgd")
SOURCES = ("east", "north", "south")


def sgd(names: tuple[str, ...] = hospitals.NAMES, recipe: Recipe = SGD, **options: bool) -> Server:
    server = hospitals.in_process(names, **options)
    for client in clients_of(server).values():
        client.recipe = recipe
    return server


def states(method: Scaffold, server: Server, theta: Tensor, rounds: int):
    """Each state, and the network as it is after its round."""
    state = method.start(theta)
    for number in range(1, rounds + 1):
        server.begin(number, rounds)
        state = method.round(state, server)
        yield state


def variate(server: Server, state: State, client: str) -> Tensor:
    """c_k as the hospital will have it once it hears what the server has taken."""
    memory, taken = clients_of(server)[client].memory, int(state.taken[server.sources.index(client)])
    c_k = memory.get(scaffold.VARIATE, torch.zeros(server.layout.trainable, dtype=torch.float64))
    sent_in = int(memory[scaffold.SENT_IN]) if scaffold.SENT_IN in memory else 0
    return c_k + memory[scaffold.SENT] if taken and sent_in == taken else c_k


def gap(server: Server, state: State) -> float:
    """|sum of c - sum of c_k| over the sources whose answers were used."""
    return float((state.c - torch.stack([variate(server, state, k) for k in server.sources]).sum(0)).norm())


@pytest.mark.parametrize(("option", "share", "rate"), [("I", 1, 1), ("I", 0.5, 0.5), ("II", 1, 1), ("II", 0.5, 1)])
def test_two_parabolas_end_at_their_common_minimum_with_all_and_with_half_of_the_sources(option, share, rate) -> None:
    server = quadratics.in_process()
    server.invite(share, 1)
    for state in states(Scaffold(variate=option, server_lr=rate), server, torch.full((1,), 0.5), 300):
        assert gap(server, state) < 1e-10
    assert float(state.x) == pytest.approx(10 / 11, abs=1e-6) == pytest.approx(0.9090909, abs=1e-6)


def test_fedavg_ends_elsewhere_on_the_same_parabolas() -> None:
    theta, _ = run(FedAvg(), quadratics.in_process(), torch.full((1,), 0.5), 300, hospitals.no_judge)
    assert float(theta) == pytest.approx(0.8299226618, abs=1e-6)


@pytest.mark.parametrize("option", ["I", "II"])
def test_the_first_round_is_fedavgs_bit_for_bit(option) -> None:
    first = next(states(Scaffold(variate=option, weighting="samples"), sgd(), hospitals.theta(), 1))
    plain, _ = run(FedAvg(), sgd(), hospitals.theta(), 1, hospitals.no_judge)
    assert torch.equal(first.x, plain)


@pytest.mark.parametrize("auxiliary", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_variate_of_option_two_is_the_mean_of_the_raw_gradients_of_the_round(decay, auxiliary, monkeypatch) -> None:
    server = sgd(recipe=SGD.model_copy(update={"weight_decay": decay}), auxiliary=auxiliary)
    used: list[Tensor] = []
    plain = scaffold.train_from

    def watched(client: Client, x: Tensor, correct):
        used.clear()

        def look(grad: Tensor) -> None:
            used.append(grad.add(client.model.trainable, alpha=decay).double())
            correct(grad)

        return plain(client, x, correct=look)

    monkeypatch.setattr(scaffold, "train_from", watched)
    for state in states(Scaffold(), server, hospitals.theta(), 3):
        mean = torch.stack(used).mean(0)  # of south, which is asked last
        assert torch.allclose(variate(server, state, "south"), mean, atol=2e-6)
        assert float(mean.norm()) > 1e-2


def test_a_variate_of_option_one_is_the_gradient_of_the_whole_loss_where_the_round_began() -> None:
    client = hospitals.hospital("north")
    client.recipe = Recipe(lr=0.05, batch=16, optimizer="sgd", weight_decay=0.1)
    x = hospitals.theta()
    g = epoch_gradient(client, x)
    assert torch.equal(client.model.trainable, x[: len(g)])
    other = hospitals.model()
    other.load(x)
    other.module.train()
    data = client.data
    F.cross_entropy(other.module(as_input(torch.from_numpy(data.images))), torch.from_numpy(data.y)).backward()
    assert torch.allclose(g, other.grad + 0.1 * other.trainable, atol=1e-6)


def test_batches_of_different_sizes_weigh_by_their_images_in_option_one() -> None:
    client = clients_of(quadratics.in_process())["two"]
    rows = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0], [5.0, 0.0]], np.float32)
    client.data = Labeled(rows, np.zeros(5, np.int64), {})
    client.recipe = Recipe(lr=0.1, batch=3, optimizer="sgd")
    assert float(epoch_gradient(client, torch.tensor([2.0]))) == pytest.approx(3.0 * 2.0, rel=1e-5)


def test_the_server_divides_by_all_sources_not_by_those_that_took_part() -> None:
    server = sgd()
    server.invite(0.4, 3)
    state = next(states(Scaffold(), server, hospitals.theta(), 1))
    (client,) = server.participants
    sent = clients_of(server)[client].memory[scaffold.SENT]
    assert float(sent.norm()) > 0.0
    assert torch.allclose(state.c, sent.double(), rtol=1e-12)
    assert state.taken.tolist() == [int(k == client) for k in SOURCES]


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_source_that_drops_out_has_not_changed_its_variate(way) -> None:
    server = sgd()
    before = list(states(Scaffold(), server, hospitals.theta(), 2))[-1]
    was = variate(server, before, "north")
    faults = Faults.model_validate({"lost": {"every": {way: 1.0}}, "spare": ["east", "south"]})
    lossy = unreliable_server(server, faults, 0)
    lossy.begin(3, 4)
    during = Scaffold().round(before, lossy)
    assert [(a["client"], a["why"]) for a in lossy.absences] == [("north", f"message lost: weights {way}")]
    assert during.taken.tolist() == [3, 2, 3]
    # Where the answer was lost the hospital has trained, and cannot know that nobody heard.
    assert int(clients_of(server)["north"].memory[scaffold.SENT_IN]) == (3 if way == "up" else 2)
    assert torch.equal(variate(server, during, "north"), was) and gap(server, during) < 1e-10
    server.transport = server.transport.inner  # the faults are over
    server.begin(4, 4)
    after = Scaffold().round(during, server)
    assert after.taken.tolist() == [4, 4, 4]
    assert torch.equal(clients_of(server)["north"].memory[scaffold.VARIATE], was)
    assert torch.equal(variate(server, after, "north"), was + clients_of(server)["north"].memory[scaffold.SENT])
    assert gap(server, after) < 1e-10


HARSH = {"absent": 0.2, "lost": {"every": {"down": 0.2, "up": 0.3}}, "spare": ["target"]}


@pytest.mark.parametrize("quorum", [0, 2])
@pytest.mark.parametrize("option", ["I", "II"])
def test_c_is_the_mean_of_the_variates_on_a_harsh_network_with_a_share_of_the_sources(option, quorum) -> None:
    server = sgd()
    lossy = unreliable_server(server, Faults.model_validate(HARSH), 7, quorum)
    lossy.invite(0.7, 2)
    seen: list[State] = []

    class Watched(Scaffold):
        def round(self, state, server):
            new = super().round(state, server)
            seen.append(new)
            return new

    def judge(theta: Tensor) -> dict:
        if seen:  # also after a round that was lost when some had already answered
            assert torch.equal(seen[-1].x, theta)
            assert gap(server, seen[-1]) < 1e-10
        return {}

    theta, record = run(Watched(variate=option), lossy, hospitals.theta(), 40, judge)
    assert torch.isfinite(theta).all() and len(seen) > 5
    whys = {a["why"].partition(":")[0] for a in record.absences}
    assert whys == {"absent by schedule", "message lost"}
    assert bool([m for m in record.metrics if m.get("lost")]) == (quorum == 2)


def test_a_rejected_answer_is_in_no_variate() -> None:
    for part in ("x", "dc"):
        server = sgd()
        server.validator.settings = Validation(norms=Norms())
        deliver = server.transport.deliver

        def huge(client, step, nth, msg, deliver=deliver, part=part, server=server):
            reply = deliver(client, step, nth, msg)
            if client == "north" and server.round == 2:
                return dataclasses.replace(reply, **{part: getattr(reply, part) * 1e12})
            return reply

        server.transport = Altered(server.transport, huge)
        all_states = list(states(Scaffold(), server, hospitals.theta(), 4))
        assert [(a["round"], a["client"]) for a in server.absences] == [(2, "north")]
        assert server.absences[0]["reason"] == "norm"
        assert [s.taken.tolist()[1] for s in all_states] == [1, 1, 3, 4]
        assert gap(server, all_states[-1]) < 1e-10
        assert torch.isfinite(all_states[-1].x).all()


def test_a_source_without_images_is_passed_over() -> None:
    server = sgd()
    client = clients_of(server)["north"]
    client.data = Labeled(client.data.images[:0], client.data.y[:0], {"sex": client.data.y[:0]})
    both = list(states(Scaffold(), server, hospitals.theta(), 2))
    assert both[-1].taken.tolist() == [2, NEVER, 2]
    assert gap(server, both[-1]) < 1e-10
    without = list(states(Scaffold(), sgd(("east", "south", "target")), hospitals.theta(), 2))
    assert all(torch.equal(a.x, b.x) and torch.equal(a.c, b.c) for a, b in zip(both, without, strict=True))


def test_a_source_that_is_let_in_late_is_one_of_k_from_then_on() -> None:
    server = sgd()
    client = clients_of(server)["north"]
    whole, client.data = client.data, Labeled(client.data.images[:0], client.data.y[:0], {"sex": client.data.y[:0]})
    for round, state in enumerate(states(Scaffold(), server, hospitals.theta(), 3), 1):
        assert gap(server, state) < 1e-10
        if round == 1:
            client.data = whole
    assert state.taken.tolist() == [3, 3, 3]


def test_the_servers_rate_holds_for_parameters_and_leaves_buffers_averaged() -> None:
    once, twice = (next(states(Scaffold(server_lr=r), sgd(), hospitals.theta(), 1)) for r in (1.0, 2.0))
    cut, x = sgd().layout.trainable, hospitals.theta()
    assert torch.allclose(twice.x[:cut] - x[:cut], 2 * (once.x - x)[:cut], atol=1e-6)
    assert torch.equal(twice.x[cut:], once.x[cut:])
    assert torch.equal(twice.c, once.c)


def test_a_hospital_that_has_lost_its_memory_says_so_and_is_missing() -> None:
    server = sgd()
    rounds = states(Scaffold(), server, hospitals.theta(), 2)
    next(rounds)
    clients_of(server)["south"].memory = {}
    assert next(rounds).taken.tolist() == [2, 2, 1]
    (missing,) = server.absences
    assert (missing["client"], missing["reason"]) == ("south", "failed") and "variate of round 1" in missing["why"]


def test_the_same_question_twice_is_settled_once() -> None:
    client = hospitals.hospital("north")
    client.recipe = SGD
    zeros = torch.zeros(client.model.layout.trainable)
    ask = Ask(x=hospitals.theta(), c=zeros, option=2, round=1, taken=0)
    sent = answer(client, train_corrected, 1, 0, ask).dc
    for round, taken in itertools.pairwise((1, 2, 3)):
        later = dataclasses.replace(ask, round=taken, taken=1)
        answer(client, train_corrected, taken, 0, later)
        assert torch.equal(client.memory[scaffold.VARIATE], sent.double()), round


def test_a_training_that_fails_leaves_the_variate_as_it_was() -> None:
    client = hospitals.hospital("north")
    p = client.model.layout.trainable
    client.recipe = client.recipe.model_copy(update={"optimizer": "sgd", "lr": 1e30})
    client.memory = {VARIATE: torch.ones(p, dtype=torch.float64), TAKEN: torch.tensor([1])}
    client.memory |= {SENT: torch.ones(p), SENT_IN: torch.tensor([2])}
    ask = Ask(x=hospitals.theta(), c=torch.zeros(p), option=2, round=3, taken=2)
    with pytest.raises(FdamedError, match="not finite"):
        answer(client, train_corrected, 3, 0, ask)
    assert torch.equal(client.memory[VARIATE], torch.ones(p, dtype=torch.float64)) and int(client.memory[TAKEN]) == 1
    assert torch.equal(client.memory[SENT], torch.ones(p))  # to be added when it is asked again
