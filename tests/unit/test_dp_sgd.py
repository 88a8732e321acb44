"""DP-SGD against numbers worked out on paper; its privacy budget against Opacus and after a killed run."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fdamed.config.privacy import NO_MINIMUM, Differential
from fdamed.config.study import Model, Recipe
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled
from fdamed.federation import privacy_budget as accounts
from fdamed.federation.absences import DroppedOut, Reason
from fdamed.federation.client import Client
from fdamed.federation.method import REGISTRY
from fdamed.federation.privacy_budget import FILE, lines_in, log_costs
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.storage.checkpoint import Checkpoints
from fdamed.federation.transport.base import InProcess
from fdamed.models.backbone import build, initialize
from fdamed.models.flat import FlatModel
from fdamed.pipeline import privacy_costs as costs
from fdamed.training import dp_sgd as private
from fdamed.training.dp_sgd import Mechanism, accountants, epsilon, secret_normal, secret_uniform
from fdamed.training.local import fit
from tests.support import federation as hospitals
from tests.support.federation import clients_of

ROOT = Path(__file__).parents[2]
METHODS = sorted(REGISTRY)
NOISED = [name for name in METHODS if REGISTRY[name].noised]


class Plain(nn.Module):
    """Two weights, no bias: the gradient of a row x with p = 1/2 is -+ x/2."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.line.weight.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x)


def mechanism(n: int, multiplier: float = 0.0, clip: float = 1.0, **options: object) -> Mechanism:
    return Mechanism(multiplier, clip, np.arange(n), **options)


def test_the_clipped_mean_of_two_gradients_is_the_number_on_paper() -> None:
    """At zero weights a row x of class 0 has the gradient (-x/2, x/2): (6, 8) gives 5 sqrt 2, (0, 1) sqrt(1/2).

    Clipped at 1 the first is (6, 8)/(10 sqrt 2) a row, the second stays (0, 1)/2; half of their sum is the mean.
    """
    model = FlatModel(Plain())
    x, y = torch.tensor([[6.0, 8.0], [0.0, 1.0]]), torch.tensor([0, 0])
    loss = mechanism(2).gradient(model, x, y, 2, stream(0, "unused"))
    half = [(6 / (10 * math.sqrt(2))) / 2, (8 / (10 * math.sqrt(2)) + 0.5) / 2]
    assert model.grad.tolist() == pytest.approx([-half[0], -half[1], half[0], half[1]], abs=1e-6)
    assert float(loss) == pytest.approx(math.log(2))


def test_the_sum_is_divided_by_the_expected_number_and_not_by_those_drawn() -> None:
    model = FlatModel(Plain())
    mechanism(10).gradient(model, torch.tensor([[0.0, 1.0]]), torch.tensor([0]), 4, stream(0, "unused"))
    assert model.grad.tolist() == pytest.approx([0.0, -0.125, 0.0, 0.125])


def test_a_step_in_which_nobody_was_drawn_is_noise_alone_of_the_promised_deviation() -> None:
    model = FlatModel(nn.Linear(300, 300))
    mechanism(100, multiplier=2.0, clip=3.0).gradient(
        model, torch.empty(0, 300), torch.empty(0, dtype=torch.long), 4, stream(0, "noise")
    )
    assert float(model.grad.std()) == pytest.approx(2.0 * 3.0 / 4, rel=0.01)  # 90,300 numbers
    assert float(model.grad.mean()) == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize("settings", [Model(width=0.125, norm="group"), Model(backbone="cnn", side=28)])
def test_gradients_of_single_images_are_those_of_a_loop_over_them(settings: Model) -> None:
    net = build(settings)
    initialize(net, stream(0, "net").torch)
    model = FlatModel(net)
    x = torch.rand(10, 1, 28 if settings.backbone == "cnn" else 32, 28 if settings.backbone == "cnn" else 32)
    y = torch.arange(10) % 2
    total = torch.zeros_like(model.grad)
    for image, label in zip(x, y, strict=True):
        model.grad.zero_()
        F.cross_entropy(net(image[None]), label[None]).backward()
        total += model.grad * min(1.0, 0.5 / float(model.grad.norm()))
    mechanism(10, clip=0.5).gradient(model, x, y, 10, stream(0, "unused"))
    assert torch.allclose(model.grad, total / 10, atol=1e-6)


