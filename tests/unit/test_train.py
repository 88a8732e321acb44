"""Local training against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fdamed.config.study import Recipe
from fdamed.core.rng import Stream
from fdamed.data.loader import Labeled
from fdamed.models.flat import FlatModel
from fdamed.training.input import as_input, held, noisy, taken
from fdamed.training.local import AuxiliaryTasks, fit, predict

LN3 = math.log(3.0)


class Line(nn.Module):
    """f = <w, x>, logits = f V."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(2, 1, bias=False)
        self.head = nn.Linear(1, 2, bias=False)

    def features(self, x: Tensor) -> Tensor:
        return self.w(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def line() -> FlatModel:
    model = FlatModel(Line())
    model.load(torch.tensor([1.0, 0.0, 0.0, LN3]))  # w = (1, 0), V = (0, ln 3): p = (1/4, 3/4) at x = (1, 0)
    return model


def sex_head() -> FlatModel:
    heads = FlatModel(nn.ModuleDict({"sex": nn.Linear(1, 2, bias=False)}))
    heads.load(torch.tensor([LN3, 0.0]))  # p = (3/4, 1/4) at f = 1
    return heads


def two_patients(sexes: list[int]) -> Labeled:
    x = np.array([[1, 0], [1, 0]], dtype=np.float32)
    return Labeled(x, np.array([1, 1]), {"sex": np.array(sexes)})


@pytest.mark.parametrize("sexes", [[1, 1], [1, -1]], ids=["all known", "one missing"])
def test_auxinfo_is_equation_3_and_a_missing_label_is_masked(sexes: list[int]) -> None:
    model, heads = line(), sex_head()
    auxiliary = AuxiliaryTasks(heads.module, ("sex",), alpha=2.0, private=heads)
    outcome = fit(model, two_patients(sexes), Recipe(lr=0.1, batch=2, optimizer="sgd"), Stream(0), auxiliary=auxiliary)
    # L_main = -ln(3/4), L_aux = -ln(1/4): logged apart, the heads' without alpha.
    assert outcome.loss == pytest.approx(-math.log(0.75), rel=1e-5)
    assert float(auxiliary.total) / auxiliary.steps == pytest.approx(-math.log(0.25), rel=1e-6)
    # dL/df = <V, p - y> + alpha <U, q - b> = -ln3/4 + 2 * 3/4 ln3 = 5/4 ln3, and only the first weight sees x.
    w1 = 1.0 - 0.1 * 1.25 * LN3
    v = [0.0 - 0.1 * 0.25, LN3 + 0.1 * 0.25]
    assert model.theta.tolist() == pytest.approx([w1, 0.0, *v], abs=1e-6)
    # dL/dU = alpha (q - b) f = 2 * (3/4, -3/4)
    assert heads.theta.tolist() == pytest.approx([LN3 - 0.15, 0.15], abs=1e-6)


def test_without_any_known_label_the_auxiliary_loss_is_nothing() -> None:
    with_heads, plain, heads = line(), line(), sex_head()
    recipe = Recipe(lr=0.1, batch=2, optimizer="sgd")
    fit(
        with_heads,
        two_patients([-1, -1]),
        recipe,
        Stream(0),
        auxiliary=AuxiliaryTasks(heads.module, ("sex",), 2.0, heads),
    )
    fit(plain, two_patients([-1, -1]), recipe, Stream(0))
    assert torch.equal(with_heads.theta, plain.theta)
    assert heads.theta.tolist() == pytest.approx([LN3, 0.0])


def test_alpha_zero_trains_the_main_task_alone() -> None:
    with_heads, plain = line(), line()
    recipe = Recipe(lr=0.1, batch=2, optimizer="sgd")
    heads = sex_head()
    fit(
        with_heads,
        two_patients([1, 0]),
        recipe,
        Stream(0),
        auxiliary=AuxiliaryTasks(heads.module, ("sex",), 0.0, heads),
    )
    fit(plain, two_patients([1, 0]), recipe, Stream(0))
    assert torch.equal(with_heads.theta, plain.theta)


def shared_line() -> FlatModel:
    """The same network and head as one model."""
    network = Line()
    network.add_module("auxiliary", sex_head().module)
    model = FlatModel(network)
    model.load(torch.tensor([1.0, 0.0, 0.0, LN3, LN3, 0.0]))
    return model


def test_a_shared_head_trains_as_a_private_one_does() -> None:
    model = shared_line()
    recipe, auxiliary = Recipe(lr=0.1, batch=2, optimizer="sgd"), AuxiliaryTasks(model.module.auxiliary, ("sex",), 2.0)
    fit(model, two_patients([1, -1]), recipe, Stream(0), auxiliary=auxiliary)
    expected = [1.0 - 0.125 * LN3, 0.0, -0.025, LN3 + 0.025, LN3 - 0.15, 0.15]  # as worked out for Eq. 3 above
    assert model.theta.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("sexes", [None, [-1, -1]], ids=["target", "source without labels"])
def test_a_shared_head_without_a_loss_stays_where_it_is_under_weight_decay(optimizer: str, sexes) -> None:
    model, bare = shared_line(), line()
    recipe = Recipe(lr=0.1, batch=2, optimizer=optimizer, weight_decay=0.5, epochs=3)
    auxiliary = AuxiliaryTasks(model.module.auxiliary, ("sex",), 2.0) if sexes else None
    fit(model, two_patients(sexes or [1, 0]), recipe, Stream(0), auxiliary=auxiliary)
    fit(bare, two_patients([1, 0]), recipe, Stream(0))
    assert model.theta[4:].tolist() == torch.tensor([LN3, 0.0]).tolist()
    assert model.theta[:4].tolist() == pytest.approx(bare.theta.tolist(), abs=1e-6)  # all else decays as ever


def test_weight_decay_reaches_a_shared_head_that_has_a_loss() -> None:
    model = shared_line()
    recipe = Recipe(lr=0.1, batch=2, optimizer="sgd", weight_decay=0.5)
    fit(model, two_patients([1, 1]), recipe, Stream(0), auxiliary=AuxiliaryTasks(model.module.auxiliary, ("sex",), 2.0))
    assert model.theta[4:].tolist() == pytest.approx([LN3 - 0.15 - 0.05 * LN3, 0.15], abs=1e-6)


def test_images_of_every_form_become_inputs() -> None:
    gray, color = torch.full((2, 4, 4), 255, dtype=torch.uint8), torch.zeros(2, 4, 4, 3, dtype=torch.uint8)
    assert as_input(gray).shape == (2, 1, 4, 4) and as_input(gray).max() == 1.0
    assert as_input(color).shape == (2, 3, 4, 4)
    vectors = torch.ones(2, 7)
    assert as_input(vectors) is vectors


def test_a_batch_is_taken_from_the_memory_map_without_copying_all_of_it() -> None:
    data = Labeled(np.arange(32, dtype=np.uint8).reshape(8, 2, 2), np.zeros(8, np.int64), {})
    images = held(data, torch.device("cpu"))
    assert images.data_ptr() == data.images.ctypes.data
    assert taken(images, torch.tensor([3, 0]), torch.device("cpu"))[:, 0, 0].tolist() == [12, 0]


def test_noise_has_its_deviation_is_drawn_anew_and_the_same_for_the_same_stream() -> None:
    x = torch.full((4, 1, 64, 64), 0.5)
    a, b, again = (noisy(x, torch.arange(4), 0.4, Stream(0).child(k)) for k in (0, 1, 0))
    assert float((a - x).std()) == pytest.approx(0.4, abs=0.01)
    assert torch.equal(a, again) and not torch.equal(a, b)
    assert float(a.min()) < 0 and float(a.max()) > 1  # not clipped


def test_noise_reaches_training_and_prediction_of_noisy_data_only() -> None:
    x = np.full((6, 8, 8), 128, dtype=np.uint8)
    y = np.arange(6) % 2
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    start = FlatModel(net).read()
    results = []
    for noise in (0.0, 0.3, 0.3):
        model = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)))
        model.load(start)
        data = Labeled(x, y, {}, noise)
        fit(model, data, Recipe(lr=0.1, batch=6, optimizer="sgd"), Stream(0))
        results.append((model.read(), predict(model, data, rng=Stream(1))))
    assert not torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[1][0], results[2][0])
    assert np.array_equal(results[1][1], results[2][1])
    assert np.ptp(results[0][1][:, 1]) < 1e-6 < np.ptp(results[1][1][:, 1])


