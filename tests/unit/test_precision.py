"""TF32 and half precision: what is switched, which steps are skipped, and where the scale is kept."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from fdamed.config.loader import parse
from fdamed.config.study import Recipe
from fdamed.core.errors import FdamedError
from fdamed.core.rng import Stream
from fdamed.federation.method import REGISTRY
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.storage.checkpoint import Checkpoints
from fdamed.models.flat import FlatModel
from fdamed.pipeline.clients import build_client
from fdamed.training.local import fit
from fdamed.training.optimizer import Optimizer
from fdamed.training.precision import GOOD, INTERVAL, SCALE, GradientScaler, allow_tf32
from tests.support import federation as hospitals
from tests.support.federation import clients_of, registered, suited
from tests.support.small_studies import write_clients

CPU = torch.device("cpu")
SCALED = sorted(name for name, method in REGISTRY.items() if method.float16)


def test_float32_is_float32_on_a_gpu_too_and_tf32_is_asked_for() -> None:
    """torch itself lets convolutions use TF32."""
    for precision, allowed in (("tf32", True), ("bfloat16", False), ("float32", False)):
        allow_tf32(precision)
        assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == allowed


def test_a_client_in_a_process_of_its_own_keeps_the_precision_that_was_asked_for(tmp_path: Path) -> None:
    """Its model is built there, too, which begins in float32."""
    raw = {
        "study": "small",
        "data": {"layout": "chexpert", "root": "nowhere"},
        "split": {
            "by": "condition",
            "clients": {"A": "Edema", "B": "Pneumonia"},
            "target": "B",
            "per_class": 12,
            "labeled": 8,
            "val": 4,
            "test": 8,
        },
        "results": str(tmp_path),
        "image": {"size": 32},
        "model": {"width": 0.0625},
        "privacy": "public",
        "train": {"precision": "tf32", "device": "cpu", "transport": "multiprocess"},
        "runs": {"fedavg": {}},
    }
    config = parse(raw, "test")
    write_clients(config)
    build_client(config, config.expanded_runs()["fedavg"], "A", "B", 0, labels=True, every=False)
    allowed = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    allow_tf32("float32")
    assert allowed == (True, True)


def line() -> FlatModel:
    """loss = 3 w at w = 2."""
    model = FlatModel(torch.nn.Linear(1, 1, bias=False))
    model.load(torch.tensor([2.0]))
    return model


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_step_whose_gradient_overflows_is_skipped_and_halves_the_scale(optimizer: str) -> None:
    model = line()
    scaler, steps = GradientScaler(CPU, {}), Optimizer(model, Recipe(lr=0.5, batch=2, optimizer=optimizer))
    for factor, weight, scale in ((3.0, 0.5 if optimizer == "sgd" else 1.5, 65536.0), (1e36, None, 32768.0)):
        before = model.read()
        model.grad.zero_()
        overflow = scaler.backward(factor * model.module.weight.sum(), model.grad)
        steps.step(overflow)
        assert float(overflow) == float(weight is None)
        assert float(scaler.scale) == scale
        assert float(model.read()) == pytest.approx(weight if weight is not None else float(before), rel=1e-6)
    assert float(steps.count) == (1 if optimizer == "adam" else 0)  # Adam has not counted the step that was skipped
    assert not model.grad.any()


def test_the_scale_doubles_after_many_good_steps_and_continues_from_memory() -> None:
    memory = {SCALE: torch.tensor([8.0]), GOOD: torch.tensor([INTERVAL - 2], dtype=torch.int32)}
    for scale in (8.0, 16.0):
        model = line()
        scaler = GradientScaler(CPU, memory)
        scaler.backward(3.0 * model.module.weight.sum(), model.grad)
        assert float(model.grad) == 3.0  # unscaled
        scaler.keep(memory)
        assert float(memory[SCALE]) == scale


@pytest.mark.parametrize("name", SCALED)
def test_a_method_trains_in_float16_and_its_clients_remember_the_scale(name: str) -> None:
    server = hospitals.in_process(("north", "target"), **suited(name))
    for client in clients_of(server).values():
        client.precision = "float16"
        client.memory[SCALE] = torch.tensor([2.0**30])  # too much: the first steps overflow
    theta, _ = run(registered(name), server, hospitals.theta(), 2, hospitals.no_judge)
    assert torch.isfinite(theta).all()
    scales = [float(client.memory[SCALE]) for client in clients_of(server).values()]
    assert min(scales) < 2.0**30
    server.close()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_steps_that_were_skipped_do_not_count(optimizer: str) -> None:
    """FedNova and SCAFFOLD divide by their number; each has halved the scale."""
    data, recipe = hospitals.images("north"), Recipe(lr=0.001, batch=4, epochs=30, optimizer=optimizer)
    taken = {}
    for first in (2.0**10, 2.0**30):
        memory = {SCALE: torch.tensor([first])}
        outcome = fit(hospitals.model(), data, recipe, Stream(1), precision="float16", memory=memory)
        taken[first] = outcome.steps
        assert outcome.steps == 30 * 4 - round(math.log2(first / float(memory[SCALE])))
    assert taken[2.0**10] == 120 > taken[2.0**30]
    memory = {SCALE: torch.tensor([torch.inf])}  # none is ever taken
    assert fit(hospitals.model(), data, recipe, Stream(1), precision="float16", memory=memory).steps == 1


def test_a_run_in_float16_that_stopped_resumes_with_the_same_bits_and_scales(tmp_path: Path) -> None:
    def server() -> Server:
        out = hospitals.in_process(("north", "target"))
        for client in clients_of(out).values():
            client.precision = "float16"
            client.memory = {SCALE: torch.tensor([2.0**30])}
        return out

    class Stop(Exception):
        pass

    def stop_in_round_two(theta: torch.Tensor, count: list[int] = [0]) -> dict[str, float]:  # noqa: B006
        count[0] += 1
        if count[0] == 2:
            raise Stop
        return {}

    whole = server()
    expected, _ = run(registered("fedavg"), whole, hospitals.theta(), 3, hospitals.no_judge)
    keep = Checkpoints(tmp_path, lambda p, r: tmp_path / p / f"{r:05d}.safetensors", {})
    with pytest.raises(Stop):
        run(registered("fedavg"), server(), hospitals.theta(), 3, stop_in_round_two, keep)
    again = server()
    found, _ = run(registered("fedavg"), again, hospitals.theta(), 3, hospitals.no_judge, checkpoints=keep)
    assert torch.equal(found, expected)
    kept = [clients_of(one)["north"].memory for one in (again, whole)]
    assert kept[0][SCALE] == kept[1][SCALE] < 2.0**30 and kept[0][GOOD] == kept[1][GOOD]


def test_float16_with_a_scale_learns_what_float32_learns() -> None:
    models = {}
    for precision in ("float32", "float16"):
        models[precision] = hospitals.model()
        recipe = Recipe(lr=0.02, batch=4, optimizer="sgd")
        fit(models[precision], hospitals.images("north"), recipe, Stream(1), precision=precision, memory={})
    start = hospitals.theta()
    apart = (models["float16"].read() - models["float32"].read()).norm() / (models["float32"].read() - start).norm()
    assert 0.0 < float(apart) < 0.05


def test_methods_whose_gradients_nothing_scales_refuse_float16_before_the_study_starts() -> None:
    raw = {
        "study": "half",
        "data": {"layout": "chexpert", "root": "nowhere"},
        "split": {"by": "condition", "clients": {"A": "Edema", "B": "Pneumonia"}, "target": "B"},
        "train": {"precision": "float16"},
        "privacy": "public",
    }
    parse(raw | {"runs": {"fedavg": {}}}, "test")
    with pytest.raises(FdamedError, match="fada computes gradients that nothing scales for float16"):
        parse(raw | {"runs": {"fada": {}}}, "test")


@pytest.mark.parametrize("precision", ["tf32", "bfloat16", "float16"])
def test_differences_of_gradients_are_refused_in_less_than_float32_before_the_study_starts(precision: str) -> None:
    """Not in the second round, when FedGTST first takes one."""
    raw = {
        "study": "half",
        "data": {"layout": "chexpert", "root": "nowhere"},
        "split": {"by": "condition", "clients": {"A": "Edema", "B": "Pneumonia"}, "target": "B"},
        "train": {"precision": precision},
        "privacy": "public",
    }
    with pytest.raises(FdamedError, match="fedgtst, hessian: probe takes differences"):
        parse(raw | {"runs": {"fedgtst": {}}}, "test")
    if precision != "float16":
        parse(raw | {"runs": {"fedgtst": {"hessian": "exact"}}}, "test")
    parse(raw | {"runs": {"fedgtst": {"train": {"precision": "float32"}}}}, "test")
