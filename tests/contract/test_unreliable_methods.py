"""What every registered method does when clients and messages fail."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import fdamed.methods  # noqa: F401
from fdamed.config.train import Faults
from fdamed.federation.method import REGISTRY
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.storage.checkpoint import Checkpoints
from fdamed.federation.transport.faulty import Schedule
from tests.support import federation as hospitals
from tests.support.federation import registered, suited, unreliable_server

METHODS = sorted(REGISTRY)
ONE_MODEL = [name for name in METHODS if not REGISTRY[name].keeps]
"""Methods with one model, which the server has; in the others hospitals go on with their own when one is away."""
ROUNDS, SEED, SILENT = 6, 2, 4
HARSH = Faults.model_validate(
    {
        "away": {2: ["target"], 3: ["north"]},
        "absent": 0.15,
        "lost": {"update": {"up": 0.2}, "weights": {"down": 0.1, "up": 0.2}, "count": {"up": 0.1}},
        "minutes": {"median": 10, "spread": 0.5, "slower": {"south": 1.3}},
        "deadline": 20,
        "spare": ["target"],
    }
)
NEEDS_NO_TARGET = {name for name in METHODS if not REGISTRY[name].asks_target}
NEEDS_NO_SOURCE = {name for name in METHODS if not REGISTRY[name].asks_sources}
OFFLINE = {name for name in METHODS if REGISTRY[name].length > 1}
"""First the sources alone, then the target alone."""
GOES_ON_ALONE = {name for name in METHODS if REGISTRY[name].rule} - NEEDS_NO_TARGET - OFFLINE
"""With `quorum: 0`, the target's own step is taken in a round without a source; the others keep their state."""


@dataclass(frozen=True)
class AllLost(Schedule):
    """And in one round no message arrives."""

    def lost(self, round, client, question, way, step):
        return "every" if round == SILENT else super().lost(round, client, question, way, step)


def harsh(name: str, inner=None) -> Server:
    server = unreliable_server(inner or hospitals.in_process(**suited(name)), HARSH, SEED)
    server.transport.schedule = AllLost(HARSH, "target", SEED)
    return server


def failing(
    name: str, names: tuple[str, ...] = hospitals.NAMES, seed: int = SEED, quorum: int = 1, **faults: object
) -> Server:
    return unreliable_server(hospitals.in_process(names, **suited(name)), Faults.model_validate(faults), seed, quorum)


def outcome(name: str, server, rounds: int = ROUNDS, judge=hospitals.no_judge, start=hospitals.theta, **options):
    theta, record = run(registered(name), server, start(), rounds, judge, **options)
    server.close()
    return theta, record


