"""What an unsound update can do to any rule: nothing but be left out, or be weighed; the model stays finite."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import torch

import fdamed.methods  # noqa: F401
from fdamed.config.study import Recipe
from fdamed.config.validation import Guard
from fdamed.data.loader import Labeled
from fdamed.federation.method import REGISTRY, Model
from fdamed.federation.server import InProcess
from fdamed.federation.validation.answers import sound_parts
from fdamed.federation.validation.checks import Travel, distances, judged
from fdamed.methods._shared.local_training import train_locally
from fdamed.methods.fedda import FedDA
from fdamed.methods.gp import GP
from fdamed.ops.aggregation import BLOCK
from tests.support import federation as hospitals
from tests.unit.test_methods_by_hand import MOVES, REACH, SAMPLES, Scripted, X

RULES = [
    "fedavg",
    "fedda",
    "fedda_auto",
    "fedgp",
    "fedgp_auto",
    "fedprox",
    "fedsr",
    "finetune",
    "finetune_offline",
    "gp",
    "kd3a",
    "target_only",
]
OPTIONS = {"target_only": {"warmup": 1}, "kd3a": {"heads": "average"}}
"""What makes a rule ask the sources, and start from what it is sent."""
OFFENCES = {
    "nan": lambda g: g.fill_(float("nan")),
    "one infinite entry": lambda g: g.index_fill_(0, torch.tensor([3]), float("inf")),
    "all zero": lambda g: g.zero_(),
    "huge": lambda g: g.mul_(1e12),
    "sign-flipped": lambda g: g.neg_(),
}


def offending(offence: str, names: tuple[str, ...] = hospitals.NAMES) -> InProcess:
    """Hospitals of which north sends an update with this fault; where models travel, the fault is in the change."""
    server = hospitals.in_process(names)
    deliver = server._deliver
    cut = server.layout.trainable  # buffers are sound: what is tried is the rule, not BatchNorm

    def faulty(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        if client == "north":
            if hasattr(reply, "g"):
                OFFENCES[offence](reply.g[:cut])
            elif hasattr(reply, "x"):
                change = reply.x[:cut] - msg.x[:cut]
                OFFENCES[offence](change)
                reply.x[:cut] = msg.x[:cut] + change
        return reply

    server._deliver = faulty
    return server


def two_rounds(rule: str, server: InProcess) -> torch.Tensor:
    method = REGISTRY[rule](**OPTIONS.get(rule, {}))
    state = method.start(hospitals.theta())
    for r in (1, 2):
        server.begin(r, 2)
        state = method.round(state, server)
    return method.final(state)


def variances(server: InProcess, theta: torch.Tensor) -> torch.Tensor:
    segment = next(s for s in server.layout if s.name == "norm.running_var")
    return theta[segment.start : segment.stop]


@pytest.mark.parametrize("names", [hospitals.NAMES, ("north", "target")], ids=["three sources", "one source"])
@pytest.mark.parametrize("offence", OFFENCES)
@pytest.mark.parametrize("rule", RULES)
def test_an_unsound_update_leaves_a_finite_model(rule: str, offence: str, names: tuple[str, ...]) -> None:
    server = offending(offence, names)
    theta = two_rounds(rule, server)
    assert torch.isfinite(theta).all()
    assert (variances(server, theta) > 0).all()


WHY = {
    "nan": "not finite",
    "one infinite entry": "not finite",
    "huge": "times as long as",
}


@pytest.mark.parametrize("names", [hospitals.NAMES, ("north", "target")], ids=["three sources", "one source"])
@pytest.mark.parametrize("offence", WHY)
@pytest.mark.parametrize("rule", RULES)
def test_the_offender_is_named_and_the_result_is_the_others(rule: str, offence: str, names: tuple, capsys) -> None:
    server = offending(offence, names)
    theta = two_rounds(rule, server)
    without = two_rounds(rule, hospitals.in_process(tuple(n for n in names if n != "north")))
    # Auto-weighting sends the target one direction more: its inner products are summed in another order.
    assert torch.allclose(theta, without, rtol=1e-5, atol=1e-6) if "auto" in rule else torch.equal(theta, without)
    rounds = [1] if rule in ("finetune_offline", "target_only") else [1, 2]
    assert [(a["round"], a["client"]) for a in server.absences] == [(r, "north") for r in rounds]
    told = capsys.readouterr().err
    for absence in server.absences:
        assert absence["why"].startswith("update rejected: ") and WHY[offence] in absence["why"]
        assert f"round {absence['round']}: north is left out of {absence['step']}: {absence['why']}" in told


@pytest.mark.parametrize("rule", RULES)
def test_a_hospital_that_did_not_move_is_no_offender_and_adds_nothing(rule: str) -> None:
    server = offending("all zero")
    theta = two_rounds(rule, server)
    assert {a["why"] for a in server.absences} <= {"update left aside: it has not moved"}, "and that is no strike"
    assert server.quarantined == () and torch.isfinite(theta).all()
    everybody = offending("all zero")
    everybody._deliver = idle(everybody._deliver, everybody.layout.trainable)
    still = two_rounds(rule, everybody)
    assert torch.isfinite(still).all() and everybody.absences == []
    if rule in ("fedavg", "fedda", "fedda_auto", "fedgp", "fedgp_auto", "fedprox", "gp"):  # the others distil or tune
        cut = everybody.layout.trainable
        assert torch.equal(still[:cut], hospitals.theta()[:cut])


def idle(deliver, cut: int):
    """Every hospital trains and moves nothing, the target too."""

    def still(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        if hasattr(reply, "g"):
            reply.g[:cut].zero_()
        elif hasattr(reply, "x") and hasattr(msg, "x"):  # what the target distils is its own
            reply.x[:cut] = msg.x[:cut]
        return reply

    return still


@pytest.mark.parametrize("rule", RULES)
def test_a_flipped_update_is_weighed_and_not_rejected(rule: str) -> None:
    server = offending("sign-flipped")
    two_rounds(rule, server)
    assert server.absences == []


@pytest.mark.parametrize(("rule", "told"), [("gp", True), ("fedgp", True), ("fedgp_auto", True), ("fedda", False)])
def test_the_log_says_once_a_round_who_points_against_the_target_as_a_whole(rule: str, told: bool, capsys) -> None:
    server = offending("sign-flipped")
    for client in ("north", "target"):  # one step each, of the same images
        server._clients[client].data = hospitals.images("target")
        server._clients[client].recipe = Recipe(lr=0.01, batch=8)
    two_rounds(rule, server)
    lines = [line for line in capsys.readouterr().err.splitlines() if ": against target: " in line]
    assert len(lines) == (2 if told else 0)
    assert all(re.search(r"^round [12]: against target: north \(cosine -1\.00\)$", line) for line in lines)


@pytest.mark.parametrize("rule", RULES)
def test_one_labeled_sample_is_enough_for_a_finite_model(rule: str) -> None:
    server = hospitals.in_process()
    data = server._clients["target"].data
    server._clients["target"].data = Labeled(data.images[:1], data.y[:1], {})
    theta = two_rounds(rule, server)
    assert torch.isfinite(theta).all()
    assert (variances(server, theta) > 0).all()
    assert server.absences == []


def test_a_flipped_source_gets_less_weight_than_it_had() -> None:
    def beta(server: InProcess) -> float:
        server.begin(1, 1)
        REGISTRY["fedda_auto"]().round(Model(x=hospitals.theta()), server)
        value = server.notes["beta/north"]
        assert value is not None
        return value

    assert beta(offending("sign-flipped")) < beta(hospitals.in_process())


# --- the judgment by hand --------------------------------------------------------------------------------------------

TEN = {"a": Travel(1.0, 10, 10.0), "b": Travel(1.0, 10, 10.0)}
"""Two hospitals of ten images that moved by 1."""


def verdict(*lengths: float, n: int = 10, target: Travel | None = None, size: float = 2.0):
    return judged({str(i): Travel(v, n, n) for i, v in enumerate(lengths)}, target, size, Guard())


def rejected(*lengths: float, target: Travel | None = None, size: float = 2.0) -> list[int]:
    """Which of these lengths, from ten images each, are left out."""
    return [int(i) for i in verdict(*lengths, target=target, size=size).faults]


def left_out(**more: Travel) -> dict[str, str]:
    """Who of the two and these others is left out, and why."""
    return judged(TEN | more, None, 2.0, Guard()).faults


def test_more_than_a_hundred_times_the_median_of_the_others_is_too_long() -> None:
    assert rejected(1.0, 2.0, 4.0, 200.0) == []
    assert rejected(1.0, 2.0, 4.0, 200.1) == [3]
    assert rejected(1.0, 2.0, 4.0, 500.0, 600.0) == [3, 4]  # of four others the upper middle one: 4


def test_between_ten_and_a_hundred_times_the_median_an_update_is_shortened_to_ten() -> None:
    assert verdict(1.0, 2.0, 4.0, 20.0).factors == {}
    assert verdict(1.0, 2.0, 4.0, 40.0).factors == {"3": 0.5}
    assert judged(TEN | {"c": Travel(50.0, 10, 10.0)}, None, 2.0, Guard(shortened=None)).factors == {}


def test_the_target_is_one_of_the_others() -> None:
    assert rejected(1.0, 300.0, target=Travel(2.0, 10, 10.0)) == [1]
    assert rejected(1.0, 150.0) == []  # with one other there is no majority: 150 is short of 100 models


def test_where_there_is_no_majority_the_model_is_the_measure() -> None:
    assert rejected(200.0) == [] and rejected(200.1) == [0]
    assert rejected(1.0, 201.0) == [1]
    assert rejected(5.0, 400.0) == []
    assert rejected(1e-9, 0.5) == []  # one that sends next to nothing cannot make the other look long
    assert rejected(7.0, size=0.0) == []


def test_a_large_hospital_may_go_far_and_a_small_one_far_for_its_few_images() -> None:
    assert left_out(large=Travel(900.0, 100, 100.0)) == {}
    assert left_out(single=Travel(90.0, 1, 1.0)) == {}
    assert list(left_out(large=Travel(1100.0, 100, 100.0))) == ["large"]


def test_a_reach_told_too_small_counts_as_length_and_none_at_all_is_no_training() -> None:
    assert list(left_out(liar=Travel(1.0, 10, 0.09))) == ["liar"]
    assert left_out(slow=Travel(1.0, 10, 0.11)) == {}
    for n, reach in ((0, 1.0), (10, 0.0), (10, -1.0), (10**8, 5e-324)):
        assert left_out(none=Travel(1.0, n, reach)) == {"none": "it counts no training"}


def test_a_hospital_that_stands_still_is_no_measure_and_no_offender() -> None:
    assert rejected(1.0, 1.0, target=Travel(0.0, 10, 10.0)) == []
    assert rejected(0.0, 0.0, 0.0, 5.0) == []
    assert rejected(0.0, 1.0, 2.0, 4.0, 300.0) == [4]


@pytest.mark.parametrize("rule", [GP(), GP(align=False), FedDA(align=True)], ids=["gp", "unaligned", "fedda"])
def test_a_source_with_a_reach_of_next_to_nothing_is_left_out_before_it_is_aligned(rule) -> None:
    def after(clients: list[str], reach: dict[str, float]) -> tuple[list[float], list[str]]:
        server = Scripted(lambda p, x: x + MOVES[p], {p: SAMPLES[p] for p in clients}, reach)
        server.begin(1, 1)
        return rule.round(Model(x=X), server).x.tolist(), [a["client"] for a in server.absences]

    lied, named = after(["T", "S1", "S2"], REACH | {"S2": 1e-12})
    assert named == ["S2"]
    assert lied == after(["T", "S1"], REACH)[0]


def test_distances_are_those_of_the_whole_vectors_and_leave_buffers_out() -> None:
    generator = torch.Generator().manual_seed(1)
    x, a, b = (torch.randn(2 * BLOCK + 7, generator=generator) for _ in range(3))
    cut = 2 * BLOCK + 3
    expected = [float((v - x)[:cut].double().norm()) for v in (a, b, x)]
    assert distances([a, b, x], x[:cut]) == pytest.approx(expected, rel=1e-5)
    assert distances([], x) == []


@pytest.mark.parametrize("high", [True, False])
def test_the_median_of_the_others_is_found_without_sorting_them_for_each(high: bool) -> None:
    from statistics import median_high, median_low

    from fdamed.federation.validation.checks import median_without

    for numbers in ([3.0, 1.0], [1.0, 1.0, 2.0], [5.0, 1.0, 4.0, 2.0], [2.0, 2.0, 2.0, 9.0, 1.0], list(range(11))):
        for i, own in enumerate(numbers):
            rest = [*numbers[:i], *numbers[i + 1 :]]
            expected = median_high(rest) if high else median_low(rest)
            assert median_without(sorted(numbers), own, high) == expected


@dataclass(frozen=True)
class Sent:
    part: torch.Tensor
    n: int = 10


@pytest.mark.parametrize("start", [None, torch.full((4,), 3.0)])
def test_a_part_between_ten_and_a_hundred_times_as_long_as_the_others_is_shortened_to_ten(start) -> None:
    server, base = hospitals.in_process(), torch.zeros(4) if start is None else start
    sent = {"north": 50.0, "east": 1.0, "south": 1.0, "west": 500.0}
    h = {client: Sent(base + torch.tensor([times, 0.0, 0.0, 0.0])) for client, times in sent.items()}
    kept = sound_parts(server, train_locally, h, "part", start=start, size=1.0)
    assert {p: float((r.part - base).norm()) for p, r in kept.items()} == {"north": 10.0, "east": 1.0, "south": 1.0}
    assert server.notes == {"shortened/north": pytest.approx(0.2)} and [a["client"] for a in server.absences] == [
        "west"
    ]
    assert float((h["north"].part - base).norm()) == 50.0, "what was sent is not changed in place"


def test_a_part_with_which_its_hospital_goes_on_is_left_out_or_taken_whole() -> None:
    sent = {"north": 50.0, "east": 1.0, "south": 1.0, "west": 500.0}
    h = {client: Sent(torch.full((1,), times)) for client, times in sent.items()}
    server = hospitals.in_process()
    kept = sound_parts(server, train_locally, h, "part", size=1.0, shorten=False)
    assert {p: float(r.part) for p, r in kept.items()} == {"north": 50.0, "east": 1.0, "south": 1.0}
    assert server.notes == {}
