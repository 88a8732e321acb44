"""Bad input: a clear error, or a result that is defined."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from fdamed.classical import CORAL, GFK, JDA, RFTCA, RTCA, TCA, DaNN
from fdamed.classical.inputs import BadInput, Shrunk
from fdamed.classical.kernels import gram
from fdamed.classical.spectral import tca
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream

SPECTRAL = (TCA(3), RTCA(3), RFTCA(3, N=30), RFTCA(3, N=5), JDA(3))
ALL = (*SPECTRAL, CORAL(), GFK(2), DaNN(hidden=4, epochs=2))
N_S, N_T = 12, 9
DOMAIN = np.r_[np.ones(N_S), -np.ones(N_T)]


def samples(p: int = 4) -> tuple[np.ndarray, np.ndarray]:
    X = stream(4, "bad").numpy.normal(size=(N_S + N_T, p))
    X[N_S:] += 0.5
    return X, np.arange(len(X)) % 2


def each(estimators: tuple[Any, ...]) -> Any:
    return pytest.mark.parametrize("estimator", estimators, ids=lambda e: repr(e)[:24])


@each(ALL)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_feature_that_is_not_a_number_is_refused(estimator: Any, value: float) -> None:
    X, y = samples()
    X[3, 1] = value
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        clone(estimator).fit(X, y, DOMAIN)


@each((*SPECTRAL, CORAL(), GFK(2), DaNN(hidden=4, epochs=2)))
def test_a_constant_feature_does_no_harm(estimator: Any) -> None:
    X, y = samples()
    X[:, 2] = 1.0
    assert np.isfinite(clone(estimator).fit_transform(X, y, sample_domain=DOMAIN)).all()


@each((*SPECTRAL, GFK(2)))
def test_samples_that_are_all_alike_are_refused(estimator: Any) -> None:
    X, y = np.ones((N_S + N_T, 4)), samples()[1]
    with pytest.raises(FdamedError, match=r"alike|do not vary"):
        clone(estimator).fit(X, y, DOMAIN)
    if hasattr(estimator, "sigma"):
        with pytest.raises(FdamedError, match="alike"):
            clone(estimator).set_params(sigma=1.0).fit(X, y, DOMAIN)


def test_coral_of_samples_that_are_all_alike_changes_nothing() -> None:
    X = np.ones((N_S + N_T, 4))
    assert np.abs(CORAL().fit_transform(X, None, DOMAIN) - X).max() < 1e-12


@each((*SPECTRAL, CORAL(), DaNN(hidden=4, epochs=2)))
def test_one_source_sample_is_enough(estimator: Any) -> None:
    X, y = samples()
    domain = np.r_[1, -np.ones(len(X) - 1)]
    assert np.isfinite(clone(estimator).fit_transform(X, y, sample_domain=domain)).all()


def test_one_source_sample_has_no_covariance_but_the_ridge() -> None:
    X, _ = samples()
    domain = np.r_[1, -np.ones(len(X) - 1)]
    got = CORAL(ridge=0.5).fit_transform(X, None, domain)[0]
    values, vectors = np.linalg.eigh(np.cov(X[1:].T) + 0.5 * np.eye(4))
    assert got == pytest.approx(X[0] / np.sqrt(0.5) @ (vectors * np.sqrt(values)) @ vectors.T, abs=1e-12)


def test_one_source_sample_has_no_subspace() -> None:
    X, _ = samples()
    with pytest.raises(BadInput, match="do not vary"):
        GFK(2).fit(X, None, np.r_[1, -np.ones(len(X) - 1)])


@each((JDA(3), DaNN(hidden=4, epochs=2)))
def test_one_class_is_a_defined_result(estimator: Any) -> None:
    X, _ = samples()
    fitted = clone(estimator).fit(X, np.full(len(X), 5), DOMAIN)
    assert list(fitted.classes_) == [5]
    assert np.isfinite(fitted.transform(X)).all()
    if isinstance(fitted, DaNN):
        assert (fitted.predict(X) == 5).all()
    else:
        assert (fitted.pseudo_labels_ == 5).all()


@each(SPECTRAL)
@pytest.mark.parametrize("gamma", [0, 0.0, -1.0, np.nan, np.inf, "1", True])
def test_gamma_must_be_above_zero(estimator: Any, gamma: Any) -> None:
    X, y = samples()
    with pytest.raises(BadInput, match="gamma is not a number above 0"):
        clone(estimator).set_params(gamma=gamma).fit(X, y, DOMAIN)


def test_the_ridge_must_be_above_zero() -> None:
    with pytest.raises(BadInput, match="ridge"):
        CORAL(ridge=0).fit(samples()[0], None, DOMAIN)


@each((TCA(500), RTCA(500), RFTCA(500, N=8), RFTCA(500, N=50), JDA(500), GFK(500)))
def test_more_components_than_there_are_become_fewer_with_a_warning(estimator: Any) -> None:
    X, y = samples()
    with pytest.warns(Shrunk, match="instead of 500"):
        fitted = clone(estimator).fit(X, y, DOMAIN)
    assert fitted.n_components_ < len(X)
    assert np.isfinite(fitted.transform(X)).all()


def test_no_number_of_components_means_as_many_as_there_are_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Shrunk)
        assert TCA().fit(samples()[0], None, DOMAIN).n_components_ == N_S + N_T - 1


def test_a_linear_kernel_has_the_rank_of_its_features() -> None:
    with pytest.warns(Shrunk):
        assert TCA(10, kernel="linear", normalize=False).fit(samples()[0], None, DOMAIN).n_components_ == 4


@each(ALL)
@pytest.mark.parametrize(
    ("domain", "says"),
    [
        (np.ones(21), "no target sample"),
        (-np.ones(21), "no source sample"),
        (np.r_[0, DOMAIN[1:]], "neither source nor target"),
        (np.r_[np.nan, DOMAIN[1:]], "neither source nor target"),
        (np.array(["s"] * 12 + ["t"] * 9), "neither source nor target"),
        (DOMAIN[:-1], "20 domains for 21 samples"),
    ],
)
def test_domains_that_say_nothing_are_refused(estimator: Any, domain: np.ndarray, says: str) -> None:
    X, y = samples()
    with pytest.raises(BadInput, match=says):
        clone(estimator).fit(X, y, domain)


@each((JDA(3), DaNN(hidden=4, epochs=2)))
def test_a_source_sample_without_a_label_is_refused(estimator: Any) -> None:
    X, y = samples()
    missing = y.astype(float)
    missing[2] = np.nan
    with pytest.raises(BadInput, match="without a label"):
        clone(estimator).fit(X, missing, DOMAIN)
    with pytest.raises(ValueError, match="requires y"):
        clone(estimator).fit(X, None, DOMAIN)


@pytest.mark.parametrize(
    ("estimator", "says"),
    [
        (TCA(kernel="rbf"), "kernel is not known"),
        (TCA(sigma=0.0), "sigma"),
        (TCA(sigma="mean"), "sigma"),
        (TCA(0), "n_components"),
        (RFTCA(N=0), "N is not a whole number"),
        (RFTCA(kernel="linear"), "kernel"),
        (RFTCA(precision="float16"), "precision"),
        (JDA(iterations=0), "iterations"),
        (GFK("best"), "n_components"),
        (DaNN(epochs=0), "epochs"),
        (DaNN(dropout=1.0), "dropout"),
        (DaNN(weight=-1.0), "weight"),
    ],
    ids=repr,
)
def test_a_setting_out_of_range_is_named(estimator: Any, says: str) -> None:
    X, y = samples()
    with pytest.raises(BadInput, match=says):
        estimator.fit(X, y, DOMAIN)


def test_a_zero_sample_stays_zero_and_finite() -> None:
    X, y = samples()
    X[4] = 0.0
    for estimator in SPECTRAL:
        assert np.isfinite(clone(estimator).fit_transform(X, y, sample_domain=DOMAIN)).all()


def test_samples_that_all_repeat_leave_the_kernel_singular_and_the_result_defined() -> None:
    X = np.repeat(samples()[0][:7], 3, axis=0)
    K = gram(X, X, "gaussian", 1.0)
    got = tca(K, DOMAIN / 10, 0.1, 6)
    assert got.W.shape == (21, 6)
    assert np.isfinite(got.W).all()