@pytest.fixture(scope="module")
def expected():
    return {name: outcome(name, harsh(name)) for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_a_harsh_network_leaves_a_finite_model_that_learned_something(name, expected) -> None:
    theta, record = expected[name]
    assert torch.isfinite(theta).all() and not torch.equal(theta, hospitals.theta())
    assert [m["round"] for m in record.metrics] == list(range(1, registered(name).length * ROUNDS + 1))


def test_the_harsh_network_has_every_fault(expected) -> None:
    why = {a["why"].partition(":")[0] for _, record in expected.values() for a in record.absences}
    assert why == {"absent by schedule", "late", "message lost"}
    reasons = {a["why"] for _, record in expected.values() for a in record.absences}
    assert {"message lost: weights down", "message lost: weights up", "message lost: update up"} <= reasons


@pytest.mark.parametrize("name", METHODS)
def test_the_same_schedule_gives_the_same_bits_in_any_order_of_hospitals(name, expected) -> None:
    server = harsh(name, hospitals.in_process(tuple(reversed(hospitals.NAMES)), **suited(name)))
    theta, record = outcome(name, server)
    assert torch.equal(theta, expected[name][0])
    assert record.ledger == expected[name][1].ledger
    assert record.absences == expected[name][1].absences
    assert record.metrics == expected[name][1].metrics


@pytest.mark.parametrize("name", METHODS)
def test_a_run_stopped_among_the_faults_ends_with_the_same_bits(name, expected, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    keep = Checkpoints(tmp_path, lambda p, r: tmp_path / p / f"{r:05d}.safetensors", {"threads": 1})
    server = harsh(name)

    def judge(theta):
        if server.round == SILENT:
            raise Stop
        return {}

    with pytest.raises(Stop):
        outcome(name, server, judge=judge, checkpoints=keep)
    theta, record = outcome(name, harsh(name), checkpoints=keep)
    assert torch.equal(theta, expected[name][0])
    for part in ("ledger", "absences", "metrics"):
        assert getattr(record, part) == getattr(expected[name][1], part)


@pytest.mark.parametrize("name", METHODS)
def test_with_probabilities_of_zero_it_is_the_transport_behind(name) -> None:
    faults = {"absent": 0, "lost": 0, "minutes": {"median": 1}, "deadline": 1e9}
    there, record = outcome(name, failing(name, quorum=3, **faults), 3)
    plain, other = outcome(name, hospitals.in_process(**suited(name)), 3)
    assert torch.equal(there, plain)
    assert (record.metrics, record.ledger, record.layers) == (other.metrics, other.ledger, other.layers)
    assert record.absences == []


@pytest.mark.parametrize("name", ONE_MODEL)
def test_a_round_without_the_target_is_lost_where_the_method_needs_it_and_nothing_of_it_stays(name) -> None:
    seen = [hospitals.theta()]

    def judge(theta):
        seen.append(theta.clone())
        return {}

    rounds = 2 if name in OFFLINE else 4
    away = 3 if name in OFFLINE else 2
    theta, record = outcome(name, failing(name, away={away: ["target"]}), rounds, judge)
    lost = {m["round"] for m in record.metrics if m.get("lost")}
    assert lost == (set() if name in NEEDS_NO_TARGET else {away})
    assert torch.equal(seen[away], seen[away - 1]) == (name not in NEEDS_NO_TARGET)
    assert torch.isfinite(theta).all() and not torch.equal(theta, seen[away])


@pytest.mark.parametrize("name", ONE_MODEL)
@pytest.mark.parametrize(
    "faults", [{"away": {1: ["north"]}}, {"lost": {"every": {"down": 1.0}}, "spare": ["east", "south", "target"]}]
)
def test_a_round_without_a_source_is_the_round_of_the_others_with_weights_renormalized(name, faults) -> None:
    without, _ = outcome(name, failing(name, **faults), 1)
    never, _ = outcome(name, failing(name, ("east", "south", "target")), 1)
    assert torch.equal(without, never)


@pytest.mark.parametrize("name", ONE_MODEL)
@pytest.mark.parametrize("quorum", [0, 1])
def test_a_round_without_any_source_keeps_the_state_unless_the_target_continues_alone(name, quorum) -> None:
    seen = []

    def judge(theta):
        seen.append(theta.clone())
        return {}

    theta, record = outcome(name, failing(name, away={2: ["sources"]}, quorum=quorum), 3, judge, hospitals.live_theta)
    moved = not torch.equal(seen[1], seen[0])
    assert moved == (name in NEEDS_NO_SOURCE or (quorum == 0 and name in GOES_ON_ALONE))
    lost = {m["round"] for m in record.metrics if m.get("lost")}
    assert lost == ({2} if quorum and name not in NEEDS_NO_SOURCE else set())
    assert torch.isfinite(theta).all() and not torch.equal(theta, seen[1])


@pytest.mark.parametrize("name", METHODS)
def test_answers_of_the_target_that_are_lost_after_its_work_leave_a_sound_state(name) -> None:
    faults = {"lost": {"every": {"up": 0.2}}, "spare": ["sources"]}
    theta, record = outcome(name, failing(name, seed=4, **faults))
    again, _ = outcome(name, failing(name, seed=4, **faults))
    assert torch.equal(theta, again)
    assert torch.isfinite(theta).all() and not torch.equal(theta, hospitals.theta())
    lost = [a["why"].endswith(" up") and a["client"] == "target" for a in record.absences]
    assert all(lost) and bool(lost) == (name not in NEEDS_NO_TARGET)


@pytest.mark.parametrize("name", METHODS)
def test_a_source_that_was_absent_takes_part_again(name) -> None:
    server = failing(name, away={1: ["north"], 2: ["east"]})
    _, record = outcome(name, server, 4)
    for client in ("north", "east"):
        asked = {line["round"] for line in record.ledger if line["to"] == client}
        assert asked == set() or {3, 4} <= asked


def test_one_process_a_hospital_fails_just_the_same() -> None:
    names = ("north", "east", "target")
    given = {"absent": 0.2, "lost": {"weights": 0.2, "update": {"up": 0.2}}, "spare": ["target"]}
    faults = Faults.model_validate(given)
    apart = hospitals.processes(names)
    for name in ("gp", "fedavg"):
        server = unreliable_server(apart, faults, SEED)
        theta, record = run(REGISTRY[name](), server, hospitals.theta(), 3, hospitals.no_judge)
        together = unreliable_server(hospitals.in_process(names), faults, SEED)
        other, other_record = run(REGISTRY[name](), together, hospitals.theta(), 3, hospitals.no_judge)
        assert torch.equal(theta, other)
        assert record.ledger == other_record.ledger
        assert record.absences == other_record.absences != []
    apart.close()


def test_the_known_methods_are_registered() -> None:
    assert set(METHODS) >= NEEDS_NO_TARGET | NEEDS_NO_SOURCE | OFFLINE | GOES_ON_ALONE
