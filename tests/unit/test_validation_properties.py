"""Properties of validation and of the aggregation rules, for any numbers that a client can send."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from fdamed.config.train import Faults, Norms, Validation
from fdamed.federation.absences import DroppedOut
from fdamed.federation.messages import (
    ROWS,
    Check,
    Count,
    Features,
    Images,
    Statistic,
    Weights,
    check_exchange,
    message,
    starting_model,
)
from fdamed.federation.method import REGISTRY, Model
from fdamed.federation.validation.norms import Move, judge
from fdamed.federation.validation.validator import Validator, fault_of
from fdamed.methods._shared.local_training import Moved, compute_update
from fdamed.ops.aggregation import fedda, fedgp, gp, mean
from tests.support import federation as hospitals
from tests.support.federation import Altered

LAYOUT = hospitals.model().layout
CUT = LAYOUT.trainable
ANY = st.floats(width=32, allow_nan=True, allow_infinity=True)
COUNT = st.one_of(st.integers(-(10**13), 10**13), st.integers(0, 40), st.floats(), st.booleans())
fuzz = settings(max_examples=40, deadline=None)


@st.composite
def updates(draw) -> Moved:
    """An update of any kind: ordinary, scaled beyond measure, with any numbers in it, of another shape or dtype."""
    seed, scale = draw(st.integers(0, 2**31)), draw(st.sampled_from([0.0, 1e-42, 1e-6, 1.0, 1.0, 1.0, 50.0, 1e7, 1e37]))
    g = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(seed)).mul_(0.01 * scale)
    for place, value in draw(st.dictionaries(st.integers(0, LAYOUT.size - 1), ANY, max_size=3)).items():
        g[place] = value
    kind = draw(st.sampled_from(["whole", "whole", "whole", "whole", "short", "one", "double", "square"]))
    g = {"whole": g, "short": g[:-1], "one": g[:1], "double": g.double(), "square": g[None]}[kind]
    nominal_step = draw(st.one_of(st.just(1.0), st.floats(-1.0, 1e300)))
    return Moved(g=g, n=draw(st.one_of(st.integers(1, 40), COUNT)), nominal_step=nominal_step, loss=0.5)


def let_in(sent: dict[str, Moved], norms: Norms | None = None) -> dict[str, Moved]:
    """The answers that validation accepts."""
    validator = Validator(LAYOUT, "target", Validation(norms=norms or Norms()))
    validator.images = dict.fromkeys(sent, 40)
    questions = dict.fromkeys(sent, Model(x=hospitals.theta()))
    return validator.check(1, compute_update, questions, sent).accepted


RULES = {
    "mean": lambda t, s, n: mean(s, n),
    "fedda": lambda t, s, n: fedda(t, s, LAYOUT, 0.5, n),
    "fedgp": lambda t, s, n: fedgp(t, s, LAYOUT, 0.5, n),
    "gp": lambda t, s, n: gp(t, s, LAYOUT, 0.5, n),
}


def aggregated(rule: str, kept: dict[str, Moved]) -> Tensor:
    ordered = dict(sorted(kept.items()))
    g_t = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(3)).mul_(0.01)
    return RULES[rule](g_t, torch.stack([r.g for r in ordered.values()]), [r.n for r in ordered.values()])


def plain(seed: int) -> Moved:
    g = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(seed)).mul_(0.01)
    return Moved(g=g, n=10, nominal_step=1.0, loss=0.5)


@fuzz
@given(st.lists(updates(), min_size=3, max_size=3), st.sampled_from(sorted(RULES)))
def test_whatever_hospitals_send_the_model_stays_finite_or_they_are_refused(sent, rule) -> None:
    kept = let_in(dict(zip(("north", "east", "south"), sent, strict=True)))
    if kept:
        out = aggregated(rule, kept)
        assert torch.isfinite(out).all()
        x = hospitals.theta() + (out if rule == "mean" else 0.0)
        assert (x[LAYOUT.variances] >= 0.0).all()


@fuzz
@given(st.permutations(["north", "east", "south"]), updates(), st.sampled_from(sorted(RULES)))
def test_the_order_of_the_answers_changes_no_bit(order, bad, rule) -> None:
    sent = {"north": bad, "east": plain(1), "south": plain(2)}
    here, there = let_in(sent), let_in({k: sent[k] for k in order})
    assert set(here) == set(there)
    assert torch.equal(aggregated(rule, here), aggregated(rule, there))


@fuzz
@given(updates())
def test_nothing_that_is_let_in_is_longer_than_the_limit(bad) -> None:
    kept = let_in({"north": bad, "east": plain(1), "south": plain(2)}, Norms(reject_above=20.0, clip_above=4.0))
    if "north" in kept:
        usual = max(float(plain(i).g[:CUT].norm()) for i in (1, 2))
        times = float(kept["north"].g[:CUT].norm()) / usual
        by_image = times * 10 / bad.n
        assert min(times, by_image) <= 4.0 * (1.0 + 1e-5)


@fuzz
@given(st.integers(0, 1000), st.integers(1, 40))
def test_the_mean_of_one_good_hospital_is_that_hospital(seed, n) -> None:
    only = dataclasses.replace(plain(seed), n=n)
    kept = let_in({"north": only})
    assert torch.equal(aggregated("mean", kept), only.g)


@fuzz
@given(st.sampled_from(sorted(RULES)), st.floats(1e3, 1e20))
def test_excluding_a_client_equals_its_absence(rule, factor) -> None:
    bad = dataclasses.replace(plain(7), g=plain(7).g * factor)
    good = {"east": plain(1), "south": plain(2)}
    assert torch.equal(aggregated(rule, let_in({"north": bad} | good)), aggregated(rule, let_in(good)))


@pytest.mark.parametrize("rule", ["mean", "fedda"])
def test_a_weight_of_zero_is_removal(rule) -> None:
    sent = {"north": dataclasses.replace(plain(7), n=0), "east": plain(1), "south": plain(2)}
    rest = {k: r for k, r in sent.items() if r.n}
    assert torch.allclose(aggregated(rule, sent), aggregated(rule, rest), rtol=0, atol=1e-9)


@fuzz
@given(COUNT)
def test_a_count_is_a_whole_number_that_the_hospital_has_declared(n) -> None:
    fine = type(n) is int and 0 <= n <= 14
    reply = dataclasses.replace(plain(0), n=n)
    assert (fault_of(reply, Model(x=hospitals.theta()), LAYOUT, images=14) is None) == fine


@fuzz
@given(arrays(np.float64, st.integers(2, 6), elements=st.floats(1e-3, 1e3)), st.floats(1e-2, 1e2))
def test_the_judgment_does_not_depend_on_the_unit_of_the_norms(norms, unit) -> None:
    def verdict(scale: float):
        moves = {str(i): Move(float(v) * scale, 10, 10.0) for i, v in enumerate(norms)}
        return judge(moves, None, 5.0 * scale, Norms(reject_above=7.0001, clip_above=3.0001))

    here, there = verdict(1.0), verdict(unit)
    assert here.rejected.keys() == there.rejected.keys() and here.factors.keys() == there.factors.keys()


def test_limits_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="must not exceed `reject_above`"):
        Norms(reject_above=5.0)


def test_a_rejected_update_counts_as_missing_for_the_quorum() -> None:
    server = hospitals.in_process()
    deliver = server.transport.deliver

    def huge(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        return dataclasses.replace(reply, x=reply.x * 1e6) if client == "north" else reply

    server.transport = Altered(server.transport, huge)
    server = hospitals.unreliable_server(server, Faults(), 0, quorum=3)
    server.validator.settings = Validation(norms=Norms())
    server.begin(1, 1)
    with pytest.raises(DroppedOut, match="2 of 3 sources are left, the quorum is 3"):
        REGISTRY["fedavg"]().round(Model(x=hospitals.theta()), server)


@message
class Parts:
    m: Annotated[Statistic, Check(shape=lambda _, __: (3,))]
    f: Annotated[Features, Check(shape=lambda _, __: (ROWS, 2), optional=True)]
    steps: Annotated[Count, Check(positive=True)]
    seen: Images


def test_every_part_has_its_shape_and_dtype_and_nothing_is_broadcast() -> None:
    sound = Parts(m=torch.zeros(3), f=torch.zeros(5, 2), steps=1, seen=7)
    layout = hospitals.model().layout

    def why(**changed) -> str:
        fault = fault_of(dataclasses.replace(sound, **changed), None, layout, images=7)
        return fault.why if fault else ""

    assert why() == why(f=torch.zeros(0, 2)) == why(f=torch.zeros(0)) == why(f=torch.zeros(1, 2)) == ""
    assert why(m=torch.zeros(1)) == "m has shape [1] of float32, not [3] of float32"
    assert why(m=torch.zeros(3, dtype=torch.float64)) == "m has shape [3] of float64, not [3] of float32"
    assert why(m=torch.zeros(0)) == "m has shape [0] of float32, not [3] of float32"
    assert why(f=torch.zeros(5, 3)) == "f has shape [5, 3] of float32, not [-1, 2] of float32"
    assert why(f=torch.zeros(2)) == "f has shape [2] of float32, not [-1, 2] of float32"
    assert why(steps=0) == "steps is not a possible count"
    assert why(seen=8) == "seen is not a possible count"


def test_a_step_must_leave_nothing_open_that_validation_needs() -> None:
    @message
    class Bare:
        m: Statistic

    @message
    class Two:
        a: Weights
        b: Weights

    @message
    class Marked:
        a: Weights
        b: Annotated[Weights, Check(start=True)]

    with pytest.raises(TypeError, match=r"m needs a shape: Annotated\[Statistic, Check\(shape=...\)\]"):
        check_exchange("s", Model, Bare)
    with pytest.raises(TypeError, match="g is an update, but the question has no Weights that it starts from"):
        check_exchange("s", Parts, Moved)
    with pytest.raises(TypeError, match=r"mark the model that it starts from with Check\(start=True\): a, b"):
        check_exchange("s", Two, Moved)
    check_exchange("s", Marked, Moved)
    one, other = torch.zeros(2), torch.ones(2)
    assert starting_model(Marked(a=one, b=other)) is other and starting_model(Model(x=one)) is one
    with pytest.raises(TypeError, match=r"two fields with Check\(images=True\): n, seen"):

        @message
        class Twice:
            n: Images
            seen: Images
