"""Invalid updates under every rule: they are rejected or clipped, and the model stays finite."""

from __future__ import annotations

from typing import Annotated

import pytest
import torch

import fdamed.methods  # noqa: F401
from fdamed.config.train import Directions, Norms, Validation
from fdamed.data.loader import Labeled
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Check, Images, Statistic, kinds, message, tensors
from fdamed.federation.method import REGISTRY, Model
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.validation.norms import Move, distance, judge
from fdamed.federation.validation.validator import Validator
from fdamed.methods._shared.local_training import compute_update
from fdamed.methods.fedavg import FedAvg
from fdamed.methods.fedda import FedDA
from fdamed.methods.gp import GP
from fdamed.ops.aggregation import BLOCK
from tests.support import federation as hospitals
from tests.support.federation import Altered, clients_of
from tests.unit.test_methods_by_hand import MOVES, REACH, SAMPLES, X, scripted

RULES = [
    name
    for name, method in sorted(REGISTRY.items())
    if method.rule and all("weights" in kinds(step.question).values() for step in method.steps)
]
"""Methods that combine models or updates, each trained from the model of its question."""
"""What clients that train with Adam need."""
OFFENCES = {
    "nan": lambda g: g.fill_(float("nan")),
    "one infinite entry": lambda g: g.index_fill_(0, torch.tensor([3]), float("inf")),
    "all zero": lambda g: g.zero_(),
    "huge": lambda g: g.mul_(1e12),
    "sign-flipped": lambda g: g.neg_(),
}


