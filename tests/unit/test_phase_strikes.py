"""Strikes of a run's first phase count in its second."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fdamed.config.study import Train
from fdamed.methods.fedavg import FedAvg
from fdamed.pipeline import phases
from tests.support import federation as hospitals
from tests.unit.test_bad_updates import offending


def test_quarantine_counts_the_rounds_of_all_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """North is rejected in every round: twice in the first phase, once in the second, and then it is not asked."""
    monkeypatch.setattr(phases, "network", lambda *_: offending("nan"))
    monkeypatch.setattr(phases, "judge", lambda *_: hospitals.no_judge)
    for name in ("check_policies", "predicting", "own_path", "checkpoints"):
        monkeypatch.setattr(phases, name, lambda *_: None)
    config = SimpleNamespace(split=SimpleNamespace(clients=hospitals.NAMES), differential_of=lambda spec: None)
    model = hospitals.model()
    job = SimpleNamespace(config=config, run="r", target="target", seed=0, threads=1, model=model, places=None)
    plan = tuple(phases.Phase(name, None, FedAvg(), Train(rounds=2)) for name in ("", "then"))
    _, record, lengths, _ = phases.train(job, plan, hospitals.theta())
    assert lengths == [2, 2]
    found = [(a["round"], a["client"], a["reason"]) for a in record.absences]
    assert found == [(r, "north", "not finite") for r in (1, 2, 3)] + [(4, "north", "quarantined")]
