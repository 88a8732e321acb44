"""Each method's server program against replies and results worked out on paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fdamed.federation.client import Step
from fdamed.federation.method import Model
from fdamed.federation.server import Ledger, Server
from fdamed.federation.transport.base import Transport
from fdamed.methods._shared.local_training import Moved, Trained, compute_update, continue_training, train_locally
from fdamed.methods.fedavg import FedAvg
from fdamed.methods.fedda import FedDA
from fdamed.methods.fedgp import FedGP
from fdamed.methods.finetune import Finetune
from fdamed.methods.finetune_offline import FinetuneOffline
from fdamed.methods.gp import GP
from fdamed.methods.oracle import Oracle
from fdamed.methods.target_only import TargetOnly
from fdamed.models.flat import layout_of
from tests.support import federation as hospitals
from tests.unit.test_aggregation import TwoLayers

Local = Callable[[str, Tensor], Tensor]
Own = dict[Step, Callable[[str, Any], Any]]


def scripted(
    local: Local, n: dict[str, int], nominal_step: dict[str, float], buffer: bool = False, own: Own | None = None
) -> Server:
    """A server whose clients are formulas; `own`: the answers to a method's own steps, (client, question) -> answer."""
    return Server(Scripted(local, n, nominal_step, buffer, own), "T", "test")


class Scripted(Transport):
    """Clients that are formulas: local training maps x to local(client, x)."""

    def __init__(
        self,
        local: Local,
        n: dict[str, int],
        nominal_step: dict[str, float],
        buffer: bool = False,
        own: Own | None = None,
    ) -> None:
        super().__init__([*n], layout_of(TwoLayers(buffer)))
        self._local, self._n, self._nominal_step, self._own = local, n, nominal_step, own or {}

    def release(self, client) -> frozenset[str]:
        return hospitals.RELEASE | {"individual"}

    def inquire(self, question, heads, body=b"") -> dict:
        raise AssertionError(f"a round asks no {question}")

    def close(self) -> None: ...

    def deliver(self, client, step, nth, msg):
        if step in self._own:
            return self._own[step](client, msg)
        new = self._local(client, msg.x)
        if step in (train_locally, continue_training):
            return Trained(x=new, n=self._n[client], loss=0.5)
        assert step is compute_update
        return Moved(g=new - msg.x, n=self._n[client], nominal_step=self._nominal_step[client], loss=0.5)


MOVES = {
    "T": torch.tensor([3.0, 4.0, 1.0, -1.0]),
    "S1": torch.tensor([1.0, 0.0, 2.0, 2.0]),
    "S2": torch.tensor([0.0, -2.0, 0.0, -3.0]),
}
SAMPLES = {"T": 100, "S1": 5952, "S2": 1984}
REACH = {"T": 0.005 * 100 / 16, "S1": 0.01 * 5952 / 64, "S2": 0.01 * 1984 / 64}
X = torch.tensor([10.0, 20.0, 30.0, 40.0])


def moves() -> Server:
    server = scripted(lambda client, x: x + MOVES[client], SAMPLES, REACH)
    server.begin(1, 2)
    return server


def after(method, server: Server) -> list[float]:
    return (method.round(Model(x=X), server).x - X).tolist()


def test_fedavg_weighs_by_samples_and_never_asks_the_target() -> None:
    server = moves()
    assert after(FedAvg(), server) == [0.75, -0.5, 1.5, 0.75]
    assert server.ledger.total(receiver="T") == 0


def test_fedavg_drifts_to_the_fixed_point_of_two_quadratics() -> None:
    a, b = {"S1": 1.0, "S2": 10.0}, {"S1": 0.0, "S2": 1.0}

    def ten_steps(client: str, x: Tensor) -> Tensor:
        y = x.double()
        for _ in range(10):
            y = y - 0.02 * a[client] * (y - b[client])
        return y.float()

    server = scripted(ten_steps, {"T": 1, "S1": 1, "S2": 1}, REACH)
    state = Model(x=torch.zeros(4))
    for r in range(1, 400):
        server.begin(r, 400)
        state = FedAvg().round(state, server)
    assert state.x.tolist() == pytest.approx([0.8299226618] * 4, abs=2e-7)


