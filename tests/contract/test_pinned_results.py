"""The results of every method and its variants are as they were pinned (tests/support/pins.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import fdamed.methods  # noqa: F401
from fdamed.federation.checkpoint import Record
from fdamed.federation.method import REGISTRY, describe
from fdamed.federation.runner import run
from fdamed.methods.fedavg import FedAvg
from fdamed.pipeline.phases import join
from tests.contract.test_every_method import WITH_ADAM
from tests.contract.test_variants import OPEN, VARIANTS
from tests.support import federation as hospitals
from tests.support import pins
from tests.support.federation import clients_of

ROUNDS = 3
REACHED = {
    "kd3a": {"gate_begin": 0.5, "gate_end": 0.55},  # after three rounds nobody is 0.9 sure, and the vote is empty
    "fedgtst": {"guide": "full"},
}
"""What variants are built on, so that the code they choose has an effect in a small run."""
NUMBERS: dict[str, list[dict[str, Any]]] = {
    "fdan": [{"frequencies": 16}],
    "fedda": [{"beta": 0.25}],
    "fedda_auto": [{"pace": 0.5}],
    "fedgp": [{"beta": 0.25}],
    "fedgp_auto": [{"pace": 0.5}],
    "fedgtst": [{"cap": 0.5}],
    "fediir": [{"weight": 1.0}],
    "fedprox": [{"mu": 1.0}, {"stragglers": 0.5}],
    "fedrf_tca": [{"T_C": 20}, {"local_steps": 2}],
    "fedsr": [{"local_steps": 2}],
    "gp": [{"beta": 0.25}],
    "kd3a": [{"lr_end": 0.005}],
    "scaffold": [{"server_lr": 0.5}],
    "target_only": [{"server_step": 0.5}],
}
"""Options that are numbers and switch something on."""
WARMED = ("fedda", "fedda_auto", "fedgp", "fedgp_auto", "gp", "target_only")


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
    """Defaults, other conditions, every choice and switch of every method, and the variants of test_variants.py."""
    out: dict[str, Case] = {}
    for name, entry in describe().items():
        needed = WITH_ADAM.get(name, {})
        out[name] = Case(name, needed)
        out[f"{name} with private auxiliary heads"] = Case(name, needed, auxiliary=True)
        out[f"{name} with shared auxiliary heads"] = Case(name, needed, auxiliary=True, shared=True)
        out[f"{name} with one source a round"] = Case(name, needed, share=0.4)
        out[f"{name} with sgd"] = Case(name, sgd=True)
        out[f"{name} with two epochs"] = Case(name, needed, epochs=2)
        changes = [
            {option: value}
            for option, about in entry["options"].items()
            for value in (about["choices"] if about["type"] == "choice" else (False, True))
            if about["type"] in ("choice", "bool") and value != about["default"]
        ]
        for change in changes + NUMBERS.get(name, []):
            told = ",".join(f"{k}={v}" for k, v in change.items())
            options = needed | REACHED.get(name, {}) | change
            out[f"{name} {told}"] = Case(name, options, epochs=2 if "stragglers" in change else 1)
    for name in WARMED:
        out[f"{name} warmup=1"] = Case(name, warmup=1)
    out["fedrf_tca after one round of fedavg"] = Case("fedrf_tca", warmup=1)
    for name in ("finetune_head", "finetune_whole", "finetune_offline"):
        for optimizer in ("kept", "fresh"):
            case = Case(name, {"optimizer": optimizer}, alive=True)
            out[f"{name} with live features optimizer={optimizer}"] = case
    for variant, options in VARIANTS.items():
        out[f"variant {variant}"] = Case(variant.partition("-")[0], options)
    return out


CASES = cases()


@cache
def alive() -> Tensor:
    """A start whose features are above zero at every hospital, also without training."""
    model = hospitals.model()
    with torch.no_grad():
        model.module.hidden.bias.fill_(0.5)
    return model.read()


def results(case: Case) -> pins.Found:
    method = REGISTRY[case.method](**case.options)
    server = hospitals.in_process(labels=method.target_labels, auxiliary=case.auxiliary, share=case.shared)
    for site in clients_of(server).values():
        site.release = OPEN
        changed = {"optimizer": "sgd" if case.sgd else "adam", "epochs": case.epochs}
        site.recipe = site.recipe.model_copy(update=changed)
    if case.share < 1.0:
        server.invite(case.share, 3)
    theta, record = alive() if case.alive else hospitals.theta(case.shared), Record()
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
    pins.check("methods", case, results(CASES[case]))


def test_every_pin_is_tested() -> None:
    pins.check_complete("methods", CASES)


def test_steps_may_move_but_nothing_else_of_the_ledger() -> None:
    line = {"round": 1, "from": "server", "to": "east", "step": "train_locally", "kind": "weights", "bytes": 8}
    moved = line | {"step": "federation.steps.train_locally"}
    assert pins.of_ledger([line]) == pins.of_ledger([moved]) != pins.of_ledger([line | {"bytes": 9}])
