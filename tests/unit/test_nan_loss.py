"""A training that fails in a hospital, at any step: nothing that is not finite is saved or aggregated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fdamed.training.local
from fdamed.core.errors import FdamedError
from fdamed.federation.messages import kinds
from fdamed.federation.runner import run
from fdamed.federation.storage.checkpoint import Checkpoints
from tests.support import federation as hospitals
from tests.support.federation import clients_of

ROUNDS = 3
RULES = ("fedavg", "finetune_offline", "gp", "scaffold", "fedda_auto")


def broken_at(step: int, gradient: bool, monkeypatch) -> None:
    """The loss of this step of the whole run, or only its gradient, is NaN."""
    loss, done = fdamed.training.local.local_loss, [0]

    def broken(*arguments, **options):
        value = loss(*arguments, **options)
        done[0] += 1
        if done[0] != step:
            return value
        if gradient:
            value.register_hook(lambda g: g * float("nan"))
            return value
        return value * float("nan")

    monkeypatch.setattr(fdamed.training.local, "local_loss", broken)


@pytest.mark.parametrize("nth", range(20))
def test_no_tensor_that_is_saved_is_ever_other_than_finite(nth: int, tmp_path: Path, monkeypatch) -> None:
    rng = np.random.default_rng(nth)
    rule = RULES[nth % len(RULES)]
    method = hospitals.registered(rule)
    step = int(rng.integers(1, 25))
    broken_at(step, gradient=bool(nth % 2), monkeypatch=monkeypatch)

    def keep() -> Checkpoints:
        return Checkpoints(tmp_path, lambda p, r: tmp_path / p / f"{r:05d}.safetensors", {}, 1)

    server = hospitals.in_process(auxiliary=nth % 4 == 0)
    try:
        theta, record = run(method, server, hospitals.theta(), ROUNDS, hospitals.no_judge, keep())
    except FdamedError as stopped:
        assert "not finite" in stopped.what and stopped.where.startswith("hospital ")
    else:
        assert torch.isfinite(theta).all()
        assert record.absences and "not finite" in record.absences[0]["why"]
    after = hospitals.in_process(auxiliary=nth % 4 == 0)
    found = keep().load(method, after)
    if found is None:  # stopped in the first round: nothing was saved at all
        assert not list(tmp_path.rglob("*.bin"))
        return
    _, state, _ = found
    saved = [getattr(state, name) for name in kinds(type(state))]
    saved += [v for client in clients_of(after).values() for v in client.memory.values()]
    assert all(torch.isfinite(v).all() for v in saved if isinstance(v, torch.Tensor))
