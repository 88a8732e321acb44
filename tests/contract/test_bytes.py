"""Communication as a result: bytes of a round are those of the formulas, and do not grow with the number of patients.

M is a model in bytes, K the number of sources; a number of images, a loss or another single number is 8 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import fdamed.methods  # noqa: F401
from fdamed.data.loader import Labeled, Unlabeled
from fdamed.federation.method import REGISTRY
from fdamed.federation.runner import run
from fdamed.federation.server import SERVER, Server
from tests.contract.test_variants import SENDING, together, variant
from tests.support import federation as hospitals
from tests.support.federation import clients_of, registered, suited

METHODS = sorted(REGISTRY)
UNIT = Path(__file__).resolve().parents[1] / "unit"
K, M = 3, 4 * hospitals.model().layout.size
ROUNDS = 2
PER_SAMPLE = {"features"}
"""Kinds of which there is more where there are more patients."""
PER_STEP = {
    "feature_exchange.send_features",
    "feature_exchange.invariant.send_features",
    "feature_exchange.receive_gradients",
}
"""Steps that are asked once a batch, so more often where there are more patients: those of the published wires."""

TRAINED, MOVED = M + 2 * 8, M + 3 * 8
"""A model with its number of images and its loss; an update with these and its nominal step."""
COMPARED = M + 6 * 8 + 3 * 8 * K
"""The target's update, six numbers, and three for each source."""
DIRECTIONS = M + K * M + 8 * K + 8
"""The model, a direction and a norm for each source, and the pace."""
P = 4 * hospitals.model().layout.trainable
"""The trainable parameters in bytes: what a control variate has."""
ENCODER = 4 * 2 * 4 * (4 + 1)
"""FedSR's linear layer from 4 features to 2 x 4 numbers."""
HEAD = 4 * 2 * (4 + 1)
"""The gradient of a linear head of 4 features and 2 classes, with its biases."""
BOTH = {"sources": (M, MOVED), "target": (M, MOVED)}
AUTO = {"sources": (M + 8, MOVED), "target": (DIRECTIONS, COMPARED)}
ALONE = {"target": (M, TRAINED)}
D, CLASSES = 4, 2
"""Features of the test network, and classes."""

Sides = dict[str, tuple[int, int]]


def perceptron(*sizes: int) -> int:
    """Bytes of linear layers of these widths."""
    return 4 * sum((a + 1) * b for a, b in pairwise(sizes))


def by_round(one: Callable[[bool], Sides]) -> list[Sides]:
    """What a round costs, given whether it is the first."""
    return [one(number == 0) for number in range(ROUNDS)]


def fdann(first: bool) -> Sides:
    """2 (K + 1) (M + 4 P_DI): every side sends its copy of DI, and is sent the average from the second round on."""
    di = perceptron(D, 256, 256, 1)
    side = (M + 4 * 8 + (0 if first else di), M + di + 2 * 8)
    return {"sources": side, "target": side}


def fdan(first: bool) -> Sides:
    """2 (K + 1) M and 40 F for a mean, which the target is sent from the second round on; F = 64."""
    mean = 40 * 64
    down, up = M + 4 * 8, M + mean + 3 * 8
    return {"sources": (down + mean, up), "target": (down + (0 if first else mean), up)}


