"""scikit-learn's contract: its own checks, pipelines, clones, pickles, and nothing read of the target's labels."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fdamed.classical import CORAL, GFK, JDA, RFTCA, RTCA, TCA, DaNN, OnSource
from fdamed.classical.inputs import OneDomain
from fdamed.core.rng import stream

SMALL = (TCA(), RTCA(), RFTCA(N=40), CORAL(), JDA(), GFK())
EXPECTED_TO_FAIL: dict[str, str] = {}
"""None: without sample_domain all samples are one domain, and every check of scikit-learn 1.9 passes."""


def shifted(n: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = stream(1, "contract").numpy
    y = np.arange(n) % 2
    domain = np.repeat([1, -1], n // 2)
    X = rng.normal(size=(n, 5))
    X[:, 0] += 5 * y
    X[domain < 0, 1] += 4
    return X, y, domain


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [*SMALL, OnSource(LogisticRegression())], expected_failed_checks=lambda estimator: EXPECTED_TO_FAIL
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([DaNN(hidden=16, epochs=15, lr=0.1, batch=32)])
def test_scikit_learns_own_checks_of_the_network(estimator: Any, check: Any) -> None:
    check(estimator)


FEW = (TCA(3, gamma=0.01), RTCA(3, gamma=0.01), RFTCA(3, N=200, gamma=0.01), CORAL(), JDA(3, gamma=0.01), GFK())


@pytest.mark.parametrize("aligner", FEW, ids=lambda e: type(e).__name__)
def test_in_a_pipeline_the_classifier_learns_from_the_source_alone(aligner: Any) -> None:
    X, y, domain = shifted()
    hidden = np.where(domain > 0, y, -1)
    name = type(aligner).__name__.lower()
    pipe = make_pipeline(StandardScaler(), clone(aligner), OnSource(KNeighborsClassifier(1)))
    pipe.fit(X, hidden, **{f"{name}__sample_domain": domain, "onsource__sample_domain": domain})
    guess = pipe.predict(X[domain < 0])
    scaled = StandardScaler().fit_transform(X)
    model = clone(aligner)
    features = model.fit_transform(scaled, hidden, sample_domain=domain)
    by_hand = KNeighborsClassifier(1).fit(features[domain > 0], y[domain > 0])
    assert (guess == by_hand.predict(model.transform(scaled[domain < 0]))).all()
    assert set(guess) == {0, 1}
    assert (guess == y[domain < 0]).mean() > 0.7


@pytest.mark.parametrize("aligner", [*SMALL, DaNN(hidden=8, epochs=2)], ids=lambda e: type(e).__name__)
def test_the_targets_labels_are_never_read(aligner: Any) -> None:
    X, y, domain = shifted()
    nothing = np.where(domain > 0, y, np.nan)
    one = clone(aligner).fit_transform(X, y, sample_domain=domain)
    other = clone(aligner).fit_transform(X, nothing, sample_domain=domain)
    assert (one == other).all()


@pytest.mark.parametrize("aligner", [*SMALL, DaNN(hidden=8, epochs=2)], ids=lambda e: type(e).__name__)
def test_a_pickled_copy_and_a_refitted_clone_give_the_same_features(aligner: Any) -> None:
    X, y, domain = shifted()
    fitted = clone(aligner).fit(X, y, sample_domain=domain)
    assert (pickle.loads(pickle.dumps(fitted)).transform(X) == fitted.transform(X)).all()
    assert (clone(fitted).fit(X, y, sample_domain=domain).transform(X) == fitted.transform(X)).all()


@pytest.mark.parametrize("aligner", [TCA(5), RTCA(5), RFTCA(5, N=40), RFTCA(5, N=20)], ids=str)
def test_features_of_a_fit_are_those_of_new_samples_that_are_the_same(aligner: Any) -> None:
    X, _, domain = shifted()
    at_once = clone(aligner).fit_transform(X, None, sample_domain=domain)
    after = clone(aligner).fit(X, None, sample_domain=domain).transform(X)
    assert np.abs(at_once - after).max() < 1e-6 * np.abs(after).max()


def test_features_do_not_depend_on_how_many_samples_are_transformed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    X, _, domain = shifted()
    model = RFTCA(4, N=10, precision="float64", unit_norm=True)
    whole = model.fit_transform(X, None, sample_domain=domain)
    monkeypatch.setattr("fdamed.classical.kernels.BLOCK", 7)
    assert np.abs(model.fit_transform(X, None, sample_domain=domain) - whole).max() < 1e-9


def test_the_memory_of_a_fit_does_not_depend_on_the_number_of_samples() -> None:
    peaks = []
    for n in (4096, 32_768):
        X = stream(3, "memory").numpy.normal(size=(n, 4))
        domain = np.where(np.arange(n) % 2, 1.0, -1.0)
        tracemalloc.start()
        RFTCA(5, N=50, sigma=1.0).fit(X, None, domain)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    random_features = 8 * 100 * (32_768 - 4096)
    domains = 32 * (32_768 - 4096)  # which samples are whose, and l
    assert peaks[1] - peaks[0] < domains < random_features / 20


def test_a_grid_search_cuts_the_domains_with_the_samples() -> None:
    X, y, domain = shifted()
    order = stream(2, "order").numpy.permutation(len(X))
    X, y, domain = X[order], y[order], domain[order]
    pipe = make_pipeline(TCA(4), OnSource(KNeighborsClassifier(1)))
    search = GridSearchCV(pipe, {"tca__gamma": [0.1, 10.0]}, cv=2)
    search.fit(X, y, tca__sample_domain=domain, onsource__sample_domain=domain)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_without_domains_a_warning_says_that_nothing_is_aligned() -> None:
    X, y, domain = shifted()
    with pytest.warns(OneDomain, match="TCA"):
        TCA(3).fit(X)
    with pytest.warns(OneDomain):
        assert (CORAL().fit_transform(X, y) == X).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error", OneDomain)
        TCA(3).fit(X, y, domain)


def test_several_sources_are_one_side() -> None:
    X, _, domain = shifted()
    several = np.where(domain > 0, 1 + np.arange(len(X)) % 3, -7)
    assert (TCA(3).fit(X, None, several).W_ == TCA(3).fit(X, None, domain).W_).all()


def test_torch_is_loaded_only_by_the_network() -> None:
    code = "import sys, fdamed.classical; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_seeds_change_the_frequencies_and_names_of_features_are_there() -> None:
    X, _, domain = shifted()
    one, same, other = (RFTCA(3, N=20, seed=s).fit(X, None, domain) for s in (0, 0, 1))
    assert (one.omega_ == same.omega_).all()
    assert not (one.omega_ == other.omega_).any()
    assert list(one.get_feature_names_out()) == ["rftca0", "rftca1", "rftca2"]
