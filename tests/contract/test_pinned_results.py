"""Results of every method and its variants, and names of steps, are as they were pinned (tests/support/pins.py)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest
import torch

import fdamed.classical.messages
import fdamed.federation.privacy_budget
import fdamed.federation.secure_sums.client_steps
import fdamed.methods
import fdamed.theory.survey_client  # noqa: F401
from fdamed.federation.client import STEPS as DEFINED
from fdamed.federation.method import REGISTRY, describe
from fdamed.federation.runner import run
from fdamed.federation.storage.checkpoint import Record
from fdamed.methods.fedavg import FedAvg
from fdamed.pipeline.phases import join
from tests.contract.test_variants import OPEN, VARIANTS
from tests.support import federation as hospitals
from tests.support import pins
from tests.support.federation import clients_of, registered, suited

ROUNDS = 3
REACHED = {
    "kd3a": {"gate_begin": 0.5, "gate_end": 0.55},  # after three rounds nobody is 0.9 sure, and the vote is empty
    "fedgtst": {"guide": "full"},
}
"""What variants of these two are built on: with their defaults, other choices have no effect in a small run."""

CHAOTIC = {"fada target_pace=1.0", "fedrf_tca width=25"}
"""A last bit grows beyond three digits within three rounds, so numbers differ between CPUs with the same instructions:
the ledger, names and shapes are pinned."""


@dataclass(frozen=True)
class Case:
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    auxiliary: bool = False
    shared: bool = False
    """Whether the auxiliary heads are a part of the network."""
    share: float = 1.0
    sgd: bool = False
    epochs: int = 1
    warmup: int = 0
    """Rounds of FedAvg before the method's own."""
    alive: bool = False
    """Start with features above zero: those of the usual start are zero at the target, and a head learns nothing."""


def cases() -> dict[str, Case]:
    """Defaults, other conditions, another value of each option of each method, and the variants of test_variants.py."""
    out: dict[str, Case] = {}
    for name, entry in describe().items():
        needed = asdict(registered(name))
        out[name] = Case(name, needed)
        out[f"{name} with private auxiliary heads"] = Case(name, needed, auxiliary=True)
        out[f"{name} with shared auxiliary heads"] = Case(name, needed, auxiliary=True, shared=True)
        out[f"{name} with one source a round"] = Case(name, needed, share=0.4)
        out[f"{name} with sgd"] = Case(name, sgd=True)
        out[f"{name} with two epochs"] = Case(name, needed, epochs=2)
        for option, about in entry["options"].items():
            for value in others(about):
                options = needed | REACHED.get(name, {}) | {option: value}
                out[f"{name} {option}={value}"] = Case(name, options, epochs=2 if option == "stragglers" else 1)
        if entry["asks_target"]:
            out[f"{name} warmup=1"] = Case(name, needed, warmup=1)
        for value in entry["options"].get("optimizer", {}).get("choices", ()):
            case = Case(name, {"optimizer": value}, alive=True)
            out[f"{name} with live features optimizer={value}"] = case
    for variant, options in VARIANTS.items():
        out[f"variant {variant}"] = Case(variant.partition("-")[0], options)
    return out


def others(about: dict[str, Any]) -> list[Any]:
    """Values of an option other than its default: the other choices, or a number whose effect can be seen."""
    kind, default = about["type"], about["default"]
    if kind in ("choice", "bool"):
        return [value for value in about.get("choices", (False, True)) if value != default]
    if kind == "int":
        return [max(1, default // 4) if default else 2]
    if kind == "float":
        weak = 0.0 < default < 1.0 and "high" not in about
        return [1.0 if weak else default / 2 or 0.5]
    return []


CASES = cases()
STEPS = {name: step for name, step in DEFINED.items() if step.run.__module__.startswith("fdamed.")}


def results(case: Case) -> pins.Found:
    method = REGISTRY[case.method](**case.options)
    conditions = suited(case.method)
    server = hospitals.in_process(**conditions, auxiliary=case.auxiliary, share=case.shared)
    for client in clients_of(server).values():
        client.release = OPEN
        changed = {"optimizer": "sgd" if case.sgd or conditions["sgd"] else "adam", "epochs": case.epochs}
        client.recipe = client.recipe.model_copy(update=changed)
    if case.share < 1.0:
        server.invite(case.share, 3)
    theta, record = hospitals.live_theta() if case.alive else hospitals.theta(case.shared), Record()
    if case.warmup:
        theta, record = run(FedAvg(), server, theta, case.warmup, hospitals.no_judge)
    theta, more = run(method, server, theta, ROUNDS, hospitals.no_judge, done=case.warmup)
    join(record, more, 0)
    kept = {f"{p}/{k}": s.memory[k] for p, s in clients_of(server).items() for k in method.keeps if k in s.memory}
    server.close()
    found = {
        "weights": pins.of_tensors({"": theta}),
        "ledger": pins.of_ledger(record.ledger),
        "metrics": pins.of_metrics(record.metrics),
    }
    return found | ({"kept": pins.of_tensors(kept)} if kept else {})


@pytest.mark.parametrize("case", CASES)
def test_results_are_as_pinned(case: str) -> None:
    torch.set_num_threads(1)
    pins.check("methods", case, results(CASES[case]), **({"close": math.inf} if case in CHAOTIC else {}))


def test_every_pin_is_tested() -> None:
    pins.check_complete("methods", CASES)
    pins.check_complete("steps", STEPS)


@pytest.mark.parametrize("name", STEPS)
def test_the_names_of_steps_and_of_their_random_streams_never_change(name: str) -> None:
    """Both are part of random numbers, wherever a function moves: a name that changes, changes results."""
    pins.check("steps", name, {"draws": STEPS[name].draws})


def test_steps_may_move_but_nothing_else_of_the_ledger() -> None:
    line = {"round": 1, "from": "server", "to": "east", "step": "train_locally", "kind": "weights", "bytes": 8}
    moved = line | {"step": "federation.steps.train_locally"}
    assert pins.of_ledger([line]) == pins.of_ledger([moved]) != pins.of_ledger([line | {"bytes": 9}])