def offending(offence: str, names: tuple[str, ...] = hospitals.NAMES) -> Server:
    """Hospitals of which north sends an update with this fault; where models travel, the fault is in the change."""
    server = hospitals.in_process(names)
    server.validator.settings = Validation(norms=Norms(), directions=Directions())
    deliver = server.transport.deliver
    cut = server.layout.trainable  # buffers are sound: what is tried is the rule, not BatchNorm

    def faulty(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        if client == "north":
            for update in tensors(reply, "update").values():
                OFFENCES[offence](update[:cut])
            for model in tensors(reply, "weights").values():
                (start,) = tensors(msg, "weights").values()
                change = model[:cut] - start[:cut]
                OFFENCES[offence](change)
                model[:cut] = start[:cut] + change
        return reply

    server.transport = Altered(server.transport, faulty)
    return server


def two_rounds(rule: str, server: Server) -> torch.Tensor:
    method = hospitals.registered(rule)
    state = method.start(hospitals.theta())
    for r in (1, 2):
        server.begin(r, 2)
        state = method.round(state, server)
    return method.final(state)


def variances(server: Server, theta: torch.Tensor) -> torch.Tensor:
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


WHY = {"nan": "not finite", "one infinite entry": "not finite", "huge": "norm"}


@pytest.mark.parametrize("names", [hospitals.NAMES, ("north", "target")], ids=["three sources", "one source"])
@pytest.mark.parametrize("offence", WHY)
@pytest.mark.parametrize("rule", RULES)
def test_the_offender_is_named_and_the_result_is_the_others(rule: str, offence: str, names: tuple, caplog) -> None:
    server = offending(offence, names)
    theta = two_rounds(rule, server)
    without = two_rounds(rule, hospitals.in_process(tuple(n for n in names if n != "north")))
    # Auto-weighting sends the target one direction more: its inner products are summed in another order.
    assert torch.allclose(theta, without, rtol=1e-5, atol=1e-6) if "auto" in rule else torch.equal(theta, without)
    rounds = [1, 2][: 2 // REGISTRY[rule].length]  # the second half is the target's alone
    assert [(a["round"], a["client"]) for a in server.absences] == [(r, "north") for r in rounds]
    for absence in server.absences:
        assert absence["reason"] == WHY[offence]
        assert f"no usable answer of north in {absence['step']} ({absence['reason']}): {absence['why']}" in caplog.text


@pytest.mark.parametrize("rule", RULES)
def test_a_hospital_that_did_not_move_is_no_offender_and_adds_nothing(rule: str) -> None:
    server = offending("all zero")
    theta = two_rounds(rule, server)
    assert {a["reason"] for a in server.absences} <= {"unchanged"}, "and that is no strike"
    assert server.quarantined == () and torch.isfinite(theta).all()
    everybody = offending("all zero")
    everybody.transport = Altered(everybody.transport, idle(everybody.transport.deliver, everybody.layout.trainable))
    still = two_rounds(rule, everybody)
    assert torch.isfinite(still).all() and everybody.absences == []
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


@pytest.mark.parametrize("rule", RULES)
def test_one_labeled_sample_is_enough_for_a_finite_model(rule: str) -> None:
    server = hospitals.in_process()
    data = clients_of(server)["target"].data
    clients_of(server)["target"].data = Labeled(data.images[:1], data.y[:1], {})
    theta = two_rounds(rule, server)
    assert torch.isfinite(theta).all()
    assert (variances(server, theta) > 0).all()
    assert server.absences == []


def test_a_flipped_source_gets_less_weight_than_it_had() -> None:
    def beta(server: Server) -> float:
        server.begin(1, 1)
        REGISTRY["fedda_auto"]().round(Model(x=hospitals.theta()), server)
        value = server.notes["beta/north"]
        assert value is not None
        return value

    assert beta(offending("sign-flipped")) < beta(hospitals.in_process())


# --- the judgment by hand --------------------------------------------------------------------------------------------

TEN = {"a": Move(1.0, 10, 10.0), "b": Move(1.0, 10, 10.0)}
"""Two hospitals of ten images that moved by 1."""


def verdict(*norms: float, n: int = 10, target: Move | None = None, size: float = 2.0):
    return judge({str(i): Move(v, n, n) for i, v in enumerate(norms)}, target, size, Norms())


def rejected(*norms: float, target: Move | None = None, size: float = 2.0) -> list[int]:
    """Which of these norms, from ten images each, are left out."""
    return [int(i) for i in verdict(*norms, target=target, size=size).rejected]


def left_out(**more: Move) -> dict[str, str]:
    """Who of the two and these others is left out, and why."""
    return judge(TEN | more, None, 2.0, Norms()).rejected


def test_more_than_a_hundred_times_the_median_of_the_others_is_too_long() -> None:
    assert rejected(1.0, 2.0, 4.0, 200.0) == []
    assert rejected(1.0, 2.0, 4.0, 200.1) == [3]
    assert rejected(1.0, 2.0, 4.0, 500.0, 600.0) == [3, 4]  # of four others the upper middle one: 4


def test_between_ten_and_a_hundred_times_the_median_an_update_is_shortened_to_ten() -> None:
    assert verdict(1.0, 2.0, 4.0, 20.0).factors == {}
    assert verdict(1.0, 2.0, 4.0, 40.0).factors == {"3": 0.5}
    assert judge(TEN | {"c": Move(50.0, 10, 10.0)}, None, 2.0, Norms(clip_above=None)).factors == {}


def test_the_target_is_one_of_the_others() -> None:
    assert rejected(1.0, 300.0, target=Move(2.0, 10, 10.0)) == [1]
    assert rejected(1.0, 150.0) == []  # with one other there is no majority: 150 is short of 100 models


def test_where_there_is_no_majority_the_model_is_the_measure() -> None:
    assert rejected(200.0) == [] and rejected(200.1) == [0]
    assert rejected(1.0, 201.0) == [1]
    assert rejected(5.0, 400.0) == []
    assert rejected(1e-9, 0.5) == []  # one that sends next to nothing cannot make the other look long
    assert rejected(7.0, size=0.0) == []


def test_a_large_hospital_may_go_far_and_a_small_one_far_for_its_few_images() -> None:
    assert left_out(large=Move(900.0, 100, 100.0)) == {}
    assert left_out(single=Move(90.0, 1, 1.0)) == {}
    assert list(left_out(large=Move(1100.0, 100, 100.0))) == ["large"]


def test_a_nominal_step_reported_too_small_counts_as_norm_and_none_at_all_is_no_training() -> None:
    assert list(left_out(attacker=Move(1.0, 10, 0.09))) == ["attacker"]
    assert left_out(slow=Move(1.0, 10, 0.11)) == {}
    for n, nominal_step in ((0, 1.0), (10, 0.0), (10, -1.0), (10**8, 5e-324)):
        assert left_out(none=Move(1.0, n, nominal_step)) == {"none": "its norm is not finite"}


@pytest.mark.parametrize("method", [FedAvg(), GP()], ids=["fedavg", "gp"])
def test_a_source_without_labels_for_a_shared_head_is_not_rejected_for_it(method) -> None:
    """Its update is zero in the head, which is neither too small nor a direction."""
    server = hospitals.in_process(auxiliary=True, share=True)
    clients_of(server)["east"].data.auxiliary["sex"][:] = -1
    strict = Directions(label_rate_gap=None, reject_below=-0.01)
    server.validator.settings = Validation(norms=Norms(), directions=strict)
    before = hospitals.theta(True)
    theta, record = run(method, server, before, 3, hospitals.no_judge)
    (head,) = server.layout.heads
    assert not [a for a in record.absences if a["client"] == "east"]
    assert torch.equal(theta[head], before[head]) == isinstance(method, GP)  # GP leaves it at the server's value


def test_a_client_that_does_not_move_is_neither_reference_nor_outlier() -> None:
    assert rejected(1.0, 1.0, target=Move(0.0, 10, 10.0)) == []
    assert rejected(0.0, 0.0, 0.0, 5.0) == []
    assert rejected(0.0, 1.0, 2.0, 4.0, 300.0) == [4]


@pytest.mark.parametrize("rule", [GP(), GP(align="none"), FedDA(align=True)], ids=["gp", "unaligned", "fedda"])
def test_a_source_with_a_nominal_step_near_zero_is_left_out_before_it_is_aligned(rule) -> None:
    def after(clients: list[str], nominal_step: dict[str, float]) -> tuple[list[float], list[str]]:
        server = scripted(lambda p, x: x + MOVES[p], {p: SAMPLES[p] for p in clients}, nominal_step)
        server.validator.settings = Validation(norms=Norms())
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
    assert [distance(v, x[:cut]) for v in (a, b, x)] == pytest.approx(expected, rel=1e-5)
    assert distance(a, None) == pytest.approx(float(a.norm()))


@pytest.mark.parametrize("high", [True, False])
def test_the_median_of_the_others_is_found_without_sorting_them_for_each(high: bool) -> None:
    from statistics import median_high, median_low

    from fdamed.federation.validation.norms import median_without

    for numbers in ([3.0, 1.0], [1.0, 1.0, 2.0], [5.0, 1.0, 4.0, 2.0], [2.0, 2.0, 2.0, 9.0, 1.0], list(range(11))):
        for i, own in enumerate(numbers):
            rest = [*numbers[:i], *numbers[i + 1 :]]
            expected = median_high(rest) if high else median_low(rest)
            assert median_without(sorted(numbers), own, high) == expected


@message
class Start:
    part: Statistic


@message
class Sent:
    part: Annotated[Statistic, Check(shape=lambda _, __: (4,))]
    kept: Annotated[Statistic, Check(shape=lambda _, __: (4,), clip=False)]
    n: Images


@step("test.send_parts")
def send_parts(client: Client, ask: Start) -> Sent:
    raise NotImplementedError


def compared(base: torch.Tensor, sent: dict[str, float]):
    validator = Validator(hospitals.model().layout, "target", Validation(norms=Norms()))
    parts = {c: base + torch.tensor([times, 0.0, 0.0, 0.0]) for c, times in sent.items()}
    replies = {c: Sent(part=part, kept=part - base, n=10) for c, part in parts.items()}
    return validator.check(1, send_parts, dict.fromkeys(sent, Start(part=base)), replies), replies


@pytest.mark.parametrize("base", [torch.zeros(4), torch.full((4,), 3.0)])
def test_a_part_between_ten_and_a_hundred_times_as_large_as_the_others_is_clipped_to_ten(base) -> None:
    verdict, sent = compared(base, {"north": 50.0, "east": 1.0, "south": 1.0, "west": 500.0})
    assert {c: float((r.part - base).norm()) for c, r in verdict.accepted.items()} == {
        "north": 10.0,
        "east": 1.0,
        "south": 1.0,
    }
    assert {c: f.reason.value for c, f in verdict.rejected.items()} == {"west": "norm"}
    assert verdict.clipped == {"north": pytest.approx(0.2)}
    assert float((sent["north"].part - base).norm()) == 50.0, "what was sent is not changed in place"
    assert float(verdict.accepted["north"].kept[0]) == 50.0, "the client continues with this part: never clipped"


def test_the_smallest_factor_of_a_round_is_recorded_whatever_comes_later() -> None:
    server = hospitals.in_process()
    server.validator.settings = Validation(norms=Norms())
    deliver = server.transport.deliver

    def longer(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        if client == "north":
            reply.g[: server.layout.trainable] *= (90.0, 30.0)[nth]
        return reply

    server.transport = Altered(server.transport, longer)
    server.begin(1, 1)
    server.ask_all(server.sources, compute_update, Model(x=hospitals.theta()))
    first = server.notes["clipped/north"]
    server.ask_all(server.sources, compute_update, Model(x=hospitals.theta()))
    assert server.notes["clipped/north"] == first is not None and first < 0.5
