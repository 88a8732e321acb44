"""DaNN and the choice of settings without target labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.office_caltech import Candidate, View, fitted, tried
from fdamed.classical import TCA, DaNN
from fdamed.classical.central_fit import reverse_accuracy, squared_distances
from fdamed.classical.dann import discrepancy, held_out
from fdamed.classical.inputs import BadInput
from fdamed.core.rng import stream


def shifted(n: int = 80) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = stream(6, "dann").numpy
    y = np.arange(n) % 3
    domain = np.repeat([1, -1], n // 2)
    X = rng.normal(size=(n, 4))
    X[np.arange(n), y] += 4
    X[domain < 0] += 0.5
    return X, y, domain


def test_the_discrepancy_of_two_points_is_that_of_its_kernel() -> None:
    got = discrepancy(torch.tensor([[0.0]]), torch.tensor([[3.0]]))
    assert float(got) == pytest.approx(2 - 2 * np.exp(-0.5), abs=1e-6)


def test_the_discrepancy_is_the_quadratic_form_for_batches_of_different_sizes() -> None:
    h = torch.from_numpy(stream(3, "h").numpy.normal(size=(11, 3)))
    squares = torch.cdist(h, h).square()
    K = torch.exp(-squares / (2 * squares[squares > 0].median()))
    ell = torch.tensor([1 / 4] * 4 + [-1 / 7] * 7, dtype=torch.float64)
    assert float(discrepancy(h[:4], h[4:])) == pytest.approx(float(ell @ K @ ell), abs=1e-12)


def test_batches_that_are_all_alike_have_no_discrepancy() -> None:
    assert float(discrepancy(torch.ones(3, 2), torch.ones(2, 2))) == 0.0


def test_without_weight_it_is_a_plain_network_that_the_target_does_not_touch() -> None:
    X, y, domain = shifted()
    other = X.copy()
    other[domain < 0] += 9
    settings = {"hidden": 8, "epochs": 3}
    plain, moved = (DaNN(weight=0.0, **settings).fit(x, y, domain) for x in (X, other))
    assert all((a == b).all() for a, b in zip(plain.weights_, moved.weights_, strict=True))
    pulled = DaNN(weight=0.25, **settings).fit(X, y, domain)
    assert not (pulled.weights_[0] == plain.weights_[0]).all()


def test_one_step_of_the_whole_batch_is_gradient_descent_on_the_stated_loss() -> None:
    X, y, domain = shifted(12)
    settings = {"hidden": 5, "epochs": 1, "batch": 99, "dropout": 0.0, "validation": 0.0, "momentum": 0.0, "decay": 0.0}
    fit = DaNN(weight=2.0, lr=1e-9, **settings).fit(X, y, domain)
    start = [torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in fit.weights_]  # lr 1e-9: the beginning
    step = DaNN(weight=2.0, lr=0.1, **settings).fit(X, y, domain)
    A, a, B, b = start
    h = torch.relu(torch.tensor(X) @ A + a)
    source = torch.tensor(domain > 0)
    loss = torch.nn.functional.cross_entropy(h[source] @ B + b, torch.tensor(y[domain > 0]))
    ell = torch.tensor(np.where(domain > 0, 1 / 6, -1 / 6))
    squares = torch.cdist(h, h).square()
    width2 = squares.detach()[~torch.eye(12, dtype=torch.bool)].median()
    loss = loss + 2.0 * ell @ torch.exp(-squares / (2 * width2)) @ ell
    for weight, gradient, got in zip(start, torch.autograd.grad(loss, start), step.weights_, strict=True):
        assert np.abs(got - (weight - 0.1 * gradient).detach().numpy()).max() < 1e-5
    assert step.losses_ == pytest.approx([float(loss.detach())], abs=1e-5)


def test_it_learns_and_its_features_are_not_negative() -> None:
    X, y, domain = shifted()
    model = DaNN(hidden=32, epochs=60, seed=1).fit(X, np.array(["a", "b", "c"])[y], domain)
    right = model.predict(X[domain < 0]) == np.array(["a", "b", "c"])[y[domain < 0]]
    assert right.mean() > 0.85
    assert (model.transform(X) >= 0).all()
    assert model.transform(X).shape == (80, 32)
    assert 1 <= model.epoch_ <= 60


def test_weights_that_diverge_are_an_error() -> None:
    X, y, domain = shifted()
    with pytest.raises(BadInput, match="diverged"):
        DaNN(hidden=4, epochs=8, lr=1e12, validation=0.0).fit(X, y, domain)


def test_the_held_out_share_is_the_same_in_every_class_and_never_all_of_one() -> None:
    codes = np.repeat([0, 1, 2], [50, 20, 1])
    kept, judged = held_out(codes, 0.1, stream(0, "v"))
    assert np.bincount(codes[judged], minlength=3).tolist() == [5, 2, 0]
    assert sorted([*kept, *judged]) == list(range(71))


def test_reverse_validation_counts_the_labels_that_come_back() -> None:
    # two classes far apart in the source, the target near class 0 only: class 1 never comes back
    source, y = np.array([[0.0], [0.1], [9.0], [9.1]]), np.array([0, 0, 1, 1])
    near, both = np.array([[0.05], [0.06]]), np.array([[0.05], [9.05]])
    assert reverse_accuracy(squared_distances(near, source), y) == 0.5
    assert reverse_accuracy(squared_distances(both, source), y) == 1.0
    with pytest.raises(BadInput, match="one source sample"):
        reverse_accuracy(squared_distances(near, source), np.array([0, 0, 0, 1]))


def test_a_view_takes_leading_components_then_centers_then_scales() -> None:
    F = np.array([[3.0, 0.0, 7.0], [1.0, 2.0, 7.0]])
    assert View(2, True, True).of(F) == pytest.approx(np.array([[1, -1], [-1, 1]]) / np.sqrt(2))
    assert (View().of(F) == F).all()


def test_the_candidates_predict_by_nearest_neighbor_or_by_themselves() -> None:
    X, y, domain = shifted()
    source = domain > 0
    grid = [Candidate("tca", TCA(3), (View(3), View(1))), Candidate("dann", DaNN(hidden=4, epochs=1))]
    results = tried(fitted(grid, X, y[source], source), y[source], source)
    assert [setting.split()[0] for setting, _, _ in results] == ["tca", "tca", "dann"]
    features = TCA(3).fit_transform(X, None, sample_domain=domain)
    nearest = np.square(features[~source][:, None] - features[source][None]).sum(axis=2).argmin(axis=1)
    assert (results[0][2] == y[source][nearest]).all()
    own = DaNN(hidden=4, epochs=1).fit(X, y, domain).predict(X[~source])
    assert (results[2][2] == own).all()
