"""Simulated faults: which clients are hit, what is counted, and what the configuration refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fdamed.config import loader as configfile
from fdamed.config.train import Faults
from fdamed.core.errors import FdamedError
from fdamed.federation.absences import DroppedOut
from fdamed.federation.client import Client, step
from fdamed.federation.messages import Count, message
from fdamed.federation.method import Model, OneModel
from fdamed.federation.privacy_budget import log_costs, report_cost
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.transport.faulty import Faulty, Schedule
from fdamed.methods._shared.local_training import Trained, compute_update, train_locally
from fdamed.methods.fedavg import FedAvg
from fdamed.methods.fedgp import FedGP
from fdamed.methods.fedrf_tca.client import Average, receive_average
from fdamed.methods.finetune import Finetune
from fdamed.methods.target_only import TargetOnly
from fdamed.pipeline.clients import build_server
from tests.support import federation as hospitals
from tests.support.federation import Altered, clients_of, unreliable_server
from tests.unit.test_config import ROOT, changed, refused

SOURCES = ("east", "north", "south")
TRAIN = train_locally.name
P = hospitals.model().layout.size


@message
class Times:
    count: Count


@step("tests.unit.test_unreliable.remember")
def remember(client: Client, ask: Times) -> Times:
    """Count the questions that arrived."""
    client.memory["times"] = client.memory.get("times", torch.zeros(1)) + ask.count
    return Times(count=int(client.memory["times"]))


def unreliable(seed: int = 3, quorum: int = 1, **faults: object) -> Server:
    server = unreliable_server(hospitals.in_process(), Faults.model_validate(faults), seed, quorum)
    server.begin(1, 3)
    return server


def schedule(seed: int = 3, **faults: object) -> Schedule:
    return Schedule(Faults.model_validate(faults), "target", seed)


def hits(plan: Schedule, rounds: int = 40) -> set[tuple[int, str]]:
    return {(r, p) for r in range(1, rounds + 1) for p in hospitals.NAMES if plan.absent(r, p)}


def bytes_of(server: Server, **where: str) -> int:
    return server.ledger.total(**where)


# --- the schedule -----------------------------------------------------------------------------------------------------


def test_a_round_and_a_hospital_decide_who_is_absent_and_the_seed_decides_which() -> None:
    first = hits(schedule(absent=0.3))
    assert first == hits(schedule(absent=0.3))
    assert first != hits(schedule(seed=4, absent=0.3))
    assert 30 <= len(first) <= 66  # 160 draws: 48 expected, three standard deviations
    assert {p for _, p in first} == set(hospitals.NAMES)


def test_a_client_that_is_absent_at_a_low_level_is_absent_at_every_higher_one() -> None:
    low, high = hits(schedule(absent=0.2)), hits(schedule(absent=0.6))
    assert low < high
    assert hits(schedule(absent=0.0)) == set()
    assert len(hits(schedule(absent=1.0))) == 160


def test_named_rounds_affect_the_named_clients_even_those_that_random_faults_spare() -> None:
    plan = schedule(away={2: ["north"], 3: ["sources"], 4: ["target"]}, spare=["north", "target"])
    assert hits(plan) == {(2, "north"), (3, "north"), (3, "east"), (3, "south"), (4, "target")}


def test_random_faults_spare_the_clients_that_are_exempt() -> None:
    assert {p for _, p in hits(schedule(absent=1.0, spare=["target", "east"]))} == {"north", "south"}
    assert {p for _, p in hits(schedule(absent=1.0, spare=["sources"]))} == {"target"}


def test_a_message_is_lost_by_what_it_carries_and_where_it_goes() -> None:
    up = schedule(lost={"update": {"up": 1.0}})
    assert up.lost(1, "north", 0, "up", compute_update) == "update"
    assert up.lost(1, "north", 0, "down", compute_update) is None
    assert up.lost(1, "north", 0, "up", train_locally) is None
    assert schedule(lost={"weights": 1.0}).lost(1, "north", 0, "down", compute_update) == "weights"
    step = schedule(lost={compute_update.name: {"up": 1.0}})
    assert step.lost(1, "north", 0, "up", compute_update) == "update"
    assert step.lost(1, "north", 0, "up", train_locally) is None
    assert schedule(lost=1.0).lost(1, "north", 0, "up", train_locally) == "weights"


def test_a_message_without_fields_arrives_or_is_lost_by_the_name_of_its_step() -> None:
    ask = Average(w=torch.ones(2), c=torch.ones(2))
    assert unreliable().ask("north", receive_average, ask) is not None
    for lost in ({"every": {"up": 1.0}}, {receive_average.name: {"up": 1.0}}):
        with pytest.raises(DroppedOut, match=f"message lost: {receive_average.name} up"):
            unreliable(lost=lost).ask("north", receive_average, ask)
    assert schedule(lost={"weights": 1.0}).lost(1, "north", 0, "up", receive_average) is None


def test_the_highest_probability_of_what_a_message_carries_holds() -> None:
    plan = schedule(lost={"count": 0.1, "weights": 0.5})
    alone = schedule(lost={"weights": 0.5})
    lost = [[p.lost(r, "north", 0, "up", train_locally) for r in range(1, 60)] for p in (plan, alone)]
    assert lost[0] == lost[1]
    assert 15 <= sum(k is not None for k in lost[0]) <= 44


def test_each_question_and_direction_has_its_own_draw_but_the_step_has_none() -> None:
    plan = schedule(lost=0.5)

    def drawn(question: int, way: str, step: object) -> list[bool]:
        return [plan.lost(r, "north", question, way, step) is not None for r in range(1, 40)]  # type: ignore[arg-type]

    assert len({tuple(drawn(q, way, train_locally)) for q in (0, 1) for way in ("down", "up")}) == 4
    assert drawn(0, "up", train_locally) == drawn(0, "up", compute_update)


def test_times_are_log_normal_and_a_slow_hospital_is_slow_by_its_factor() -> None:
    times = {"median": 10.0, "spread": 0.5, "slower": {"north": 3.0, "sources": 2.0}}
    plan = schedule(minutes=times, deadline=20.0)
    plain = schedule(minutes={"median": 10.0}, deadline=20.0)
    drawn = torch.tensor([plain.minutes(r, "target", 0) for r in range(400)])
    assert float(drawn.log().mean()) == pytest.approx(2.3026, abs=0.1)  # ln 10
    assert float(drawn.log().std()) == pytest.approx(0.5, abs=0.06)
    assert plan.minutes(1, "north", 0) == pytest.approx(6.0 * plain.minutes(1, "north", 0))
    assert plan.minutes(1, "target", 0) == plain.minutes(1, "target", 0)
    late = [r for r in range(400) if plain.late(r, "target", 0)]
    assert late == [r for r in range(400) if drawn[r] > 20.0]
    assert 15 <= len(late) <= 52  # P(N > ln 2 / 0.5) = 0.083
    assert not schedule(minutes={"median": 9.0, "spread": 0.0}, deadline=9.0).late(1, "target", 0)


# --- what happens to a question ---------------------------------------------------------------------------------------


def test_an_absent_client_is_not_sent_anything() -> None:
    server = unreliable(away={1: ["north"]})
    replies = server.ask_all(server.sources, train_locally, Model(x=hospitals.theta()))
    assert set(replies) == {"east", "south"}
    assert bytes_of(server, receiver="north") == bytes_of(server, sender="north") == 0
    assert server.absences == [
        {"round": 1, "client": "north", "step": TRAIN, "reason": "absent"} | {"why": "absent by schedule"}
    ]
    server.absences.clear()
    server.begin(2, 3)
    assert set(server.ask_all(server.sources, train_locally, Model(x=hospitals.theta()))) == set(SOURCES)


@pytest.mark.parametrize(
    ("faults", "why", "worked", "up"),
    [
        ({"lost": {"count": {"down": 1.0}}}, "message lost: count down", 0, 0),
        ({"lost": {"count": {"up": 1.0}}}, "message lost: count up", 1, 8),
        ({"minutes": {"median": 9.0, "spread": 0.0}, "deadline": 8.0}, "late", 1, 8),
        ({"absent": 1.0}, "absent by schedule", 0, None),
    ],
)
def test_what_the_hospital_did_and_which_bytes_left(faults, why, worked, up) -> None:
    server = unreliable(**faults)
    with pytest.raises(DroppedOut, match=f"north: {why}"):
        server.ask("north", remember, Times(count=1))
    assert [a["why"] for a in server.absences] == [why]
    assert len(clients_of(server)["north"].memory) == worked
    assert bytes_of(server, receiver="north") == (0 if up is None else 8)
    assert bytes_of(server, sender="north") == (up or 0)


def test_an_answer_in_time_is_the_answer() -> None:
    server = unreliable(minutes={"median": 9.0, "spread": 0.0}, deadline=9.0)
    assert server.ask("north", remember, Times(count=1)).count == 1
    assert server.ask("north", remember, Times(count=1)).count == 2
    assert server.absences == []


def test_an_answer_that_is_not_finite_is_still_refused() -> None:
    server = unreliable()
    deliver = server.transport.deliver

    def poisoned(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        return Trained(x=reply.x * float("nan"), n=reply.n, loss=reply.loss)

    server.transport = Altered(server.transport, poisoned)
    with pytest.raises(DroppedOut, match="not finite"):
        server.ask("north", train_locally, Model(x=hospitals.theta()))


def test_the_order_in_which_hospitals_are_asked_changes_nothing() -> None:
    faults = {"absent": 0.3, "lost": 0.3}
    there = []
    for names in (hospitals.NAMES, tuple(reversed(hospitals.NAMES))):
        server = unreliable(**faults)
        found = {}
        for r in range(1, 15):
            server.begin(r, 15)
            for name in names:
                for nth in range(2):
                    try:
                        server.ask(name, remember, Times(count=1))
                        found[r, name, nth] = ""
                    except DroppedOut as absent:
                        found[r, name, nth] = absent.why
        there.append(found)
    assert there[0] == there[1]
    assert len(set(there[0].values())) == 4


def test_methods_that_ask_different_steps_meet_the_same_faults() -> None:
    faults = {"absent": 0.2, "lost": {"update": 0.3, "weights": {"up": 0.3}}, "spare": ["target"]}
    absences = []
    for method in (FedAvg(), FedGP()):
        server = unreliable_server(hospitals.in_process(), Faults.model_validate(faults), 3, quorum=0)
        _, record = run(method, server, hospitals.theta(), 6, hospitals.no_judge)
        absences.append([(a["round"], a["client"], a["why"].partition(":")[0]) for a in record.absences])
    assert absences[0] == absences[1] and len(absences[0]) >= 4


# --- quorum -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("quorum", "lost"), [(0, set()), (1, {3}), (2, {2, 3}), (3, {1, 2, 3})])
def test_with_fewer_sources_than_the_quorum_the_round_is_lost_and_the_state_kept(quorum, lost) -> None:
    faults = {"away": {1: ["north"], 2: ["north", "east"], 3: ["sources"]}}
    server = unreliable_server(hospitals.in_process(), Faults.model_validate(faults), 0, quorum)
    seen = [hospitals.theta()]

    def judge(theta: torch.Tensor) -> dict[str, float | None]:
        seen.append(theta.clone())
        return {}

    _, record = run(FedAvg(), server, hospitals.theta(), 4, judge)
    assert {m["round"] for m in record.metrics if m.get("lost")} == lost
    assert {m["round"] for m in record.metrics if m.get("below_quorum")} == lost
    same = {r for r in range(1, 5) if torch.equal(seen[r], seen[r - 1])}
    assert same == lost | {3}  # FedAvg has nothing to average without a source
    assert len(record.absences) == 6


def test_a_method_that_asks_no_source_needs_no_quorum() -> None:
    server = unreliable_server(hospitals.in_process(), Faults(absent=1.0, spare=("target",)), 0, quorum=3)
    _, record = run(TargetOnly(), server, hospitals.theta(), 2, hospitals.no_judge)
    assert record.absences == [] and not any(m.get("lost") for m in record.metrics)


def test_asking_one_source_on_purpose_is_not_below_the_quorum() -> None:
    server = unreliable(quorum=3)
    assert set(server.ask_all(["north"], train_locally, Model(x=hospitals.theta()))) == {"north"}
    assert server.ask_all([], train_locally, Model(x=hospitals.theta())) == {}


def test_the_quorum_counts_all_sources_of_the_round_not_those_of_one_question() -> None:
    server = unreliable(away={1: ["north", "east"]}, quorum=2)
    ask = Model(x=hospitals.theta())
    assert set(server.ask_all(["south"], train_locally, ask)) == {"south"}
    assert server.ask_all(["north"], train_locally, ask) == {}
    with pytest.raises(DroppedOut, match="1 of 3 sources are left, the quorum is 2"):
        server.ask_all(["east"], train_locally, ask)
    assert server.notes["below_quorum"] == 1.0


def test_a_round_without_its_target_is_lost_and_the_run_continues() -> None:
    server = unreliable_server(hospitals.in_process(), Faults(away={2: ("target",)}), 0)
    _, record = run(Finetune(), server, hospitals.theta(), 3, hospitals.no_judge)
    assert [bool(m.get("lost")) for m in record.metrics] == [False, True, False]
    assert [a["why"] for a in record.absences] == ["absent by schedule"]
    spent = {line["to"] for line in record.ledger if line["round"] == 2}
    assert spent == {"server", *SOURCES}


def test_a_study_in_which_every_round_is_lost_is_not_scored() -> None:
    server = unreliable_server(hospitals.in_process(), Faults(lost={"every": {"up": 1.0}}), 0)
    with pytest.raises(FdamedError, match="every round was lost"):
        run(FedAvg(), server, hospitals.theta(), 2, hospitals.no_judge)


def test_what_the_transport_behind_misses_is_reported_once() -> None:
    server = unreliable()

    def ended(client, step, nth, msg):
        raise DroppedOut(client, "its process ended")

    server.transport = Altered(server.transport, ended)
    with pytest.raises(DroppedOut):
        server.ask("east", train_locally, Model(x=hospitals.theta()))
    assert [(a["round"], a["client"], a["why"]) for a in server.absences] == [(1, "east", "its process ended")]


def test_the_policy_of_the_hospitals_holds_behind_an_unreliable_line() -> None:
    class Nosy(OneModel):
        title, steps = "Nosy", (train_locally,)

    inner = hospitals.in_process()
    for client in clients_of(inner).values():
        client.release = frozenset({"update"})
    with pytest.raises(FdamedError, match="does not release"):
        run(Nosy(), unreliable_server(inner, Faults(), 0), hospitals.theta(), 1, hospitals.no_judge)


# --- the configuration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"absent": 1.5}, "`train.faults.absent`: should be less than or equal to 1"),
        ({"absent": -0.1}, "`train.faults.absent`"),
        ({"absent": float("nan")}, "`train.faults.absent`"),
        ({"lost": {"updte": 0.1}}, "no message has updte; allowed: every, weights, individual, update, statistic"),
        ({"lost": {"federation.steps.trin": 0.1}}, "train_locally"),
        ({"lost": {"update": {"upp": 0.1}}}, "did you mean `up`?"),
        ({"lost": 2}, "`train.faults.lost.every.down`"),
        ({"deadline": 3}, "`minutes` and `deadline` go together"),
        ({"minutes": {"median": 3}}, "`minutes` and `deadline` go together"),
        ({"minutes": {"median": 0}, "deadline": 3}, "`train.faults.minutes.median`"),
        ({"away": {0: ["a"]}}, "`train.faults.away`: a key of it should be greater than or equal to 1"),
        ({"away": {1: ["c"]}}, "names c; allowed: a, b, target, sources"),
        ({"spare": ["c"]}, "names c"),
        ({"minutes": {"median": 1, "slower": {"c": 2}}, "deadline": 3}, "names c"),
        ({"quorum": 2}, "unknown key `train.faults.quorum` (it is now `train.quorum`)"),
        ({"absnt": 0.1}, "did you mean `absent`?"),
    ],
)
def test_each_mistake_in_the_section_is_one_clear_line(given, message) -> None:
    what = refused(changed(train__faults=given))
    assert message in what and "\n" not in what


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"quorum": 2}, "is 2, but 1 of 1 sources take part in a round"),
        ({"quorum": -1}, "`train.quorum`: should be greater than or equal to 0"),
    ],
)
def test_a_quorum_that_no_round_can_have_is_refused(train, message) -> None:
    assert message in refused(changed(**{f"train__{key}": value for key, value in train.items()}))


def test_a_round_with_fewer_participants_than_the_quorum_is_lost() -> None:
    server = hospitals.in_process()
    server.quorum = 2
    server.invite(0.34, 0)
    server.begin(1, 1)
    with pytest.raises(DroppedOut, match="1 of 1 sources are left, the quorum is 2"):
        server.ask_all(server.sources, train_locally, Model(x=hospitals.theta()))


def test_a_sweep_goes_over_faults_as_over_options_and_survives_being_written_down() -> None:
    raw = changed(
        train__faults={"spare": ["target"], "away": {3: ["b"]}},
        runs__gp={"beta": 0.4, "train": {"rounds": 9}, "sweep": {"absent": [0, 0.2], "lost": [0.1]}},
    )
    study = configfile.parse(raw, "x")
    again = configfile.parse(study.model_dump(mode="json"), "x")
    assert again == study
    runs = study.expanded_runs()
    assert list(runs) == ["gp-absent-0-lost-0.1", "gp-absent-0.2-lost-0.1", "fedavg"]
    train = study.train_of(runs["gp-absent-0.2-lost-0.1"])
    assert train.rounds == 9 and runs["gp-absent-0.2-lost-0.1"].options == {"beta": 0.4}
    faults = train.faults
    assert faults is not None
    assert (faults.absent, faults.spare, faults.away) == (0.2, ("target",), {3: ("b",)})
    assert faults.lost["every"].up == faults.lost["every"].down == 0.1
    assert study.train_of(runs["fedavg"]).faults.absent == 0.0


def test_a_swept_probability_is_checked_too() -> None:
    assert "less than or equal to 1" in refused(changed(runs__gp={"sweep": {"absent": [0.5, 2]}}))


def test_a_run_can_have_a_reliable_network_in_an_unreliable_study() -> None:
    raw = changed(train__faults={"absent": 0.5}, runs__gp={"train": {"faults": None}})
    study = configfile.parse(raw, "x")
    assert study.train_of(study.runs["gp"]).faults is None
    assert study.train_of(study.runs["fedavg"]).faults is not None


@pytest.mark.parametrize("given", [None, {"absent": 0.5}])
def test_the_federate_stage_puts_the_faults_before_its_network(given, monkeypatch) -> None:
    raw = changed(**({"train__faults": given} if given else {}))
    study = configfile.parse(raw, "x")
    inner = hospitals.in_process().transport
    monkeypatch.setattr("fdamed.pipeline.clients.transport", lambda *_, **__: inner)
    monkeypatch.setattr("fdamed.pipeline.clients.declare", lambda *_: None)
    made = build_server(study, study.expanded_runs()["fedavg"], FedAvg(), "a", 8, hospitals.model(), 1, Path)
    if given is None:
        assert made.transport is inner
    else:
        assert isinstance(made.transport, Faulty)
        assert made.transport.schedule == Schedule(Faults(absent=0.5), "a", 8)


@pytest.mark.parametrize("path", sorted((ROOT / "config" / "faults").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_overlay_can_be_laid_over_the_cohorts(path: Path) -> None:
    for cohort in ("config", "chexpert", "mimic_phantom", "midrc"):
        alone = configfile.load(ROOT / "config" / f"{cohort}.yaml")
        both = configfile.load(ROOT / "config" / f"{cohort}.yaml", path)
        assert set(alone.expanded_runs()) <= set(both.expanded_runs())
        faulty = [r for r in both.expanded_runs().values() if both.train_of(r).faults]
        assert len(faulty) >= 2


def test_a_lost_account_of_privacy_takes_no_quorum_from_a_round_that_was_good() -> None:
    class CostsAreLost(Schedule):
        def lost(self, round, client, question, way, step):
            return "scalar" if step is report_cost else None

    server = unreliable(quorum=3)
    server.transport.schedule = CostsAreLost(Faults(), "target", 3)
    assert len(server.ask_all(server.sources, train_locally, Model(x=hospitals.theta()))) == 3
    log_costs(server)
    assert "below_quorum" not in server.notes
    assert {a["client"] for a in server.absences if a["step"] == report_cost.name} == set(SOURCES)