def test_how_many_images_are_differentiated_together_changes_no_more_than_rounding(monkeypatch) -> None:
    net = build(Model(width=0.125, norm="group"))
    initialize(net, stream(0, "net").torch)
    model, x, y = FlatModel(net), torch.rand(20, 1, 32, 32), torch.arange(20) % 2
    found = []
    for most in (64, 8):
        monkeypatch.setattr(private, "MOST", most)
        mechanism(20, multiplier=0.5).gradient(model, x, y, 20, stream(0, "noise"))
        found.append(model.grad.clone())
    assert torch.allclose(*found, atol=1e-6)


def test_a_large_model_takes_no_more_memory_than_eight_of_it() -> None:
    assert [private.at_once(n) for n in (43_746, 2**20, 11_000_000)] == [64, 32, 8]


def test_gradients_of_single_images_are_those_of_opacus() -> None:
    opacus = pytest.importorskip("opacus", reason="the extra `privacy` is not installed")
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(4, 8), nn.Flatten(), nn.Linear(8 * 36, 2))
    x, y = torch.rand(6, 1, 8, 8), torch.arange(6) % 2
    wrapped = opacus.GradSampleModule(net, loss_reduction="sum")
    F.cross_entropy(wrapped(x), y, reduction="sum").backward()
    own = torch.cat([p.grad_sample.flatten(1) for p in net.parameters()], 1)
    expected = (own * (0.3 / own.norm(dim=1)).clamp(max=1.0)[:, None]).sum(0) / 6
    wrapped.remove_hooks()
    model = FlatModel(net)
    mechanism(6, clip=0.3).gradient(model, x, y, 6, stream(0, "unused"))
    flat = torch.cat([p.grad.flatten() for p in net.parameters()])
    assert torch.allclose(flat, expected, atol=1e-6)


def test_a_patient_is_drawn_with_the_same_probability_and_with_one_image_at_most() -> None:
    """30 patients with 1, 2 or 3 images each, expected 6 a step: each is drawn in one of five steps."""
    patients = np.repeat(np.arange(30), np.arange(30) % 3 + 1)
    m = Mechanism(1.0, 1.0, patients)
    drawn = np.zeros(30)
    steps = 0
    for epoch in range(150):
        for rows in m.batches(6, stream(0, "draw", epoch)):
            whose = patients[rows.numpy()]
            assert len(set(whose.tolist())) == len(whose)
            drawn[whose] += 1
            steps += 1
    assert m.probability(6) == 0.2 and steps == 150 * 10  # as many steps as 60 images in sixes
    assert abs(drawn / steps - 0.2).max() < 0.05  # five standard deviations


@pytest.mark.parametrize(
    ("n", "batch", "epochs", "multiplier", "printed"),
    [(5000, 32, 10, 0.6, 6.0), (5000, 32, 10, 1.0, 1.38), (5000, 32, 10, 2.0, 0.45)],
)
def test_epsilon_is_that_of_opacus_and_of_the_printed_figures(
    n: int, batch: int, epochs: int, multiplier: float, printed: float
) -> None:
    opacus = pytest.importorskip("opacus.accountants", reason="the extra `privacy` is not installed")
    m = mechanism(n, multiplier)
    steps = epochs * sum(1 for _ in m.batches(batch, stream(0, "unused")))
    own = epsilon([(multiplier, m.probability(batch), steps)], m.allowance)
    other = opacus.RDPAccountant()
    other.history = [(multiplier, batch / n, steps)]
    assert own == other.get_epsilon(n**-1.1)
    assert own == pytest.approx(printed, rel=0.02)
    assert epsilon([], m.allowance) == 0.0


def test_secret_numbers_are_finite_on_a_device_without_float64(monkeypatch) -> None:
    """float32 rounds the largest uniform number to 1, whose quantile is infinite."""
    monkeypatch.setattr("os.urandom", lambda count: b"\xff" * count)
    assert secret_uniform(1)[0] == 1 - 2**-53
    monkeypatch.setattr("fdamed.training.dp_sgd.wide", lambda device: torch.float32)
    assert torch.isfinite(secret_normal(3)).all()


def test_secret_numbers_have_the_promised_distribution_and_never_come_twice() -> None:
    from scipy.stats import kstest

    assert kstest(secret_uniform(20000), "uniform").pvalue > 1e-6
    assert kstest(secret_normal(20000).numpy(), "norm").pvalue > 1e-6
    assert not torch.equal(secret_normal(8), secret_normal(8))