def fada(first: bool) -> Sides:
    """III: 2 K M, (K + 1) M for the attention, 2 M for the target and M to settle it; branches M_D, DI on half of D."""
    m_d, di = 2 * perceptron(D, D // 2) + 4 * (4 * D // 2) + perceptron(D // 2, CLASSES), perceptron(D // 2, 2, 1)
    down = M + 3 * 8 + 4 * 8 + (0 if first else m_d + di)
    attention, settle = (K + 1) * (M + 2 * 8), M + m_d + 8
    running = 4 * (2 * 8 + 4 * D // 2)
    return {
        "sources": (down, M + m_d + di + 3 * 8),
        "target": (down + attention + settle, M + di + 3 * 8 + (K + 1) * 8 + running),
    }


def kd3a(first: bool) -> Sides:
    """(3 K + 1) M, and M more for a target that does not have h yet; 2 K + 1 and K + 1 weights and gains."""
    down = 8 + K * M + 4 * 8 + 8 * (2 * K + 1) + (M if first else 0)
    return {
        "sources": (M + 2 * 8, M + 2 * 8),
        "target": (down, 8 + M + 4 * 8 + 8 * (K + 1) + (8 if first else 0)),
    }


def fedrf_tca(first: bool) -> Sides:
    """Setting I, N = 500, m = 100: 4 2N (2 K) of means down, W and C both ways; M once, the common start."""
    mean, w, c = 4 * 2 * 500, 4 * 2 * 500 * 100, perceptron(100, 100, 100, CLASSES)
    down, up = 3 * 8 + 10 * 8 + w + c + (M + 2 * 8 if first else 0), mean + 4 * 8 + w + (8 if first else 0)
    return {"sources": (down + mean, up + c), "target": (down + K * mean, up)}


FORMULAS: dict[str, list[Sides]] = {
    "fada": by_round(fada),
    "fdan": by_round(fdan),
    "fdann": by_round(fdann),
    "fedavg": [{"sources": (M, TRAINED)}] * ROUNDS,
    "fedda": [BOTH] * ROUNDS,
    "fedda_auto": [AUTO] * ROUNDS,
    "fedgp": [BOTH] * ROUNDS,
    "fedgp_auto": [AUTO] * ROUNDS,
    "fedprox": [{"sources": (M + 2 * 8, TRAINED)}] * ROUNDS,
    "fedsr": [{"sources": (M + ENCODER + 5 * 8, TRAINED + ENCODER)}] * ROUNDS,
    "fedgtst": [{"sources": (M + 5 * 8, TRAINED + 8)}] * ROUNDS,
    "fediir": [{"sources": (M + HEAD + 8, TRAINED + HEAD + 8)}] * ROUNDS,
    "fedrf_tca": by_round(fedrf_tca),
    "finetune": [{"sources": (M, TRAINED), **ALONE}] * ROUNDS,
    "finetune_offline": [{"sources": (M, TRAINED)}] * ROUNDS + [ALONE] * ROUNDS,
    "finetune_head": [{"target": (M + 2 * 8, TRAINED)}] * ROUNDS,
    "finetune_whole": [{"target": (M + 2 * 8, TRAINED)}] * ROUNDS,
    "gp": [BOTH] * ROUNDS,
    "kd3a": by_round(kd3a),
    "oracle": [ALONE] * ROUNDS,
    "scaffold": [{"sources": (M + P + 3 * 8, TRAINED + P)}] * ROUNDS,
    "target_only": [{"target": (M, MOVED)}] * ROUNDS,
}
"""Method -> for each round, who gets and sends how many bytes: (down, up) for each source and for the target."""


def ledger(name: str, server: Server) -> list[dict]:
    return run(registered(name), server, hospitals.theta(), ROUNDS, hospitals.no_judge)[1].ledger


def hospitals_of(name: str) -> Server:
    return hospitals.in_process(**suited(name))


def doubled(server: Server) -> Server:
    """Twice as many patients in every hospital."""
    for client in clients_of(server).values():
        data = client.data
        if isinstance(data, Labeled):
            twice = {k: np.concatenate([v, v]) for k, v in data.auxiliary.items()}
            y = np.concatenate([data.y, data.y])
            client.data = Labeled(np.concatenate([data.images, data.images]), y, twice)
        else:
            client.data = Unlabeled(np.concatenate([data.images, data.images]))
    return server


def four_each(server: Server) -> Server:
    """One whole batch of patients in every hospital."""
    for client in clients_of(server).values():
        data = client.data
        if isinstance(data, Labeled):
            client.data = Labeled(data.images[:4], data.y[:4], {k: v[:4] for k, v in data.auxiliary.items()})
        else:
            client.data = Unlabeled(data.images[:4])
    return server


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_bytes_of_every_round_are_those_of_the_formula(name) -> None:
    spent: dict[tuple[int, str, str], int] = {}
    for line in ledger(name, hospitals_of(name)):
        key = (line["round"], line["from"], line["to"])
        spent[key] = spent.get(key, 0) + line["bytes"]
    expected = {}
    for number, sides in enumerate(FORMULAS[name], start=1):
        for side, (down, up) in sides.items():
            for client in ("target",) if side == "target" else ("north", "east", "south"):
                expected[number, SERVER, client], expected[number, client, SERVER] = down, up
    assert spent == expected


@pytest.mark.parametrize("name", METHODS)
def test_every_registered_method_has_a_formula_for_its_bytes(name) -> None:
    """Here, or beside its paper as a test with `bytes` or `cost` in its name."""
    path = UNIT / f"test_{name}.py"
    beside = path.is_file() and re.search(
        r"^def test_\w*(bytes|cost)\w*\(", path.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert name in FORMULAS or beside, (
        f"nobody says how many bytes a round of {name} costs: put its formula into FORMULAS of {Path(__file__).name}, "
        f"or a test of it, named test_..._bytes_..., into tests/unit/{path.name}"
    )


def test_no_formula_is_of_a_method_that_is_gone() -> None:
    assert set(FORMULAS) <= set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_twice_the_patients_send_the_same_bytes(name) -> None:
    once = ledger(name, hospitals_of(name))
    assert ledger(name, doubled(hospitals_of(name))) == once
    assert not {line["kind"] for line in once} & PER_SAMPLE


@pytest.mark.parametrize("name", SENDING)
def test_published_wires_grow_with_the_patients_in_features_and_in_their_steps_alone(name) -> None:
    def spent(server: Server) -> dict[tuple[str, str, str, str], tuple[int, int]]:
        lines = run(variant(name), server, hospitals.theta(), 1, hospitals.no_judge)[1].ledger
        return {(ln["from"], ln["to"], ln["step"], ln["kind"]): (ln["bytes"], ln["messages"]) for ln in lines}

    once, twice = spent(four_each(together())), spent(doubled(four_each(together())))
    assert once.keys() == twice.keys()
    assert {kind for _, _, step, kind in once if step not in PER_STEP} & PER_SAMPLE == set()
    assert {kind for _, _, step, kind in once if step in PER_STEP} >= PER_SAMPLE
    for key, (n, messages) in once.items():
        factor = 2 if key[2] in PER_STEP else 1
        assert twice[key] == (factor * n, factor * messages)