def test_finetune_starts_the_target_from_the_average_of_the_sources() -> None:
    assert after(Finetune(), moves()) == [3.75, 3.5, 2.5, -0.25]


def test_finetune_costs_two_models_a_source_and_two_for_the_target() -> None:
    server = moves()
    after(Finetune(), server)
    model = 4 * server.layout.size
    assert server.ledger.total(kind="weights") == (2 * 2 + 2) * model


def test_finetune_without_a_target_step_is_fedavg() -> None:
    still = scripted(lambda p, x: x if p == "T" else x + MOVES[p], SAMPLES, REACH)
    still.begin(1, 2)
    assert after(Finetune(), still) == after(FedAvg(), moves())


def test_finetune_offline_is_fedavg_and_then_the_target_alone() -> None:
    server = moves()
    method = FinetuneOffline()
    assert method.length == 2
    assert after(method, server) == [0.75, -0.5, 1.5, 0.75]
    server.begin(2, 2)
    assert after(method, server) == [3.0, 4.0, 1.0, -1.0]


def test_target_only_takes_the_configured_share_of_the_step() -> None:
    assert after(TargetOnly(), moves()) == [3.0, 4.0, 1.0, -1.0]
    assert after(TargetOnly(server_step=0.5), moves()) == [1.5, 2.0, 0.5, -0.5]


def test_oracle_is_the_target_and_nobody_else() -> None:
    server = moves()
    assert after(Oracle(), server) == [3.0, 4.0, 1.0, -1.0]
    assert {line["to"] for line in server.ledger.lines()} == {"T", "server"}


def test_gp_is_equation_9_with_beta_on_the_source_side() -> None:
    assert after(GP(beta=0.25), moves()) == pytest.approx([2.25378024, 3.0, 0.75, -0.76336517], abs=4e-6)
    assert after(GP(beta=0.5, align="none"), moves()) == pytest.approx([1.725, 2.0, 0.5, -0.76516504], abs=4e-6)
    assert after(GP(beta=0.0), moves()) == [3.0, 4.0, 1.0, -1.0]


def test_eq_8_takes_n_out_of_eq_6_and_the_mean_alignment_keeps_it() -> None:
    """By Eq. 6 S1 weighs three times as much as S2; times Eq. 8 both weigh 0.03125/0.93 * 3/4 = 0.0252016."""
    each = [w * REACH["T"] / REACH[s] for w, s in ((0.75, "S1"), (0.25, "S2"))]
    assert each == pytest.approx([0.02520161, 0.02520161])
    # S1 moves layer a by beta cos w align = 0.25 * 0.6 * share, S2 layer b by 0.25 * 0.70710678 * share * -3.
    assert after(GP(beta=0.25), moves())[0] == pytest.approx(2.25 + 0.15 * 0.02520161, abs=4e-6)
    # The mean keeps the sum of both shares, 0.05040323, and splits it by n: 0.03780242 and 0.01260081.
    kept = after(GP(beta=0.25, align="mean"), moves())
    assert kept == pytest.approx([2.25567036, 3.0, 0.75, -0.75668258], abs=4e-6)


def test_average_first_starts_the_target_and_every_update_from_the_average() -> None:
    """x_bar - x = 3/4 S1 + 1/4 S2 = (0.75, -0.5, 1.5, 0.75), so G_S1 = (0.25, 0.5, 0.5, 1.25), G_S2 = -3 G_S1.

    cos(G_S1, G_T) = 2.75/(5 sqrt(0.3125)) = 0.98386991 in layer a, below 0 in b; that of G_S2 the other way round:
    below 0 in a, 0.75/(sqrt(2) sqrt(1.8125)) = 0.39391930 in b.
    """
    server, asked = moves(), []
    deliver = server.transport.deliver

    def watched(client, step, nth, msg):
        asked.append((client, (msg.x - X).tolist()))
        return deliver(client, step, nth, msg)

    server.transport = hospitals.Altered(server.transport, watched)
    first, second = 0.5 * 0.75 * 0.98386991, 0.5 * 0.25 * 0.39391930
    expected = [0.75 + 1.5 + 0.25 * first, -0.5 + 2.0 + 0.5 * first, 1.5 + 0.5 - 1.5 * second, 0.25 - 3.75 * second]
    assert after(GP(beta=0.5, align="none", average_first=True), server) == pytest.approx(expected, abs=4e-6)
    assert asked == [("S1", [0.0] * 4), ("S2", [0.0] * 4), ("T", [0.75, -0.5, 1.5, 0.75])]
    assert expected == pytest.approx([2.342238, 1.684476, 1.926140, 0.065350], abs=1e-5)


