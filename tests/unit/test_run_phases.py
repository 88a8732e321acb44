"""What a later phase of a run receives from the earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fdamed.config.privacy import Privacy
from fdamed.config.runs import Auxiliary, Run
from fdamed.config.study import Train
from fdamed.federation.auxiliary_loss import log_auxiliary_loss
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.methods.fedavg import FedAvg
from fdamed.methods.gp import GP
from fdamed.models.flat import vector_from, without_heads
from fdamed.pipeline import phases
from fdamed.pipeline.selection import StudyRun
from tests.support import federation as hospitals
from tests.support.federation import clients_of
from tests.unit.test_bad_updates import offending


def trained(
    monkeypatch: pytest.MonkeyPatch, folder_of: Path, plan: tuple, server: Callable[[], Server], share: bool = False
) -> tuple:
    """`phases.train` on small clients, built anew for each phase."""
    monkeypatch.setattr(phases, "build_server", lambda *_: server())
    monkeypatch.setattr(phases, "scores_at", lambda server, theta: {})
    kept = SimpleNamespace(behind=set(), kept=lambda client: None, load=lambda *_: None, every=9, save=lambda *_: None)
    kept.check_room = lambda state: None
    monkeypatch.setattr(phases, "checkpoints", lambda *_: kept)
    monkeypatch.setattr(phases, "check_policies", lambda *_: None)
    config = SimpleNamespace(
        privacy=Privacy(), split=SimpleNamespace(clients=hospitals.NAMES), differential_of=lambda spec: None
    )
    one = StudyRun(config, "r", "target", 0, None)
    job = phases.Job(one, 1, hospitals.model(share), {})
    monkeypatch.setattr(phases.Job, "memory", lambda job, folder, client, file: folder_of / client / file)
    monkeypatch.setattr(phases.Job, "named", lambda job, path, client: path)
    return phases.train(job, plan, hospitals.theta(share))


def test_strikes_count_in_all_phases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """North is rejected in every round: twice in the first phase, once in the second, and then it is not asked."""
    for names, rounds in ((("main", "then"), (2, 2)), (("warmup", "main"), (2, 4))):
        plan = tuple(phases.Phase(n, Run(), FedAvg(), Train(rounds=r)) for n, r in zip(names, rounds, strict=True))
        _, record, lengths, _ = trained(monkeypatch, tmp_path, plan, lambda: offending("nan"))
        assert lengths == [2, 2] and [line["round"] for line in record.metrics] == [1, 2, 3, 4]
        found = [(a["round"], a["client"], a["reason"]) for a in record.absences]
        assert found == [(r, "north", "not finite") for r in (1, 2, 3)] + [(4, "north", "quarantined")]


@pytest.mark.parametrize("share", [False, True], ids=["private", "shared"])
def test_a_warm_up_and_its_run_are_one_run(share: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Clients that are built anew, and clients that stay, give the same bits: auxiliary heads go on, too."""
    spec = Run(auxiliary=Auxiliary(heads=("sex",), share=share))
    plan = tuple(
        phases.Phase(name, spec, method, Train(rounds=rounds))
        for name, method, rounds in (("warmup", FedAvg(), 2), ("main", GP(), 4))
    )
    heads = {"auxiliary": True, "share": share}
    final, record, lengths, _ = trained(monkeypatch, tmp_path, plan, lambda: hospitals.in_process(**heads), share)
    server, asked = hospitals.in_process(**heads), {"after": log_auxiliary_loss}
    average, expected = run(FedAvg(), server, hospitals.theta(share), 2, hospitals.no_judge, **asked)
    theta, more = run(GP(), server, average, 4, hospitals.no_judge, done=2, **asked)
    phases.join(expected, more, 0)
    bare = without_heads({"x": theta}, server.layout)["x"]
    assert lengths == [2, 2] and torch.equal(vector_from(final, hospitals.model().layout), bare)
    assert record.metrics == expected.metrics and record.ledger == expected.ledger


def test_a_client_takes_its_heads_and_its_privacy_account_from_a_warm_up_and_nothing_else(tmp_path: Path) -> None:
    server, checkpoints = hospitals.in_process(), SimpleNamespace(kept=lambda client: None)
    kept = {"heads": torch.ones(2), "privacy.spent": torch.ones(1, 3)}
    clients_of(server)["north"].memory = kept | {"scaffold.c": torch.ones(4)}
    job = SimpleNamespace(memory=lambda _, client, file: tmp_path / client / file, named=lambda path, client: path)
    states = phases.carried_states(job, server, checkpoints)
    assert list(states) == ["north"]
    server.transport.inquire("load", {"east": states["north"]})
    assert clients_of(server)["east"].memory.keys() == kept.keys()