class Unmixed(TorchDispatchMode):
    """Raises where tensors of two devices meet; numbers (no dimensions) may come from the CPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.dim()]
        assert len({t.device for t in found}) < 2, func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("secure", [False, True])
def test_a_private_step_on_a_device_uses_nothing_of_the_host(secure: bool) -> None:
    """On torch's meta device: on the pretended GPU of tests/gpu functorch does not work."""
    with Unmixed(), pytest.raises(AssertionError, match="add"):
        torch.zeros(3, device="meta").add_(torch.ones(3))
    meta = torch.device("meta")
    network = FlatModel(Tiny())
    network.module.to(meta)
    network.theta, network.grad = network.theta.to(meta), network.grad.to(meta)
    private = Mechanism(1.0, 1.0, np.arange(6), secure=secure)
    x, y = torch.rand(6, 1, 8, 8, device=meta), torch.zeros(6, dtype=torch.int64, device=meta)
    with Unmixed():
        loss = private.gradient(network, x, y, 4, stream(0))
    assert loss.device == meta and network.grad.device == meta


# --- in a federation -------------------------------------------------------------------------------------------------


class Tiny(nn.Module):
    """The test hospitals' network with GroupNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, stride=2, bias=False)
        self.norm = nn.GroupNorm(4, 8)
        self.hidden = nn.Linear(8, 4)
        self.head = nn.Linear(4, 2)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.hidden(torch.relu(self.norm(self.conv(x))).mean((2, 3))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


def model() -> FlatModel:
    net = Tiny()
    initialize(net, stream(0, "test").torch)
    return FlatModel(net)


def federation(labels: bool = True, account: Path | None = None, sgd: bool = False) -> Server:
    """The test hospitals; two images a patient, noise at the sources."""
    resident, clients = model(), {}
    for name in hospitals.NAMES:
        client = hospitals.hospital(name, labels=labels, resident=resident, sgd=sgd)
        if name != "target":
            patients = np.arange(len(client.data)) // 2
            client.noise = Mechanism(1.0, 0.5, patients, secure=account is not None)
            client.account = account / name / FILE if account else None
        clients[name] = client
    return Server(InProcess(clients), "target", "test")


def outcome(name: str, server: Server, **options: object) -> tuple[torch.Tensor, object]:
    return run(hospitals.registered(name), server, model().read(), 2, hospitals.no_judge, after=log_costs, **options)


@pytest.mark.parametrize("name", NOISED)
def test_a_method_that_allows_noise_learns_under_it_and_reports_its_cost(name: str) -> None:
    pytest.importorskip("opacus", reason="the extra `privacy` is not installed")
    theta, record = outcome(name, federation(**hospitals.suited(name)))
    assert torch.isfinite(theta).all()
    epsilon = [{k: v for k, v in line.items() if k.startswith("privacy/epsilon/")} for line in record.metrics]
    asked = {line["to"] for line in record.ledger if "report_privacy_cost" not in line["step"]} - {"server", "target"}
    if asked:
        assert set(epsilon[-1]) == {f"privacy/epsilon/{p}" for p in ("north", "east", "south")}
        assert all(v > 0 for v in epsilon[-1].values())
    if name == "fedavg":
        assert torch.equal(theta, outcome(name, federation(False))[0])


@pytest.mark.parametrize("name", [m for m in METHODS if m not in NOISED])
def test_a_method_that_looks_at_images_in_another_way_is_refused_by_the_hospital_itself(name: str) -> None:
    server, made = federation(**hospitals.suited(name)), hospitals.registered(name)
    with pytest.raises(FdamedError, match=r"without the noise that|no BatchNorm"):  # which DP-SGD excludes
        run(made, server, model().read(), 2, hospitals.no_judge)
    assert all("privacy.spent" not in client.memory for client in clients_of(server).values())


def test_the_sources_loss_has_no_noise_on_it_and_is_withheld() -> None:
    pytest.importorskip("opacus", reason="the extra `privacy` is not installed")
    _, record = outcome("fedavg", federation(False))
    assert [line["train/loss"] for line in record.metrics] == [None, None]
    _, record = outcome("gp", federation())
    assert all(line["train/loss"] > 0.0 for line in record.metrics)  # the target's own


class Stop(Exception):
    pass


def killed(count: int):
    calls = [0]

    def judge(theta: torch.Tensor) -> dict[str, float | None]:
        calls[0] += 1
        if calls[0] == count:
            raise Stop
        return {}

    return judge


def test_epsilon_after_a_kill_and_a_resume_is_that_of_an_uninterrupted_run(tmp_path: Path) -> None:
    pytest.importorskip("opacus", reason="the extra `privacy` is not installed")
    keep = Checkpoints(tmp_path, lambda p, r: tmp_path / p / f"{r:05d}.safetensors", {"threads": 1})
    fedavg, theta, whole = REGISTRY["fedavg"](), model().read(), federation(False)
    expected, record = run(fedavg, whole, theta, 4, hospitals.no_judge, after=log_costs)
    with pytest.raises(Stop):  # in round 3, when its answers have left
        run(fedavg, federation(False), theta, 4, killed(3), keep, after=log_costs)
    server = federation(False)
    found, resumed = run(fedavg, server, theta, 4, hospitals.no_judge, keep, after=log_costs)
    assert torch.equal(found, expected) and resumed.metrics == record.metrics
    for name, client in clients_of(server).items():
        assert lines_in(client.memory) == lines_in(clients_of(whole)[name].memory)
    assert lines_in(clients_of(server)["north"].memory) == [(1.0, 4 / 7, 4 * 4)]  # 7 patients, 14 images, 4 rounds


def test_secure_noise_is_accounted_for_in_a_file_that_a_resume_does_not_set_back(tmp_path: Path) -> None:
    """Round 3 was trained twice, with other noise: what left twice costs twice."""
    pytest.importorskip("opacus", reason="the extra `privacy` is not installed")
    keep = Checkpoints(tmp_path, lambda p, r: tmp_path / p / f"{r:05d}.safetensors", {"threads": 1})
    fedavg, theta, place = REGISTRY["fedavg"](), model().read(), tmp_path / "accounts"
    with pytest.raises(Stop):
        run(fedavg, federation(False, place), theta, 4, killed(3), keep, after=log_costs)
    found, record = run(fedavg, federation(False, place), theta, 4, hospitals.no_judge, keep, after=log_costs)
    assert lines_in({}, place / "north" / FILE) == [(1.0, 4 / 7, 5 * 4)]
    spent = record.metrics[-1]["privacy/epsilon/north"]
    assert spent == epsilon([(1.0, 4 / 7, 20)], 7**-1.1) > epsilon([(1.0, 4 / 7, 16)], 7**-1.1)
    other, _ = run(fedavg, federation(False, tmp_path / "other"), theta, 4, hospitals.no_judge)
    assert not torch.equal(found, other)


VICTIM = """
import os, signal, sys
from pathlib import Path
from fdamed.federation import privacy_budget as accounts
from tests.unit import test_dp_sgd as t