def test_prediction_gives_one_probability_a_class() -> None:
    model = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    p = predict(model, Labeled(np.zeros((5, 2, 2), np.uint8), np.zeros(5, np.int64), {}), batch=2)
    assert p.shape == (5, 3) and p.sum(axis=1) == pytest.approx(np.ones(5))


@pytest.mark.parametrize(("epochs", "steps", "taken"), [(1, None, 3), (2, None, 6), (2, 4, 4), (1, 9, 3), (3, 1, 1)])
def test_a_round_takes_its_epochs_or_at_most_so_many_steps(epochs: int, steps: int | None, taken: int) -> None:
    x = np.tile(np.array([[1, 0]], dtype=np.float32), (6, 1))
    data, recipe = Labeled(x, np.zeros(6, np.int64), {}), Recipe(lr=0.1, batch=2, epochs=epochs, steps=steps)
    assert fit(line(), data, recipe, Stream(0)).steps == taken
    assert recipe.images_seen(6) == 2 * taken


def test_few_steps_are_the_first_of_the_whole_epoch() -> None:
    x, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1, 0, 1, 1, 0])
    seen: list[list[float]] = []

    def batches_of(steps: int | None) -> list[list[float]]:
        seen.clear()
        watch = lambda model, x, y: (seen.append(x[:, 0].tolist()), nn.functional.cross_entropy(model.module(x), y))[1]  # noqa: E731
        fit(line(), Labeled(x, y, {}), Recipe(lr=0.01, batch=2, steps=steps), Stream(3), loss=watch)
        return list(seen)

    assert batches_of(2) == batches_of(None)[:2]
