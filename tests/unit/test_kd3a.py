"""KD3A as a whole: what a round does, its bytes, and what happens when something is missing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fdamed.config.privacy import NO_MINIMUM
from fdamed.config.study import Recipe
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled, Unlabeled
from fdamed.federation.absences import DroppedOut
from fdamed.federation.client import Client
from fdamed.federation.method import Model, describe
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess
from fdamed.methods.kd3a.client import SourceTask, Teachers, distill, receive_model, train_source
from fdamed.methods.kd3a.distillation import distil, mixed, outputs
from fdamed.methods.kd3a.method import KD3A, State
from fdamed.models.flat import FlatModel, head_of, norm_pairs, with_head
from fdamed.ops.aggregation import mean
from tests.support import federation as hospitals
from tests.support.federation import Altered, clients_of

BOTH = pytest.mark.parametrize("variant", ["official", "paper"])


def new_server(names: tuple[str, ...] = hospitals.NAMES) -> Server:
    server = hospitals.in_process(names, labels=False)
    server.begin(1, 4)
    return server


def model_of(name: str, spread: float = 0.3) -> Tensor:
    """A model near the common start, with BatchNorm statistics of its own."""
    flat = hospitals.model()
    x = flat.read()
    x[: flat.layout.trainable] += spread * torch.randn(flat.layout.trainable, generator=stream(2, name).torch)
    x[flat.layout.trainable :] += torch.rand(len(x) - flat.layout.trainable, generator=stream(3, name).torch)
    return x


def lesson(*teachers: Tensor, n: tuple[int, ...] = (10, 30), gate: float = 0.5, **changes) -> Teachers:
    """A block in which no parameter is learned (pace 0): all that moves are BatchNorm statistics."""
    common = {
        "teachers": torch.stack(teachers),
        "n": torch.tensor(n[: len(teachers)]),
        "old": torch.full((len(teachers) + 1,), -1.0, dtype=torch.float64),
        "gate": gate,
        "pace": 0.0,
        "paper": 0,
        "own_head": 0,
    }
    return Teachers(**common | changes)


def silent(*teachers: Tensor, **changes) -> Teachers:
    """A block in which nobody speaks and the student stays h, buffers and all: alpha = (0.23, 0.32, 0.45)."""
    old = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    return lesson(*teachers, gate=1.0, old=old, **changes)


def target(n: int | None = None, **recipe) -> Client:
    client = hospitals.hospital("target", labels=False)
    images = np.concatenate([hospitals.images(name).images for name in hospitals.NAMES])
    client = replace(client, recipe=client.recipe.model_copy(update=recipe))
    return replace(client, data=Unlabeled(images[:n])) if n else client


def blank(n: int) -> Client:
    """A target with n black images."""
    return replace(target(), data=Unlabeled(np.zeros((n, 8, 8), np.uint8)))


def taught(client: Client, ask: Teachers, h: Tensor):
    client.rng = stream(1, "learn")
    receive_model.run(client, Model(x=h))
    return distill.run(client, ask)


def rounds(server: Server, method: KD3A, count: int = 3, start: Tensor | None = None) -> list[State]:
    states = [method.start(hospitals.theta() if start is None else start)]
    for r in range(1, count + 1):
        server.begin(r, count)
        states.append(method.round(states[-1], server))
    return states


# --- one block -------------------------------------------------------------------------------------------------------


def test_the_model_is_the_average_of_teachers_and_student_by_domain_weight() -> None:
    a, b, h = model_of("a"), model_of("b"), model_of("h")
    reply = taught(target(), silent(a, b), h)
    assert reply.alpha.tolist() == pytest.approx([0.23, 0.32, 0.45])
    at = hospitals.model().layout.trainable  # behind it are statistics, to which the teachers' BatchNorms adapted
    torch.testing.assert_close(reply.x[:at], (0.23 * a + 0.32 * b + 0.45 * h)[:at])
    voted = taught(target(), lesson(a, b), h)
    assert voted.alpha.sum().item() == pytest.approx(1.0)
    assert voted.alpha[2].item() == pytest.approx(voted.passed / 3)


def test_the_papers_weights_follow_the_number_of_images() -> None:
    a, h = model_of("a"), model_of("h")
    reply = taught(target(), lesson(a, a.clone(), paper=1), h)
    assert reply.alpha.tolist() == pytest.approx([10 / 46, 30 / 46, 6 / 46])


def test_the_papers_average_keeps_the_variance_between_models() -> None:
    a, b, h = model_of("a"), model_of("b"), model_of("h")
    layout = hospitals.model().layout
    at = layout.trainable
    ((m, v),) = norm_pairs(layout)
    client = target()
    alpha = taught(client, lesson(a, b, paper=1), h).alpha
    student = client.model.read()  # trained last, and read by nobody since
    x = client.memory["kd3a.h"]
    mu, var = (torch.stack([y[at:][place] for y in (a, b, student)]).double() for place in (m, v))
    between = alpha @ (mu - alpha @ mu).square()
    torch.testing.assert_close(x[at:][m].double(), alpha @ mu, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(x[at:][v].double(), alpha @ var + between, rtol=1e-5, atol=0)


def test_with_local_heads_the_target_keeps_its_own() -> None:
    a, b, h = model_of("a"), model_of("b"), model_of("h")
    layout = hospitals.model().layout
    reply = taught(target(), lesson(a, b, own_head=1), h)
    assert torch.equal(head_of(reply.x, layout), head_of(h, layout))
    shared = taught(target(), lesson(a, b), h)
    assert torch.equal(with_head(reply.x, head_of(shared.x, layout), layout), shared.x)


def test_weights_are_smoothed_over_the_rounds() -> None:
    a, b, h = model_of("a"), model_of("b"), model_of("h")
    new = taught(target(), lesson(a, b), h).alpha
    old = torch.tensor([0.1, 0.6, 0.3], dtype=torch.float64)
    torch.testing.assert_close(taught(target(), lesson(a, b, old=old), h).alpha, 0.9 * old + 0.1 * new)
    plain = taught(target(), lesson(a, b, paper=1), h).alpha
    torch.testing.assert_close(taught(target(), lesson(a, b, old=old, paper=1), h).alpha, plain)


def test_the_target_remembers_the_average_it_made() -> None:
    client = target()
    reply = taught(client, lesson(model_of("a"), model_of("b")), model_of("h"))
    assert torch.equal(client.memory["kd3a.h"], reply.x)


def test_the_student_moves_towards_the_consensus() -> None:
    a = model_of("a", spread=0.0)
    layout = hospitals.model().layout
    a = with_head(a, torch.tensor([0.0] * 8 + [0.0, 9.0]), layout)  # a teacher that says class 1 to everything
    client = target(lr=0.05, epochs=20)
    reply = taught(client, lesson(a, pace=1.0, own_head=1), hospitals.theta())
    assert reply.steps == 40 and reply.skipped == 0
    student = with_head(reply.x, head_of(reply.x, layout), layout)
    client.model.load(student)
    client.model.module.eval()
    logits = client.model.module(torch.from_numpy(client.data.batch(np.arange(6))).unsqueeze(1) / 255)
    assert (logits[:, 1] > logits[:, 0]).all()


# --- teachers and student --------------------------------------------------------------------------------------------


def test_a_fixed_teacher_judges_each_image_by_itself_and_stays_as_it_came() -> None:
    client, a = target(20), model_of("a")
    q, buffers = outputs(client, [a], adapt=False)
    alone, _ = outputs(replace(client, data=Unlabeled(client.data.images[7:8])), [a], adapt=False)
    torch.testing.assert_close(q[0, 7], alone[0, 0])
    assert torch.equal(buffers[0], a[client.model.layout.trainable :])


def test_an_adapting_teacher_is_drawn_to_the_targets_statistics() -> None:
    client, a = target(40, batch=1000), model_of("a")
    images = torch.from_numpy(client.data.batch(np.arange(40)))
    at = client.model.layout.trainable
    q, buffers = outputs(client, [a] * 2, adapt=True)
    client.model.load(a)
    client.model.module.train()
    with torch.no_grad():
        expected = torch.softmax(client.model.module(images.unsqueeze(1) / 255), dim=1)
        batch = client.model.module.conv(images.unsqueeze(1) / 255)
    torch.testing.assert_close(q[0], expected)
    torch.testing.assert_close(buffers[0][:8], 0.9 * a[at:][:8] + 0.1 * batch.mean((0, 2, 3)))
    assert torch.equal(buffers[0], buffers[1])  # each begins with its own statistics


def test_the_adapted_statistics_enter_the_average() -> None:
    a, b, h = model_of("a"), model_of("b"), model_of("h")
    at = hospitals.model().layout.trainable
    client = target(20)
    reply = taught(client, lesson(a, b), h)
    _, buffers = outputs(client, [a, b], adapt=True)
    client.model.load(h)
    distil(client.with_recipe(lr=0.0), torch.full((20, 2), 0.5), torch.ones(20), mixup=True)
    student = client.model.read()
    expected = mean([*buffers, student[at:]], reply.alpha)
    torch.testing.assert_close(reply.x[at:], expected)
    assert not torch.allclose(reply.x[at:], mean([a[at:], b[at:], h[at:]], reply.alpha))


def test_the_loss_is_weighted_and_divided_by_the_whole_batch() -> None:
    client, logits = blank(4), torch.tensor([0.0, 1.0])
    client.model.load(with_head(client.model.read(), torch.cat([torch.zeros(8), logits]), client.model.layout))
    label = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.25, 0.75], [1.0, 0.0]])
    weight = torch.tensor([3.0, 1.0, 2.0, 0.0])
    log_q = torch.log_softmax(logits, dim=0)
    cross = -(label @ log_q)
    entropy = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    soft = distil(client.with_recipe(lr=1e-9, batch=4), label, weight, mixup=False)
    assert soft.loss == pytest.approx(float((weight * cross).sum() - 2.0 * entropy) / 4, rel=1e-5)
    hard = distil(client.with_recipe(lr=1e-9, batch=4), label[:1].expand(4, 2), weight, mixup=True)  # equal labels stay
    assert hard.loss == pytest.approx(float(weight.sum() * cross[0]) / 4, rel=1e-5)


def test_a_batch_without_weight_moves_nothing_not_even_by_weight_decay() -> None:
    client = blank(6).with_recipe(lr=0.1, batch=4, weight_decay=0.1)
    before = client.model.read()
    done = distil(client, torch.full((6, 2), 0.5), torch.zeros(6), mixup=True)
    assert (done.steps, done.skipped, done.loss) == (0, 2, 0.0)
    assert torch.equal(client.model.read(), before)


def test_mixing_keeps_labels_a_distribution_and_mixes_images_alike() -> None:
    x = torch.arange(5.0).view(5, 1, 1, 1)
    y = torch.eye(5)
    mixed_x, mixed_y = mixed(x, y, stream(4, "mix"))
    torch.testing.assert_close(mixed_y.sum(1), torch.ones(5))
    torch.testing.assert_close(mixed_x.view(5), mixed_y @ torch.arange(5.0))
    assert not torch.equal(mixed_y, y)


def test_lower_precision_is_honoured_and_finite() -> None:
    a, h = model_of("a"), model_of("h")
    full = taught(target(), lesson(a, pace=1.0), h)
    half = taught(replace(target(), precision="bfloat16"), lesson(a, pace=1.0), h)
    assert torch.isfinite(half.x).all() and not torch.equal(half.x, full.x)


def test_the_noise_of_the_targets_images_is_new_for_the_student_and_the_same_for_all_teachers() -> None:
    a, h = model_of("a"), model_of("h")
    client = target()
    q, _ = outputs(replace(client, data=Unlabeled(client.data.images, noise=0.5)), [a, a], adapt=False)
    clear, _ = outputs(client, [a], adapt=False)
    assert torch.equal(q[0], q[1]) and not torch.allclose(q[0], clear[0])
    plain = taught(target(), lesson(a, pace=1.0), h)
    noisy = taught(replace(client, data=Unlabeled(client.data.images, noise=0.5)), lesson(a, pace=1.0), h)
    assert torch.isfinite(noisy.x).all() and not torch.allclose(noisy.x, plain.x)


# --- the server's program --------------------------------------------------------------------------------------------


@BOTH
def test_a_round_costs_three_models_a_source_and_one_and_the_first_one_more(variant) -> None:
    server = new_server()
    rounds(server, KD3A(variant=variant), 3)
    k, m = 3, 4 * server.layout.size
    lines = server.ledger.lines()
    for r in (1, 2, 3):
        spent = [line for line in lines if line["round"] == r]
        models = sum(line["bytes"] for line in spent if line["kind"] in ("weights", "individual"))
        assert models == (3 * k + 1 + (r == 1)) * m
        others = sum(line["bytes"] for line in spent) - models
        assert others == 56 * k + 96 + 8 * (r == 1)
    assert server.ledger.total(kind="individual") == 3 * k * m
    assert server.ledger.total(kind="features") == server.ledger.total(kind="update") == 0


def test_models_of_single_hospitals_are_marked_and_go_to_the_target_alone() -> None:
    server = new_server()
    rounds(server, KD3A(), 1)
    marked = [line for line in server.ledger.lines() if line["kind"] == "individual"]
    assert [(line["from"], line["to"], line["step"]) for line in marked] == [("server", "target", "kd3a.distill")]
    wire = {entry["step"]: entry for entry in describe()["kd3a"]["wire"]}
    assert wire["kd3a.distill"]["to_hospital"]["teachers"] == "individual"
    assert not any("individual" in entry["from_hospital"].values() for entry in wire.values())


def test_the_target_has_no_labels_to_peek_at() -> None:
    assert KD3A.target_labels is False
    server = new_server()
    assert not hasattr(clients_of(server)["target"].data, "y")
    rounds(server, KD3A(), 1)


def test_gate_and_learning_rate_follow_their_schedules() -> None:
    server = new_server()
    seen: dict[str, list[float]] = {"gate": [], "pace": [], "source": []}
    deliver = server.transport.deliver

    def watched(client, step, nth, msg):
        if isinstance(msg, Teachers):
            seen["gate"].append(msg.gate)
            seen["pace"].append(msg.pace)
        if isinstance(msg, SourceTask) and client == "east":
            seen["source"].append(msg.pace)
        return deliver(client, step, nth, msg)

    server.transport = Altered(server.transport, watched)
    rounds(server, KD3A(gate_begin=0.8, gate_end=1.0, lr_end=0.5), 4)
    assert seen["gate"] == pytest.approx([0.8, 0.85, 0.9, 0.95])
    assert seen["pace"] == seen["source"] == pytest.approx([1.0, 0.75 + 0.25 * 0.5**0.5, 0.75, 0.75 - 0.25 * 0.5**0.5])


def test_a_source_trains_at_the_given_pace() -> None:
    client = hospitals.hospital("north")
    client.rng = stream(1)
    x = hospitals.theta()
    full, slow = (train_source.run(client, SourceTask(x=x, pace=p, own_head=0)).x - x for p in (1.0, 1e-3))
    at = client.model.layout.trainable
    assert 0 < slow[:at].norm() < 0.01 * full[:at].norm()
    assert client.recipe.lr == 0.02


def test_local_heads_stay_and_the_targets_head_is_never_sent_to_a_source() -> None:
    server = new_server()
    sent, deliver = [], server.transport.deliver
    kept: dict[int, Tensor] = {}

    def watched(client, step, nth, msg):
        if isinstance(msg, SourceTask):
            sent.append(head_of(msg.x, server.layout))
        reply = deliver(client, step, nth, msg)
        if client == "east":
            kept[server.round] = head_of(reply.x, server.layout)
        return reply

    server.transport = Altered(server.transport, watched)
    rounds(server, KD3A(lr_end=1.0), 1)
    first = kept[1]
    assert all(not head.any() for head in sent)
    assert torch.equal(clients_of(server)["east"].memory["kd3a.head"], first)
    slow = train_source.run(
        clients_of(server)["east"], SourceTask(x=torch.rand(server.layout.size), pace=1e-9, own_head=1)
    )
    torch.testing.assert_close(head_of(slow.x, server.layout), first)
    heads = {name: clients_of(server)[name].memory["kd3a.head"] for name in ("east", "north")}
    assert not torch.allclose(heads["east"], heads["north"])


def test_averaged_heads_travel_down() -> None:
    server = new_server()
    sent, deliver = [], server.transport.deliver

    def watched(client, step, nth, msg):
        if isinstance(msg, SourceTask):
            sent.append(msg.x)
        return deliver(client, step, nth, msg)

    server.transport = Altered(server.transport, watched)
    states = rounds(server, KD3A(variant="paper"), 2)
    assert torch.equal(sent[-1], states[1].x)


def test_the_variants_and_the_heads_differ() -> None:
    start = model_of("start", spread=1.0)  # a model that is sure of itself
    choices = ({}, {"heads": "average"}, {"variant": "paper"})
    found = [rounds(new_server(), KD3A(gate_begin=0.95, **c), 2, start)[-1].x for c in choices]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(found, 2))
    paper = KD3A(gate_begin=0.95, variant="paper", heads="average")
    assert torch.equal(rounds(new_server(), paper, 2, start)[-1].x, found[2])


def test_the_weights_of_a_round_are_noted() -> None:
    server = new_server()
    state = rounds(server, KD3A(gate_begin=0.5), 1)[-1]
    noted = [server.notes[f"weight/{p}"] for p in (*server.sources, server.target)]
    assert noted == pytest.approx(state.alpha.tolist())
    assert sum(noted) == pytest.approx(1.0)
    assert server.notes["gate"] == 0.5 and 0 < server.notes["gate/passed"] <= 1


# --- where something is missing --------------------------------------------------------------------------------------


def test_where_no_image_passes_the_gate_the_sources_are_averaged_equally_and_that_is_noted() -> None:
    server = new_server()
    states = rounds(server, KD3A(gate_begin=1.0, gate_end=1.0), 2)
    assert states[-1].alpha.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])
    assert (server.notes["gate/passed"], server.notes["distil/loss"], server.notes["distil/skipped"]) == (
        0.0,
        None,
        2.0,
    )
    assert torch.isfinite(states[-1].x).all()


def test_one_source_shares_with_the_target_by_what_passes_the_gate() -> None:
    server = new_server(("north", "target"))
    state = rounds(server, KD3A(gate_begin=0.5), 1)[-1]
    passed = server.notes["gate/passed"]
    assert state.alpha.tolist() == pytest.approx([1 - passed / 2, passed / 2])


def without(server: Server, lost: str, in_round: int) -> Server:
    deliver = server.transport.deliver

    def unreliable(client, step, nth, msg):
        if client == lost and server.round == in_round:
            raise DroppedOut(client, "gone for a round")
        return deliver(client, step, nth, msg)

    server.transport = Altered(server.transport, unreliable)
    return server


def test_a_source_that_drops_out_keeps_its_weight_and_the_others_share_the_rest() -> None:
    server = without(new_server(), "east", 2)
    _, one, two = rounds(server, KD3A(gate_begin=0.5, gate_end=0.5), 2)
    assert server.sources[0] == "east"
    assert server.notes["weight/east"] is None and server.notes["sources"] == 2.0
    assert two.alpha[0] == one.alpha[0]
    used = torch.tensor([server.notes[f"weight/{p}"] for p in (*server.sources[1:], "target")], dtype=torch.float64)
    assert used.sum().item() == pytest.approx(1.0)
    torch.testing.assert_close(two.alpha[1:], used * (1 - one.alpha[0]))


def test_a_source_that_misses_the_first_round_starts_with_its_own_weight() -> None:
    server = without(new_server(), "east", 1)
    _, one, two = rounds(server, KD3A(gate_begin=1.0, gate_end=1.0), 2)
    assert one.alpha.tolist() == pytest.approx([-1.0, 0.5, 0.5, 0.0])
    mixed_weights = [1 / 3, 0.9 * 0.5 + 0.1 / 3, 0.9 * 0.5 + 0.1 / 3, 0.0]
    assert two.alpha.tolist() == pytest.approx([w / sum(mixed_weights) for w in mixed_weights])


def test_without_any_source_the_model_stays() -> None:
    server = new_server()
    deliver = server.transport.deliver

    def deserted(client, step, nth, msg):
        if client != "target":
            raise DroppedOut(client, "gone")
        return deliver(client, step, nth, msg)

    server.transport = Altered(server.transport, deserted)
    states = rounds(server, KD3A(), 1)
    assert states[1] is states[0] and server.notes["sources"] == 0.0


def test_a_target_whose_answer_was_lost_is_given_the_model_again() -> None:
    server = new_server()
    method = KD3A(gate_begin=0.5)
    one = rounds(server, method, 1)[-1]
    deliver = server.transport.deliver

    def loses(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        if step is distill:
            raise DroppedOut(client, "lost on the way")
        return reply

    server.transport = Altered(server.transport, loses)
    server.begin(2, 3)
    with pytest.raises(DroppedOut):
        method.round(one, server)
    assert not torch.equal(clients_of(server)["target"].memory["kd3a.h"], one.x)
    server.transport = Altered(server.transport, deliver)
    server.begin(3, 3)
    method.round(one, server)
    again = [line["round"] for line in server.ledger.lines() if line["step"] == "kd3a.receive_model"]
    assert sorted(set(again)) == [1, 3]


@BOTH
def test_a_class_that_a_source_never_saw_leaves_everything_finite(variant) -> None:
    server = new_server()
    east = clients_of(server)["east"]
    data = east.data
    east.data = Labeled(data.images, np.zeros_like(data.y), data.auxiliary)
    states = rounds(server, KD3A(variant=variant, gate_begin=0.5), 3)
    assert torch.isfinite(states[-1].x).all()
    assert states[-1].alpha.sum().item() == pytest.approx(1.0)


@BOTH
@pytest.mark.parametrize("n", [1, 5])
def test_a_batch_of_one_image_is_no_obstacle(variant, n) -> None:
    server = new_server()
    clients_of(server)["target"].data = target(n).data
    states = rounds(server, KD3A(variant=variant, gate_begin=0.5, gate_end=0.5), 2)
    assert torch.isfinite(states[-1].x).all()
    assert server.notes["gate/passed"] == 1.0 and server.notes["distil/loss"] is not None


def test_a_target_without_images_is_an_error() -> None:
    client = target()
    client.data = Unlabeled(client.data.images[:0])
    with pytest.raises(FdamedError, match="no image to vote on"):
        taught(client, lesson(model_of("a")), hospitals.theta())


def test_a_loss_that_is_not_finite_is_an_error_with_a_remedy() -> None:
    broken = hospitals.theta()
    broken[0] = float("inf")
    with pytest.raises(FdamedError, match="not finite"):
        taught(target(), lesson(model_of("a"), pace=1.0), broken)


# --- the malicious source --------------------------------------------------------------------------------------------


def with_noise(resident: FlatModel) -> tuple[dict[str, Client], np.ndarray]:
    """Two hospitals that see what the target sees, and one whose images and labels mean nothing."""
    clients = {}
    for i, name in enumerate(("east", "noise", "north", "target")):
        n = 60 if name == "target" else 120
        rng, y = stream(11, name).numpy, np.arange(n) % 2
        x = rng.integers(0, 60, (n, 8, 8)) + 10 * i
        x[:, 2:6, 2:6] += 90 * y[:, None, None]
        if name == "noise":
            x = rng.integers(0, 256, (n, 8, 8))
        data = Labeled(x.astype(np.uint8), y.astype(np.int64), {})
        clients[name] = Client(
            name=name,
            role="target" if name == "target" else "source",
            data=data.without_labels() if name == "target" else data,
            model=resident,
            recipe=Recipe(lr=0.02, batch=20, epochs=2),
            seed=0,
            release=hospitals.RELEASE,
            minimum=NO_MINIMUM,
        )
    return clients, y


def test_a_source_of_noise_gets_the_lowest_weight_and_does_no_harm() -> None:
    clients, y = with_noise(hospitals.model())
    images = torch.from_numpy(clients["target"].data.images)
    theta, record = run(KD3A(), Server(InProcess(clients), "target", "kd3a"), hospitals.theta(), 12, hospitals.no_judge)
    for line in record.metrics:
        assert line["weight/noise"] < 0.1 * min(line["weight/east"], line["weight/north"])
    model = hospitals.model()
    model.load(theta)
    model.module.eval()
    assert (model.module(images.unsqueeze(1) / 255).argmax(1).numpy() == y).mean() > 0.9
