"""Numbers of the authors' released code on fixed arrays: it ran once outside of this project, and is not part of it.

KD3A: FengHZ/KD3A, `lib/utils/federated_utils.py` and the target's step of `train/train.py`. FedIIR: YamingGuo98/FedIIR,
`domainbed/algorithms.py`. FedSR: atuannguyen/FedSR, `src/methods/FedSR.py`. On the CPU, in float64. FedProx:
litian96/FedProx, its optimizer and rounds (`flearn/optimizer/pgd.py`, `flearn/trainers/fedprox.py`), TensorFlow 2.15 in
float32. SCAFFOLD's authors released none: Xtra-Computing/NIID-Bench, `experiments.py`, a benchmark by others, float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fdamed.config.privacy import NO_MINIMUM
from fdamed.config.study import Recipe
from fdamed.core.rng import stream
from fdamed.data.loader import Labeled, Unlabeled
from fdamed.federation.client import Client
from fdamed.federation.method import Method
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess
from fdamed.methods.fediir import aligned_loss
from fdamed.methods.fedprox import FedProx
from fdamed.methods.fedsr import Reference
from fdamed.methods.kd3a import consensus, distillation
from fdamed.methods.scaffold import Scaffold
from fdamed.models.flat import FlatModel
from tests.support.federation import RELEASE

TEACHERS, SAMPLES, CLASSES, GATE = 4, 200, 5, 0.8


def drawn(seed: int) -> Any:
    """Arrays as NumPy's generator of this seed gives them, one after the other."""
    rng = np.random.default_rng(seed)
    return lambda *shape: torch.from_numpy(rng.standard_normal(shape)), rng


@pytest.fixture
def q() -> Tensor:
    return torch.from_numpy(np.random.default_rng(26).dirichlet(np.full(CLASSES, 0.3), (TEACHERS, SAMPLES)))


def test_kd3as_vote_is_that_of_the_released_code(q: Tensor) -> None:
    v = consensus.vote(q, GATE)
    passed = v.supporters > 0
    assert int(passed.sum()) == 121
    assert torch.bincount(v.label[passed], minlength=CLASSES).tolist() == [19, 22, 23, 25, 32]
    assert int((v.label * torch.arange(1, SAMPLES + 1))[passed].sum()) == 28826  # which sample got which label
    everybody = torch.ones(1, TEACHERS, dtype=torch.bool)
    assert float(consensus.qualities(q, GATE, everybody)[0]) == pytest.approx(117.00189895690539, abs=1e-9)


def test_kd3as_consensus_focus_and_weights_are_those_of_the_released_code_to_its_four_digits(q: Tensor) -> None:
    focus = consensus.shapley_focus(q, GATE, stream(0, "orders").numpy)
    released = [35.81243642246538, 33.286642917666136, 25.086380443241595, 22.81643917353229]
    assert focus.tolist() == pytest.approx(released, abs=1e-9)
    passed = float((consensus.vote(q, GATE).supporters > 0).double().mean())
    alpha = consensus.weights_by_confidence(focus, passed)
    assert alpha.tolist() == pytest.approx([0.269, 0.2501, 0.1885, 0.1714, 0.121], abs=6e-5)
    old = torch.tensor([0.1, 0.2, 0.3, 0.2, 0.2], dtype=torch.float64)
    assert consensus.smoothed(alpha, old, 0.9).tolist() == pytest.approx(
        [0.1169, 0.205, 0.2888, 0.1971, 0.1921], abs=1.2e-4
    )


