"""FedSR: the divergence in closed form, what is not sent, and the plain network when nothing is random."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from fdamed.cli.commands import federate, init, partition
from fdamed.config.study import Config, Model, Recipe
from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled, load
from fdamed.federation.client import answer
from fdamed.federation.messages import encode
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess
from fdamed.methods._shared.adversarial_training import Batch, Local
from fdamed.methods.fedavg import FedAvg
from fdamed.methods.fedsr import (
    REFERENCE,
    STEP,
    Ask,
    Encoder,
    FedSR,
    Reference,
    Sampled,
    State,
    divergence,
    objective,
    train,
)
from fdamed.models.adversarial import flat_part
from fdamed.models.backbone import build, initialize
from fdamed.models.flat import FlatModel, layout_of, named_tensors, vector_from
from fdamed.pipeline.paths import Places
from fdamed.pipeline.scoring import score, trained_model
from fdamed.pipeline.selection import StudyRun
from fdamed.training.local import predict
from tests.support import federation as hospitals
from tests.support.federation import Altered, clients_of

D, CLASSES = 4, 2


def numbers(*shape: int, low: float = -2.0) -> Tensor:
    rng = torch.Generator().manual_seed(math.prod(shape))
    return torch.rand(shape, generator=rng, dtype=torch.float64) * (2.0 - low) + low


def test_the_divergence_is_that_of_torch() -> None:
    mu, sigma, r_mu, r_sigma = numbers(5, 7), numbers(5, 7, low=0.01), numbers(7, 5).t(), numbers(1, 7, low=0.1)
    expected = kl_divergence(Normal(mu, sigma), Normal(r_mu, r_sigma)).sum(1)
    assert torch.allclose(divergence(mu, sigma, r_mu, r_sigma), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scaled", [True, False])
def test_a_reference_at_c_mu_and_c_sigma_has_no_divergence(scaled) -> None:
    reference = Reference(CLASSES, D, scaled).double()
    mu, sigma, y = numbers(3, D), numbers(D, 3, low=0.1).t(), torch.tensor([1, 1, 1])
    c = 1.0
    with torch.no_grad():
        if reference.scale is not None:
            reference.scale.fill_(2.0)
            c = float(F.softplus(reference.scale))
        for row in range(3):
            reference.mu[1] = c * mu[row]
            reference.rho[1] = torch.log(torch.expm1(c * sigma[row]))
            found = reference(mu, sigma, y)
            assert float(found[row]) == pytest.approx(0.0, abs=1e-12)
            assert (found >= 0).all() and float(found.sum()) > 0.1


def test_a_reference_begins_at_nought_with_softplus_one_and_scale_one() -> None:
    reference = Reference(CLASSES, D, True)
    assert float(F.softplus(reference.scale.detach())) == pytest.approx(1.0)
    mu, sigma = torch.zeros(1, D), torch.full((1, D), math.log1p(math.e))
    assert float(reference(mu, sigma, torch.tensor([0])).detach()) == pytest.approx(0.0, abs=1e-6)


class Deterministic(hospitals.Tiny):
    """The tests' network with one linear layer more: FedSR's without a spread."""

    def __init__(self) -> None:
        super().__init__()
        self.mu = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mu(self.features(x)))


def start(spread: float) -> tuple[Tensor, Tensor]:
    """An encoder (weight, bias) whose sigma is softplus(spread) whatever the feature."""
    weight, bias = numbers(2 * D, D).float(), torch.zeros(2 * D)
    weight[D:], bias[D:] = 0.0, spread
    return weight, bias


def test_without_regularizers_and_spread_it_is_fedavg_with_deterministic_features() -> None:
    recipe = Recipe(lr=0.1, batch=4, optimizer="sgd")  # Adam's moments would go on here and not in FedAvg
    server = hospitals.in_process()
    weight, bias = start(-60.0)
    plain = FlatModel(Deterministic())
    plain.load(
        vector_from(
            {**named_tensors(hospitals.theta(), server.layout), "mu.weight": weight[:D], "mu.bias": bias[:D]},
            plain.layout,
        )
    )
    other = Server(InProcess({n: hospitals.hospital(n, resident=plain) for n in hospitals.NAMES}), "target", "test")
    for client in (*clients_of(server).values(), *clients_of(other).values()):
        client.recipe = recipe
    method = FedSR(alpha_l2r=0.0, alpha_cmi=0.0, weighting="samples")
    state = State(x=hospitals.theta(), s=torch.cat([weight.flatten(), bias]))
    for number in (1, 2, 3):
        server.begin(number, 3)
        state = method.round(state, server)
    theta, _ = run(FedAvg(), other, plain.read(), 3, hospitals.no_judge)
    found, expected = method.named(method.final(state), server.layout), named_tensors(theta, plain.layout)
    for name in expected:
        here = found[f"encoder.{name.removeprefix('mu.')}"][:D] if name.startswith("mu.") else found[name]
        assert torch.allclose(here, expected[name], atol=2e-5), name
    assert not torch.allclose(found["encoder.weight"][:D], weight[:D], atol=1e-3)


def by_hand(l2r: float, cmi: float, squared: bool) -> tuple[Tensor, Tensor]:
    """The objective on two features, and what it should be."""
    client = hospitals.hospital("north")
    reference = flat_part(Reference(CLASSES, D, True), torch.empty(0), client.rng, torch.device("cpu"))
    encoder = flat_part(Encoder(D), torch.cat([t.flatten() for t in start(-60.0)]), client.rng, torch.device("cpu"))
    f, y = numbers(2, D).float(), torch.tensor([0, 1])
    ask = Ask(x=hospitals.theta(), s=torch.empty(0), l2r=l2r, cmi=cmi, squared=int(squared), scaled=1, steps=0)
    found = objective(Local(client, ()), encoder, reference, ask)(f, Batch(f, y, {}, stream(1)))
    mu = f @ start(-60.0)[0][:D].T
    plain = F.cross_entropy(client.model.module.head(mu), y)
    norm = mu.square().sum(1) if squared else mu.norm(dim=1)
    r = Normal(torch.zeros(D), torch.full((D,), math.log1p(math.e)))
    apart = kl_divergence(Normal(mu, torch.full_like(mu, 1e-6)), r).sum(1)
    return found, plain + l2r * norm.mean() + cmi * apart.mean()


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize(("l2r", "cmi"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)])
def test_the_objective_is_task_length_and_divergence(l2r, cmi, squared) -> None:
    found, expected = by_hand(l2r, cmi, squared)
    assert float(found) == pytest.approx(float(expected), rel=1e-4)


def test_reference_scale_and_moments_stay_in_the_source_and_go_on() -> None:
    server, seen = hospitals.in_process(), []
    deliver = server.transport.deliver

    def watched(client, step, nth, msg):
        reply = deliver(client, step, nth, msg)
        seen.append((encode(msg), encode(reply), clients_of(server)[client].memory))
        return reply

    server.transport = Altered(server.transport, watched)
    run(FedSR(), server, hospitals.theta(), 2, hospitals.no_judge)
    assert len(seen) == 6
    for asked, answered, memory in seen:
        own = memory[REFERENCE].numpy()
        assert len(own) == 2 * CLASSES * D + 1
        for row in own.reshape(-1)[: 2 * CLASSES * D].reshape(-1, D):
            assert row.tobytes() not in asked and row.tobytes() not in answered
    memory = clients_of(server)["north"].memory
    begun = FlatModel(Reference(CLASSES, D, True)).read()
    assert not torch.equal(memory[REFERENCE], begun) and not torch.equal(
        memory[REFERENCE], clients_of(server)["east"].memory[REFERENCE]
    )
    assert {int(memory[f"fedsr.{i}.count"]) for i in range(3)} == {2 * 4}  # two rounds of four batches
    assert "fedsr.r" not in clients_of(server)["target"].memory


@pytest.mark.parametrize("steps", [0, 3])
def test_a_class_that_a_source_never_sees_does_not_move_its_reference(steps) -> None:
    server = hospitals.in_process()
    client = clients_of(server)["north"]
    client.data = Labeled(client.data.images, np.zeros_like(client.data.y), client.data.auxiliary)
    theta, _ = run(FedSR(local_steps=steps), server, hospitals.theta(), 2, hospitals.no_judge)
    reference = FlatModel(Reference(CLASSES, D, True))
    reference.load(client.memory[REFERENCE])
    assert torch.isfinite(theta).all()
    assert torch.equal(reference.module.mu[1], torch.zeros(D)) and torch.equal(reference.module.rho[1], torch.ones(D))
    assert (reference.module.mu[0] != 0).all()


def test_local_steps_go_through_all_images_over_the_rounds(monkeypatch) -> None:
    client, seen = hospitals.hospital("north"), []
    plain = Local.step

    def step(self, batch, value):
        seen.append(batch.x)
        return plain(self, batch, value)

    monkeypatch.setattr(Local, "step", step)
    ask = Ask(x=hospitals.theta(), s=FlatModel(Encoder(D)).read(), l2r=0.0, cmi=0.0, squared=0, scaled=1, steps=2)
    for number in (1, 2):
        answer(client, train, number, 0, ask)
        assert int(client.memory[STEP]) == 2 * number and len(seen) == 2 * number
    images = torch.cat(seen).mul(255).round().to(torch.uint8).flatten(1)
    assert len(images) == len(client.data) == len({bytes(i.numpy().data) for i in images})


def test_a_prediction_over_samples_nears_that_over_many_and_depends_on_no_other_image() -> None:
    network, encoder = hospitals.model().module, Encoder(D)
    initialize(encoder, stream(3).torch)
    with torch.no_grad():
        network.head.weight.mul_(2.0)
    data = hospitals.images("north")
    found = {k: predict(FlatModel(Sampled(network, encoder, k)), data) for k in (0, 20, 1000, 20000)}
    assert all(np.allclose(p.sum(1), 1.0, atol=1e-6) for p in found.values())
    gaps = [np.abs(found[k] - found[20000]).max() for k in (20, 1000)]
    assert gaps[1] < 0.03 and gaps[1] < gaps[0] < 0.2
    with torch.no_grad():
        f = network.eval().features(torch.from_numpy(data.images).unsqueeze(1) / 255.0)
        plain = torch.softmax(network.head(encoder(f)[0]), 1).numpy()
    assert np.allclose(found[0], plain, atol=1e-6)
    one_by_one = predict(FlatModel(Sampled(network, encoder, 20)), data, batch=1)
    assert np.allclose(one_by_one, found[20], atol=1e-6)


@pytest.mark.parametrize("model", [Model(width=0.125), Model(backbone="cnn"), Model(backbone="mlp", layers=(8, 6))])
def test_every_backbone_comes_back_whole_from_its_tensors(model) -> None:
    server = build(model)
    initialize(server, stream(0, "x").torch)
    layout, d = layout_of(server), server.head.in_features
    theta, method = FlatModel(server).read(), FedSR()
    assert method.predictor(build(model), method.named(theta, layout)) is None
    encoder = flat_part(Encoder(d), torch.empty(0), stream(1), torch.device("cpu"))
    tensors = method.named(torch.cat([theta, encoder.read()]), layout)
    assert set(tensors) == {s.name for s in layout} | {"encoder.weight", "encoder.bias"}
    made = method.predictor(build(model), tensors)
    assert torch.equal(made.network.head.weight, server.head.weight)
    assert torch.equal(made.encoder.encoder.weight, encoder.module.encoder.weight)


def test_the_parts_beyond_one_network_a_hospital_are_counted() -> None:
    encoder, reference = 128 * 256 + 256, 2 * 2 * 128
    assert FedSR().extra_parameters(4, 128, 2) == 5 * encoder + 4 * (reference + 1)
    assert FedSR(scale=False).extra_parameters(4, 128, 2) == 5 * encoder + 4 * reference


def study(folder: Path) -> Config:
    """Three sets of vectors around two centers; each set is shifted a little."""
    rng = np.random.default_rng(3)
    for number, name in enumerate(("a", "b", "t")):
        y = np.arange(120) % 2
        x = rng.normal(size=(120, 6)) + 2.0 * y[:, None] - 1.0 + 0.2 * number
        np.savez(folder / f"{name}.npz", x=x[:80], y=y[:80], x_test=x[80:], y_test=y[80:])
    domains = {n: {"kind": "npz", "root": str(folder / f"{n}.npz")} for n in ("a", "b", "t")}
    recipe = {"lr": 0.01, "batch": 16}
    return Config.model_validate(
        {
            "study": "vectors",
            "results": str(folder / "results"),
            "data": {"layout": "benchmark", "domains": domains},
            "split": {"by": "domain", "domains": ["a", "b", "t"], "target": "t", "labeled": 8, "val": 0.2},
            "model": {"backbone": "mlp", "inputs": 6, "layers": [8, 6], "classes": 2},
            "train": {"rounds": 4, "device": "cpu", "source": recipe, "target": recipe},
            "runs": {"fedsr": {}},
            "seeds": [0],
        }
    )


def test_a_run_is_judged_saved_and_scored_from_its_files_with_its_encoder(tmp_path: Path) -> None:
    config = study(tmp_path)
    places = Places.of(config)
    partition.write(config, places)
    init.write(config, 0, places.init(0))
    one = StudyRun.of(config, "fedsr", "t", 0)
    federate.federate(one, 1)
    folder, data = places.run("fedsr", "t", 0), load(places.client("t"), parts=("test",))
    judged = one.rounds().read_text().splitlines()
    network = FlatModel(build(config.model))
    model = trained_model(one, "t", network)
    right = (predict(model, data).argmax(1) == data.y).mean()
    assert right > 0.7
    score(one, "t", network)
    scores = read_json(one.scores("t"))
    assert scores["acc"] == pytest.approx(right)
    assert len(judged) == 4 and f'"test/acc": {scores["acc"]}' in judged[-1]
    assert read_json(folder / "run.json")["extra_parameters"] == FedSR().extra_parameters(2, 6, 2)
    shutil.copy(places.init(0) / "theta.safetensors", folder)
    with pytest.raises(FdamedError, match="those of another model"):
        trained_model(one, "t", network)
