"""The heads' loss is sent once a round is done, apart from the task's."""

from __future__ import annotations

import pytest

from fdamed.federation.absences import DroppedOut
from fdamed.federation.auxiliary_loss import Ask, log_auxiliary_loss, remember, report
from fdamed.federation.runner import run
from fdamed.methods.fedavg import FedAvg
from fdamed.methods.target_only import TargetOnly
from tests.support import federation as hospitals
from tests.support.federation import Altered, clients_of

LOSSES = {"north": 1.0, "east": 2.0, "south": 4.0}


def trained(client, round: int, loss: float) -> None:
    client.round = round
    remember(client, loss)


def asked(server, losses: dict[str, float]) -> float | None:
    server.begin(1, 1)
    for name, loss in losses.items():
        trained(clients_of(server)[name], 1, loss)
        server.heard.add(name)
    log_auxiliary_loss(server)
    return server.notes.get("train/auxiliary_loss")


def test_it_is_a_mean_by_images_over_the_sources_that_trained() -> None:
    server = hospitals.in_process(auxiliary=True, share=True)
    assert asked(server, LOSSES) == pytest.approx((14 * 1.0 + 9 * 2.0 + 11 * 4.0) / 34)
    assert asked(server, {"north": 3.0}) == 3.0


def test_a_source_without_any_label_for_a_head_does_not_count() -> None:
    server = hospitals.in_process(auxiliary=True, share=True)
    clients_of(server)["south"].data.auxiliary["sex"][:] = -1
    assert asked(server, LOSSES) == pytest.approx((14 * 1.0 + 9 * 2.0) / 23)


def test_a_lost_report_costs_neither_the_round_nor_the_others_loss() -> None:
    server = hospitals.in_process(auxiliary=True, share=True)
    deliver = server.transport.deliver

    def unreliable(client, step, nth, msg):
        if client == "east" and step is report:
            raise DroppedOut(client, "lost")
        return deliver(client, step, nth, msg)

    server.transport = Altered(server.transport, unreliable)
    server.quorum = 3
    _, record = run(FedAvg(), server, hospitals.theta(True), 2, hospitals.no_judge, after=log_auxiliary_loss)
    assert all("lost" not in line and line["train/auxiliary_loss"] > 0.0 for line in record.metrics)


@pytest.mark.parametrize("share", [False, True], ids=["private", "shared"])
def test_it_is_reported_once_and_only_sources_that_took_part_are_asked(share: bool) -> None:
    server = hospitals.in_process(auxiliary=True, share=share)
    server.invite(0.4, 3)
    _, record = run(FedAvg(), server, hospitals.theta(share), 3, hospitals.no_judge, after=log_auxiliary_loss)
    for line in (1, 2, 3):
        step = {
            s: {x["to"] for x in record.ledger if x["round"] == line and x["step"] == s and x["from"] == "server"}
            for s in ("train_locally", "report_auxiliary_loss")
        }
        assert step["train_locally"] == step["report_auxiliary_loss"] and len(step["train_locally"]) == 1
    north = clients_of(server)["north"]
    trained(north, 3, 1.0)
    assert (report.run(north, Ask(round=3)).n, report.run(north, Ask(round=3)).n) == (14, 0)


def test_a_loss_whose_report_was_lost_is_not_that_of_a_later_round() -> None:
    north = clients_of(hospitals.in_process(auxiliary=True, share=True))["north"]
    trained(north, 3, 1.0)
    assert report.run(north, Ask(round=4)).n == 0
    trained(north, 4, 2.0)
    assert report.run(north, Ask(round=4)).loss == 2.0


def test_a_method_that_never_asks_the_sources_does_not_ask_them_for_it_either() -> None:
    server = hospitals.in_process(auxiliary=True, share=True)
    _, record = run(TargetOnly(), server, hospitals.theta(True), 1, hospitals.no_judge, after=log_auxiliary_loss)
    assert {line["step"] for line in record.ledger} == {"compute_update"}


@pytest.mark.parametrize("share", [False, True], ids=["private", "shared"])
def test_the_tasks_loss_is_that_of_the_main_head_alone(share: bool) -> None:
    """With alpha = 0 the heads change nothing but their own loss."""
    plain, other = hospitals.in_process(), hospitals.in_process(auxiliary=True, share=share)
    for client in clients_of(other).values():
        client.auxiliary = client.auxiliary and client.auxiliary.model_copy(update={"alpha": 0.0})
    _, bare = run(FedAvg(), plain, hospitals.theta(), 2, hospitals.no_judge)
    _, with_heads = run(FedAvg(), other, hospitals.theta(share), 2, hospitals.no_judge, after=log_auxiliary_loss)
    losses = [[line["train/loss"] for line in record.metrics] for record in (bare, with_heads)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert all(line["train/auxiliary_loss"] > 0.3 for line in with_heads.metrics)