entered, write = [], accounts.write_text

def enter(path, text):
    write(path, text)
    entered.append(path)
    if len(entered) == 5:  # three hospitals in round 1; north and east in round 2
        os.kill(os.getpid(), signal.SIGKILL)

accounts.write_text = enter
t.in_folder(Path(sys.argv[1]))
"""


def in_folder(folder: Path) -> tuple[torch.Tensor, object]:
    """Three rounds with secure noise and checkpoints, from wherever the folder stands."""
    keep = Checkpoints(folder, lambda p, r: folder / p / f"{r:05d}.safetensors", {"threads": 1})
    server = federation(False, folder / "accounts")
    return run(REGISTRY["fedavg"](), server, model().read(), 3, hospitals.no_judge, keep, after=log_costs)


def test_steps_under_the_same_conditions_are_one_line_of_the_account(tmp_path: Path) -> None:
    account = tmp_path / "north" / FILE
    client = clients_of(federation(False, tmp_path))["north"]
    for steps in (4, 3):
        accounts.spend(client, client.noise, steps, 4)
    assert account.read_text() == f"[1.0, {4 / 7}, 7]\n" and lines_in({}, account) == [(1.0, 4 / 7, 7)]
    accounts.spend(client, client.noise, 2, 7)
    assert lines_in({}, account) == [(1.0, 4 / 7, 7), (1.0, 1.0, 2)]


@pytest.mark.parametrize(
    "line", ["[1.0, 0.5", "[1.0, 0.5]", "{}", "7", "[1.0, null, 4]", "[1, 0.5, NaN]", "[1, 1, 1e999]"]
)
def test_an_account_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path, line: str) -> None:
    account = tmp_path / FILE
    account.write_text(f"[1.0, 0.5, 4]\n{line}\n[1.0, 0.5, 4]\n")
    with pytest.raises(FdamedError, match="line 2 of the privacy account is damaged"):
        lines_in({}, account)


def test_a_hospital_killed_between_its_account_and_its_answer_has_paid_for_the_answer(tmp_path: Path) -> None:
    """The process dies in round 2, when two of three have entered their steps and nothing of the round has left."""
    pytest.importorskip("opacus", reason="the extra `privacy` is not installed")
    died = subprocess.run([sys.executable, "-c", VICTIM, str(tmp_path)], cwd=ROOT, capture_output=True, timeout=900)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    order = [p for p in hospitals.NAMES if p != "target"]

    def steps(client: str) -> int:
        return sum(line[2] for line in lines_in({}, tmp_path / "accounts" / client / FILE))

    once = steps(order[2])  # round 1 alone
    before = {p: steps(p) for p in order}
    assert before[order[0]] > 0 and once > 0
    _, record = in_folder(tmp_path)
    per_round = {p: (steps(p) - before[p]) // 2 for p in order}  # rounds 2 and 3 of the second life
    assert [before[p] // per_round[p] for p in order] == [2, 2, 1]
    for client in order:
        account = lines_in({}, tmp_path / "accounts" / client / FILE)
        people = clients_of(federation(False))[client].noise.people
        assert account[0][2] == (4 if client != order[2] else 3) * per_round[client]
        assert record.metrics[-1][f"privacy/epsilon/{client}"] == epsilon(account, max(2, people) ** -1.1)


class Mortal(InProcess):
    """A client can die here as its process would: with its state."""

    dead: frozenset[str] = frozenset()

    def begin(self, round):
        super().begin(round)
        self.dead = frozenset({"east"} if round > 1 else ())  # after the checkpoint of round 1, where it has one

    def deliver(self, client, step, nth, msg):
        if client in self.dead:
            raise DroppedOut(client, "its process ended", Reason.DISCONNECTED)
        return super().deliver(client, step, nth, msg)

    def inquire(self, question, heads, body=b""):
        return super().inquire(question, {c: head for c, head in heads.items() if c not in self.dead}, body)


@pytest.mark.parametrize(("every", "known"), [(1, True), (2, False)])
def test_what_a_hospital_spent_is_not_forgotten_when_its_process_ends(
    every: int, known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """East dies after round 1: with a checkpoint its account is there, without one nobody knows what it has spent."""
    pytest.importorskip("opacus", reason="the extra `privacy` is not installed")
    server = Server(Mortal(clients_of(federation(False))), "target", "test")
    places = (tmp_path, lambda p, r: tmp_path / p / f"{r:05d}.safetensors", {"threads": 1}, every)
    keep, fedavg, theta = Checkpoints(*places), REGISTRY["fedavg"](), model().read()

    run(fedavg, server, theta, 2, hospitals.no_judge, keep, after=log_costs)
    train = SimpleNamespace(transport="multiprocess")
    config = SimpleNamespace(differential_of=lambda spec: Differential(multiplier=1.0, clip=0.5), train=train)
    monkeypatch.setattr(costs.Places, "of", lambda config: SimpleNamespace(client=lambda client: tmp_path / client))
    monkeypatch.setattr(costs, "patients", lambda folder, splits: clients_of(server)[folder.name].noise.patients)
    resumed = Checkpoints(*places)
    revived = federation(False)
    assert resumed.load(fedavg, revived)
    for each, checkpoints in ((server, keep), (revived, resumed)):
        for name, home in each.transport.homes.items():
            cost = partial(costs.cost_of, config, None, name, account=tmp_path / name / FILE)
            each.transport.homes[name] = replace(home, cost=lambda memory, cost=cost: cost(state=memory.read()))
        if not known:
            with pytest.raises(FdamedError, match="patients of east is not known"):
                costs.costs_of(config, None, each, checkpoints, lambda p: tmp_path / p / FILE)
            continue
        spent = costs.costs_of(config, None, each, checkpoints, lambda p: tmp_path / p / FILE)["sources"]
        assert set(spent) == {"east", "north", "south"}
        assert spent["east"]["spent"] == [[1.0, 4 / 5, 2]] and spent["north"]["spent"] == [[1.0, 4 / 7, 2 * 4]]


def test_training_under_noise_takes_the_main_task_alone() -> None:
    client = hospitals.hospital("north", auxiliary=True, resident=model())
    with pytest.raises(TypeError, match="main task alone"):
        fit(
            client.model,
            client.data,
            Recipe(lr=0.1, batch=4),
            stream(0, "x"),
            loss=lambda *_: torch.zeros(()),
            private=mechanism(14),
        )


def test_an_absent_opacus_is_reported_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(FdamedError, match="needs Opacus") as error:
        accountants()
    assert "fdamed[privacy]" in error.value.fix


def test_a_client_without_noise_is_trained_as_before() -> None:
    data = Labeled(np.zeros((4, 2), np.float32), np.zeros(4, np.int64), {})
    client = Client(
        "a", data, FlatModel(Plain()), Recipe(lr=0.1, batch=2), 0, hospitals.RELEASE, role="source", minimum=NO_MINIMUM
    )
    assert client.noise is None and client.account is None and lines_in(client.memory) == []
