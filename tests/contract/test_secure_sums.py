"""Every method that needs only sums, with masks: the plain result within the bound, and the same bits everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fdamed.config.loader import parse
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.federation.absences import DroppedOut
from fdamed.federation.method import REGISTRY
from fdamed.federation.runner import run
from fdamed.federation.secure_sums.transport import SecureSums
from fdamed.federation.server import Ledger, Server
from fdamed.federation.storage.checkpoint import Checkpoints
from fdamed.pipeline.hospitals.resident import RELEASED, Hospital
from tests.contract import test_hospitals_apart as network
from tests.support import federation as hospitals
from tests.support.federation import Altered, suited
from tests.support.federation import registered as made
from tests.support.small_studies import write_clients

METHODS = sorted(name for name, cls in REGISTRY.items() if cls.asks_sources and not cls.needs_each)
SUMMED_ONCE = ("fedavg", "fedprox", "fednova", "moon", "scaffold", "fedsr", "fedbn", "finetune_offline")
"""Their state after a round is a mean of answers to the same question as without masks."""
ROUNDS = 3


def secure(server: Server, method: Any) -> Server:
    server.transport = SecureSums(server.transport, server.target, getattr(method, "weighting", "samples"))
    return server


def outcome(name: str, server: Server, rounds: int = ROUNDS, **options: Any) -> Any:
    found = run(made(name), secure(server, made(name)), hospitals.live_theta(), rounds, hospitals.no_judge, **options)
    server.close()
    return found


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return {name: outcome(name, hospitals.in_process(**suited(name))) for name in METHODS}


def test_the_averaging_methods_need_only_sums() -> None:
    assert {"fedavg", "scaffold", "fednova", "fedbn", "fediir", "fdann", "fedda", "adabn"} <= set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_round_of_sums_is_the_plain_round_within_the_stated_bound(name: str) -> None:
    """K / (2 W) * 2**-25 and the rounding of float32; what a second training makes of that is not bounded so."""
    method, start = made(name), hospitals.live_theta()
    states = []
    for server in (hospitals.in_process(**suited(name)), secure(hospitals.in_process(**suited(name)), method)):
        server.begin(1, ROUNDS)
        states.append(method.round(method.start(start), server))
        assert not server.absences
    plain, masked = (method.final(state) for state in states)
    weight, clients = min(hospitals.SIZES.values()) / 4.0, len(hospitals.SIZES)  # FedNova: images by local steps
    bound = clients / (2 * weight) * 2**-25 + 3 * 2**-24 * plain.abs()
    if name not in SUMMED_ONCE:
        bound = bound + 1e-5
    assert bool(((plain - masked).abs() <= bound).all()), float((plain - masked).abs().max())
    assert not torch.equal(plain, start)


@pytest.mark.parametrize("name", METHODS)
def test_the_server_never_gets_a_number_of_one_source(name: str) -> None:
    """No message of a source has a field that is not a count, a key, or masked."""
    server = hospitals.in_process(**suited(name))
    _, record = outcome(name, server)
    sent = {line["kind"] for line in record.ledger if line["from"] in server.sources}
    assert sent == {"masked", "key", "count"}


@pytest.mark.parametrize("name", METHODS)
def test_new_keys_and_any_order_of_clients_give_the_same_bits(name: str, expected: dict[str, Any]) -> None:
    server = hospitals.in_process(tuple(reversed(hospitals.NAMES)), **suited(name))
    theta, record = outcome(name, server)
    assert torch.equal(theta, expected[name][0])
    assert record.ledger == expected[name][1].ledger and record.metrics == expected[name][1].metrics


@pytest.mark.parametrize("name", METHODS)
def test_a_client_rebuilt_at_each_question_gives_the_same_bits(name: str, expected: dict[str, Any]) -> None:
    assert torch.equal(outcome(name, hospitals.rebuilt(**suited(name)))[0], expected[name][0])


def test_one_process_a_client_gives_the_same_bits_and_the_same_ledger() -> None:
    names = ("north", "east", "target")
    options = suited("fedavg")
    apart = hospitals.processes(names, **options)
    plain: Any = apart.transport
    for name in (n for n in METHODS if suited(n) == options):
        for client in names:
            plain.restore(client, b"")
        apart.transport, apart.ledger = plain, Ledger()
        method = made(name)
        theta, record = run(method, secure(apart, method), hospitals.live_theta(), ROUNDS, hospitals.no_judge)
        together = outcome(name, hospitals.in_process(names, **options))
        assert torch.equal(theta, together[0]), name
        assert record.ledger == together[1].ledger, name
    apart.close()


@pytest.mark.parametrize("name", METHODS)
def test_a_run_stopped_after_any_round_ends_with_the_same_bits(
    name: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    class Stop(Exception):
        pass

    for stop in range(1, made(name).length * ROUNDS):
        folder, left = tmp_path / str(stop), [stop + 1]
        keep = Checkpoints(folder, lambda p, r, f=folder: f / p / f"{r:05d}.safetensors", {"threads": 1})

        def judge(theta: Any, left: list[int] = left) -> dict[str, Any]:
            left[0] -= 1
            if not left[0]:
                raise Stop
            return {}

        for judged in (judge, hospitals.no_judge):
            server = secure(hospitals.in_process(**suited(name)), made(name))
            try:
                theta, record = run(made(name), server, hospitals.live_theta(), ROUNDS, judged, keep)
            except Stop:
                continue
        assert torch.equal(theta, expected[name][0]) and record.ledger == expected[name][1].ledger


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("stage", ["keys", "shares", "masked", "unmask"])
def test_a_source_that_drops_out_at_any_stage_loses_no_round(name: str, stage: str) -> None:
    server = hospitals.in_process(**suited(name))
    deliver = server.transport.deliver

    def unreliable(client: str, step: Any, nth: int, msg: Any) -> Any:
        if client == "east" and server.round == 2 and step.name.endswith(stage):
            raise DroppedOut(client, "gone for a round")
        return deliver(client, step, nth, msg)

    server.transport = Altered(server.transport, unreliable)
    theta, record = outcome(name, server)
    assert torch.isfinite(theta).all() and not any(line.get("lost") for line in record.metrics)
    assert {a["client"] for a in record.absences} == (set() if stage == "unmask" else {"east"})


# --- a study, and hospitals apart -------------------------------------------------------------------------------------

POLICY = {"public": True, "secure_aggregation": True}
RUNS = {name: spec for name, spec in network.RUNS.items() if name in METHODS}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = parse(network.raw(tmp_path_factory.mktemp("sums"), privacy=POLICY, runs=RUNS), "test")
    write_clients(config)
    return config


@pytest.fixture(scope="module")
def alone(together: Config) -> Callable[[str], dict[str, bytes]]:
    """The files of a run on one machine, trained once."""
    torch.set_num_threads(1)
    return cache(partial(network.trained, together))


def apart(together: Config, folder: Path, **site: Any) -> tuple[Config, dict[str, Hospital]]:
    lead, found = network.apart(together, folder, **({"privacy": POLICY} | site))
    lead = parse(network.raw(folder / "lead", privacy=POLICY, runs=RUNS) | _sections(lead), "lead")
    return lead, {
        name: Hospital(h.site.model_copy(update={"digest": _digest(lead)}), lead) for name, h in found.items()
    }


def _sections(lead: Config) -> dict[str, Any]:
    return {"train": lead.train.model_dump(), "network": {"host": "localhost"}}


def _digest(lead: Config) -> str:
    return network.study_digest(lead)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fediir", "fednova", "fedbn"])
@pytest.mark.parametrize("how", ["at once", "started again", "asked twice"])
def test_hospitals_apart_give_the_same_bits_and_the_same_ledger(
    name: str, how: str, together: Config, alone: Callable[[str], dict[str, bytes]], tmp_path: Path
) -> None:
    lead, sites = apart(together, tmp_path)

    def meddle(wire: network.Direct, client: str, request: bytes) -> None:
        if how == "asked twice":
            wire.hospitals[client].answer(request)
        if how != "at once":
            wire.hospitals[client] = Hospital(wire.hospitals[client].site, lead)

    wire = network.Direct(sites, meddle)
    network.greeted(lead, wire)
    assert network.trained(lead, name, wire) == alone(name)
    sent = {
        kind
        for line in (sites["north"].folder / RELEASED).read_text().splitlines()
        for kind in json.loads(line)["sent"]
    }
    assert sent == {"count", "key", "masked"}


def test_a_server_killed_at_any_question_resumes_with_the_same_bits(
    together: Config, alone: Callable[[str], dict[str, bytes]], tmp_path: Path
) -> None:
    lead, sites = apart(together, tmp_path)
    left = [0]

    def kill(wire: network.Direct, client: str, request: bytes) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise network.Gone

    wire = network.Direct(sites, kill)
    network.greeted(lead, wire)
    for question in range(5, 200, 4):
        left[0] = question
        try:
            found = network.trained(lead, "scaffold", wire)
        except network.Gone:
            continue
        same = ("theta.safetensors", "ledger.jsonl", "scores")
        assert [found[key] for key in same] == [alone("scaffold")[key] for key in same]
        return
    raise AssertionError("it never ended")


def test_a_hospital_whose_policy_lets_out_sums_refuses_a_study_without_masks(together: Config, tmp_path: Path) -> None:
    policy = network.raw(tmp_path)["privacy"] | {"secure_aggregation": True}
    lead, sites = network.apart(together, tmp_path, privacy=policy)
    sites = {name: Hospital(h.site.model_copy(update={"digest": _digest(lead)}), lead) for name, h in sites.items()}
    wire = network.Direct(sites)
    network.greeted(lead, wire)
    with pytest.raises(FdamedError, match=r"would show the answer of .* alone"):
        network.trained(lead, "fedavg", wire)