def test_average_first_without_a_target_step_is_fedavg_and_without_sources_half_a_step() -> None:
    still = scripted(lambda p, x: x if p == "T" else x + MOVES[p], SAMPLES, REACH)
    still.begin(1, 2)
    assert after(GP(average_first=True), still) == after(FedAvg(), moves())
    alone = scripted(lambda p, x: x + MOVES[p], {"T": 100}, REACH)
    alone.begin(1, 2)
    assert after(GP(average_first=True), alone) == [1.5, 2.0, 0.5, -0.5]


def test_gp_notes_the_cosine_of_each_source_and_layer() -> None:
    server = moves()
    after(GP(), server)
    assert server.notes["cos/S1"] == pytest.approx(0.3)
    cells = {(n["source"], n["layer"]): n["cos"] for n in server.layer_notes}
    expected = {("S1", "a"): 0.6, ("S1", "b"): 0.0, ("S2", "a"): -0.8, ("S2", "b"): 0.707107}
    assert cells == pytest.approx(expected)


@pytest.mark.parametrize(
    ("policy", "expected"), [("target", 0.5), ("average", (5952 * 2 + 1984 * 4 + 100 * 0.5) / 8036)]
)
def test_gp_takes_the_configured_buffers(policy, expected) -> None:
    change = {"T": 0.5, "S1": 2.0, "S2": 4.0}
    server = scripted(lambda p, x: x + torch.cat([MOVES[p], torch.full((2,), change[p])]), SAMPLES, REACH, buffer=True)
    server.begin(1, 1)
    x = torch.zeros(6)
    assert GP(buffers=policy).round(Model(x=x), server).x[4:].tolist() == pytest.approx([expected] * 2)


def test_buffers_are_the_targets_when_no_source_answers_and_in_the_control() -> None:
    def local(client: str, x: Tensor) -> Tensor:
        return x + torch.cat([MOVES[client], torch.full((2,), 0.5)])

    for method in (GP(beta=0.5), FedGP(beta=0.5), FedDA(beta=0.5), TargetOnly(server_step=0.5)):
        server = scripted(local, {"T": 100}, REACH, buffer=True)
        server.begin(1, 1)
        assert method.round(Model(x=torch.zeros(6)), server).x.tolist() == [1.5, 2.0, 0.5, -0.5, 0.5, 0.5]


def test_fedda_is_definition_3_2_with_and_without_alignment() -> None:
    assert after(FedDA(beta=0.25), moves()) == pytest.approx([2.4375, 2.875, 1.125, -0.5625], abs=4e-6)
    w, scale = (0.75, 0.25), (REACH["T"] / REACH["S1"], REACH["T"] / REACH["S2"])
    first = 0.75 * 3.0 + 0.25 * (w[0] * scale[0] * 1.0)
    assert after(FedDA(beta=0.25, align=True), moves())[0] == pytest.approx(first, abs=4e-6)


def test_fedgp_is_definition_3_1() -> None:
    assert after(FedGP(beta=0.25), moves()) == pytest.approx([2.625, 3.0, 0.75, -0.875], abs=4e-6)
    whole = after(FedGP(beta=0.25, granularity="model"), moves())
    assert whole == pytest.approx([2.29166667, 3.0, 0.83333333, -0.66666667], abs=4e-6)


def test_local_training_returns_the_hospitals_count_and_nominal_nominal_step() -> None:
    server: Server = hospitals.in_process()
    server.begin(1, 1)
    moved = server.ask("north", compute_update, Model(x=hospitals.theta()))
    assert moved.n == 14
    assert moved.nominal_step == pytest.approx(0.02 * 1 * 14 / 4)
    trained = server.ask("north", train_locally, Model(x=hospitals.theta()))
    assert trained.n == 14 and isinstance(server.ledger, Ledger)