def test_the_targets_step_with_mixup_is_that_of_the_released_code(q: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, _ = drawn(27)
    x, w = draw(8, 6).float(), draw(CLASSES, 6).float()
    v = consensus.vote(q, GATE)
    label, weight = nn.functional.one_hot(v.label[:8], CLASSES).float(), (v.supporters[:8] > 0).float()
    assert weight.tolist() == [0, 1, 1, 1, 1, 0, 0, 0]

    def mixed(x: Tensor, y: Tensor, rng: Any) -> tuple[Tensor, Tensor]:
        other = torch.tensor([3, 1, 0, 2, 7, 6, 5, 4])
        return 0.3 * x + 0.7 * x[other], 0.3 * y + 0.7 * y[other]

    def in_one_batch(*_: Any) -> Iterator[tuple[int, Iterator[Tensor]]]:
        yield 0, iter([torch.arange(8)])

    monkeypatch.setattr(distillation, "mixed", mixed)
    monkeypatch.setattr(distillation, "epochs", in_one_batch)
    model = FlatModel(nn.Linear(6, CLASSES))
    model.load(torch.cat([w.flatten(), torch.zeros(CLASSES)]))
    recipe = Recipe(lr=0.05, batch=8, optimizer="sgd")
    client = Client("t", Unlabeled(x.numpy()), model, recipe, 0, frozenset(), role="target", minimum=NO_MINIMUM)
    client.rng = stream(0, "step")
    step = distillation.distil(client, label, weight, mixup=True)
    assert step.loss == pytest.approx(0.9070820780564259, abs=1e-6)
    after = model.read()[: 6 * CLASSES].view(CLASSES, 6).sum(1)
    released = [3.0399161409283906, -0.6487708480416533, 2.3515970303873193, -4.17996448860058, 2.215243727175729]
    assert after.tolist() == pytest.approx(released, abs=1e-5)


def test_fediirs_loss_and_its_gradients_are_those_of_the_released_code() -> None:
    draw, rng = drawn(28)
    f = draw(12, 5).requires_grad_()
    y = torch.from_numpy(rng.integers(0, 3, 12))
    head = nn.Linear(5, 3).double()
    with torch.no_grad():
        head.weight.copy_(draw(3, 5))
        head.bias.copy_(draw(3))
    g_w, g_b = draw(3, 5), draw(3)
    g = torch.cat([g_w, g_b[:, None]], dim=1).flatten()  # here a class's row ends with its bias
    loss = aligned_loss(head, g, 0.01, f, y)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(1.5172577533467948, abs=1e-12)
    assert f.grad is not None and head.weight.grad is not None
    to_features = [0.2941386766566375, -0.17111885287951722, -0.021229301115340833, -0.25091126281742976]
    assert f.grad.sum(0).tolist() == pytest.approx([*to_features, -0.08642590683911427], abs=1e-12)
    to_head = [0.71646431680616, 0.0054254930970533966, -0.7218898099032134]
    assert head.weight.grad.sum(1).tolist() == pytest.approx(to_head, abs=1e-12)


def test_fedsrs_regularizers_and_their_gradient_are_those_of_the_released_code() -> None:
    draw, rng = drawn(29)
    mu = draw(12, 4).requires_grad_()
    rho, noise = draw(12, 4), draw(12, 4)
    sigma = nn.functional.softplus(rho)
    reference = Reference(3, 4, scaled=True).double()
    assert reference.scale is not None
    with torch.no_grad():
        reference.mu.copy_(draw(3, 4))
        reference.rho.copy_(draw(3, 4))
        reference.scale.fill_(float(np.log(np.expm1(1.3))))  # softplus of it is the released C
    y = torch.from_numpy(rng.integers(0, 3, 12))
    l2r = torch.linalg.vector_norm(mu + sigma * noise, dim=1).mean()
    cmi = reference(mu, sigma, y).mean()
    assert float(l2r.detach()) == pytest.approx(2.9079583505932196, abs=1e-12)
    assert float(cmi.detach()) == pytest.approx(83.64230808695412, abs=1e-9)
    (0.01 * l2r + 0.001 * cmi).backward()
    released = [-0.03119426400679144, -0.002423219810205132, -0.0015069091220197817, -0.0004721323942766245]
    assert mu.grad is not None and mu.grad.sum(0).tolist() == pytest.approx(released, abs=1e-12)


def rounds(method: Method[Any], count: int) -> Iterator[Any]:
    """The states after each round of a softmax regression at three sources, four steps of all images at a time."""
    draw, rng = drawn(30)
    start = torch.cat([draw(3, 6).flatten(), torch.zeros(3)]).float()
    model, recipe = FlatModel(nn.Linear(6, 3)), Recipe(lr=0.1, batch=11, epochs=4, optimizer="sgd")
    sets = {f"s{n}": Labeled(draw(n, 6).float().numpy(), rng.integers(0, 3, n), {}) for n in (8, 5, 11)}
    clients = {
        name: Client(name, data, model, recipe, 0, RELEASE, role="source", minimum=NO_MINIMUM)
        for name, data in sets.items()
    }
    nobody = Unlabeled(sets["s8"].images[:0])
    target = Client("t", nobody, model, recipe, 0, RELEASE, role="target", minimum=NO_MINIMUM)
    server, state = Server(InProcess(clients | {"t": target}), "t", "test"), method.start(start)
    for number in range(1, count + 1):
        server.begin(number, count)
        state = method.round(state, server)
        yield state


def sums(vector: Tensor) -> list[float]:
    """Of the classes' weights, and the biases."""
    return [*vector[:18].view(3, 6).sum(1).tolist(), *vector[18:].tolist()]


def test_fedproxs_first_rounds_are_those_of_the_released_code() -> None:
    released = [
        [3.1410651206970215, 2.0371603965759277, 4.642935276, 0.031069433316588402, -0.028358735144, -0.0027107007005],
        [3.076284885406494, 2.1022236347198486, 4.6426525117, 0.059293556958436966, -0.056152284145, -0.0031412756070],
        [3.0182154178619385, 2.162426471710205, 4.6405191422, 0.0845324918627739, -0.083227403461933, -0.001305095386],
    ]
    for state, expected in zip(rounds(FedProx(mu=1.0), 3), released, strict=True):
        assert sums(state.x) == pytest.approx(expected, abs=3e-6)


def test_scaffolds_first_rounds_and_its_variate_are_those_of_niid_bench() -> None:
    models = [
        [3.129537027673822, 2.048497289416366, 4.643126914401526, 0.03615257618686, -0.03298197184689, -0.00317060434],
        [3.037372262807529, 2.1458933466093746, 4.63789562207481, 0.08176409733093, -0.0677586044357, -0.0140054928951],
        [2.956018061502185, 2.2350808809919975, 4.63006228899753, 0.1213597907541, -0.10130200506554, -0.0200577856875],
    ]
    variates = [
        [0.2459292564226248, -0.2611863462982445, 0.01525708987562, -0.1253718115542, 0.08892618110198, 0.036445630452],
        [0.22777251854549158, -0.24391224999373223, 0.0161397314482, -0.116792851253, 0.0862235806061, 0.030569270657],
        [0.19745386272110305, -0.2190109167867199, 0.02155705406561, -0.100317589654, 0.0828502011444, 0.01746738851],
    ]
    states = rounds(Scaffold(weighting="samples"), 3)
    for state, model, variate in zip(states, models, variates, strict=True):
        assert sums(state.x) == pytest.approx(model, abs=3e-6)
        assert sums(state.c / 3) == pytest.approx(variate, abs=3e-6)
