"""Learning rates that fall by round, and runs that stop when the training loss does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fdamed.config import loader as configfile
from fdamed.config.study import Decay, Recipe
from fdamed.core.errors import FdamedError
from fdamed.federation.client import Client, step
from fdamed.federation.method import Model, OneModel
from fdamed.federation.runner import run, spent
from fdamed.federation.storage.checkpoint import Checkpoints
from fdamed.methods._shared.local_training import Trained
from fdamed.methods.fedavg import FedAvg
from tests.support import federation as hospitals
from tests.support.federation import clients_of
from tests.unit.test_config import changed

LOSSES = [5.0, 4.0, 4.5, 4.0, 4.2, 3.0, 3.5, 3.1, 3.0, 2.0]


def test_the_papers_learning_rate_falls_to_a_tenth_every_fifty_rounds() -> None:
    recipe = Recipe(lr=0.01, decay=Decay(factor=0.1, every=50))
    rates = [recipe.at(round).lr for round in (1, 50, 51, 100, 101)]
    assert rates == pytest.approx([0.01, 0.01, 0.001, 0.001, 0.0001])
    steady = Recipe(lr=0.01)
    assert steady.at(99) is steady


@step("tests.unit.test_schedule.report_rate")
def report_rate(client: Client, ask: Model) -> Trained:
    return Trained(x=ask.x, n=1, loss=client.recipe.lr)


def test_every_question_of_a_round_meets_the_rate_of_that_round() -> None:
    server = hospitals.in_process()
    for client in clients_of(server).values():
        client.recipe = Recipe(lr=0.08, decay=Decay(factor=0.5, every=2))
    rates = []
    for round in range(1, 6):
        server.begin(round, 5)
        rates.append(server.ask("north", report_rate, Model(x=hospitals.theta())).loss)
    assert rates == [0.08, 0.08, 0.04, 0.04, 0.02]
    assert clients_of(server)["north"].recipe.lr == 0.08


def test_a_falling_rate_is_the_same_run_as_one_with_the_rates_set_by_hand() -> None:
    falling, by_hand = hospitals.in_process(), hospitals.in_process()
    for client in clients_of(falling).values():
        client.recipe = Recipe(lr=0.02, batch=4, decay=Decay(factor=0.1, every=1))
    state, other = Model(x=hospitals.theta()), Model(x=hospitals.theta())
    for round in (1, 2, 3):
        for client in clients_of(by_hand).values():
            client.recipe = Recipe(lr=0.02 * 0.1 ** (round - 1), batch=4)
        for server in (falling, by_hand):
            server.begin(round, 3)
        state, other = FedAvg().round(state, falling), FedAvg().round(other, by_hand)
    assert torch.equal(state.x, other.x)


class Told(OneModel):
    title = "Told"
    steps = ()

    def round(self, state: Model, server) -> Model:
        server.notes["train/loss"] = LOSSES[server.round - 1]
        return Model(x=state.x + 1)


class Silent(OneModel):
    title = "Silent"
    steps = ()

    def round(self, state: Model, server) -> Model:
        return state


@pytest.mark.parametrize(("patience", "rounds"), [(1, 3), (2, 4), (3, 5), (4, 10), (None, 10)])
def test_a_run_stops_after_that_many_rounds_without_a_lower_loss(patience, rounds, tmp_path: Path) -> None:
    def go(limit: int):
        keep = Checkpoints(tmp_path / str(limit), lambda p, r: tmp_path / p / f"{r}", {})
        return run(Told(), hospitals.in_process(), hospitals.theta(), limit, judge, keep, 4, patience)

    judged: list[float] = []

    def judge(theta: torch.Tensor) -> dict[str, float | None]:
        judged.append(float(theta[0] - hospitals.theta()[0]))
        return {"test/acc": 0.5}

    theta, record = go(10)
    assert len(record.metrics) == rounds and "test/acc" in record.metrics[-1]
    assert torch.allclose(theta, hospitals.theta() + rounds)
    count = len(judged)
    again, same = go(10)
    assert torch.equal(again, theta) and same.metrics == record.metrics and len(judged) == count


def test_a_method_without_a_training_loss_cannot_stop_early_and_says_so() -> None:
    with pytest.raises(FdamedError, match="training loss"):
        run(Silent(), hospitals.in_process(), hospitals.theta(), 9, hospitals.no_judge, patience=3)
    assert not spent([{"lost": 1.0}] * 9, 3), "rounds that were lost say nothing"


def test_the_second_phase_has_its_own_length_and_no_patience() -> None:
    runs = {"fedavg": {"then": {"method": "finetune_head", "rounds": 7, "train": {"target": {"lr": 0.5}}}}}
    config = configfile.parse(changed(train__patience=2, train__rounds=20, runs=runs), "x")
    first, second = config.phases(config.expanded_runs()["fedavg"]).values()
    assert config.train_of(first).patience == 2 and config.train_of(second).patience is None
    assert config.train_of(second).rounds == 7 and config.train_of(second).target.lr == 0.5
    assert config.train_of(second).target.batch == config.train.target.batch
