"""Every identity of the TCA family, CORAL, JDA and GFK, against definitions that are written out in full."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import eig, subspace_angles
from sklearn.preprocessing import normalize as unit_rows

from benchmarks.office_caltech import CauchyRFTCA, LaplacianRFTCA
from fdamed.classical import CORAL, GFK, JDA, RFTCA, RTCA, TCA
from fdamed.classical.gfk import geodesic, principal, root
from fdamed.classical.jda import discrepancies
from fdamed.classical.kernels import frequencies, gram, random_features, width
from fdamed.classical.spectral import rftca, rtca, tca
from fdamed.core.rng import stream

N_S, N_T, GAMMA, M = 22, 17, 0.05, 4
N = N_S + N_T
H = np.eye(N) - np.ones((N, N)) / N
ELL = np.r_[np.full(N_S, 1 / N_S), np.full(N_T, -1 / N_T)]
DOMAIN = np.r_[np.ones(N_S), -np.ones(N_T)]


def samples(p: int = 3, shift: float = 0.4, name: str = "x") -> np.ndarray:
    X = stream(11, name).numpy.normal(size=(N, p)) * np.linspace(1.5, 0.4, p)
    X[N_S:] += shift
    return X


@pytest.fixture
def K() -> np.ndarray:
    return gram(samples(), samples(), "gaussian", 1.0)


def aligned(A: np.ndarray, B: np.ndarray) -> float:
    """The distance of two sets of columns that may differ in sign."""
    return float(np.linalg.norm(A * np.sign((A * B).sum(axis=0)) - B))


def centered(A: np.ndarray) -> np.ndarray:
    return A - A.mean(axis=0)


def test_the_weights_of_the_discrepancy(K: np.ndarray) -> None:
    assert np.abs(H @ ELL - ELL).max() < 1e-15
    assert float(ELL @ ELL) == pytest.approx(N / (N_S * N_T), abs=1e-14)
    mmd = K[:N_S, :N_S].mean() + K[N_S:, N_S:].mean() - 2 * K[:N_S, N_S:].mean()
    assert float(ELL @ K @ ELL) == pytest.approx(mmd, abs=1e-14)


@pytest.fixture(params=["dense", "lanczos"])
def solver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdamed.classical.spectral.DENSE", 0 if request.param == "lanczos" else N)


@pytest.mark.usefixtures("solver")
def test_tca_solves_its_equation_under_its_constraint_and_reaches_the_optimum(K: np.ndarray) -> None:
    got = tca(K, ELL, GAMMA, M)
    v = K @ ELL
    left, right = K @ H @ K, GAMMA * np.eye(N) + np.outer(v, v)
    residual = left @ got.W - right @ got.W * got.values
    assert np.abs(residual).max() < 1e-9 * np.abs(left @ got.W).max()
    assert np.abs(got.W.T @ left @ got.W - np.eye(M)).max() < 1e-9
    objective = np.trace(got.W.T @ right @ got.W)
    assert objective == pytest.approx((1 / got.values).sum(), rel=1e-9)
    textbook = np.sort(eig(np.linalg.inv(right) @ left, right=False).real)[::-1][:M]
    assert got.values == pytest.approx(textbook, rel=1e-8)
    assert (np.diff(got.values) < 0).all()
    assert (got.W[np.abs(got.W).argmax(axis=0), range(M)] > 0).all()


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("doubled", [False, True])
def test_rtca_solves_its_equation_even_if_samples_repeat(doubled: bool) -> None:
    X = samples()
    if doubled:
        X[1], X[N_S + 1] = X[0], X[N_S]
    K = gram(X, X, "gaussian", 1.0)
    got = rtca(K, ELL, GAMMA, M)
    left = K @ H @ K
    right = GAMMA * K + np.outer(K @ ELL, K @ ELL)
    assert np.abs(left @ got.W - right @ got.W * got.values).max() < 1e-10 * np.abs(left @ got.W).max()
    assert np.abs(got.W.T @ left @ got.W - np.eye(M)).max() < 1e-10


def test_centered_features_of_rtca_are_orthonormal(K: np.ndarray) -> None:
    features = centered(K @ rtca(K, ELL, GAMMA, M).W)
    assert np.abs(features.T @ features - np.eye(M)).max() < 1e-12


def test_tca_of_a_kernel_is_rtca_of_its_square(K: np.ndarray) -> None:
    one, other = tca(K, ELL, GAMMA, M), rtca(K @ K, ELL, GAMMA, M)
    assert one.values == pytest.approx(other.values, rel=1e-8)
    F, G = centered(K @ one.W), centered(K @ K @ other.W)
    assert np.abs(F @ F.T - G @ G.T).max() < 1e-8


def test_tca_and_rtca_differ_whatever_gamma_is(K: np.ndarray) -> None:
    F = centered(K @ tca(K, ELL, GAMMA, M).W)
    others = [centered(K @ rtca(K, ELL, g, M).W) for g in np.logspace(-6, 3, 40)]
    assert min(np.linalg.norm(F @ F.T - G @ G.T) for G in others) > 1e-2


@pytest.mark.parametrize("n_frequencies", [9, 15, 200])
def test_rftca_is_rtca_of_the_features_gram_matrix_for_any_n(n_frequencies: int) -> None:
    Z = random_features(samples(), frequencies(1.0, n_frequencies, 3, 0), False)
    whole = rtca(Z @ Z.T, ELL, GAMMA, M)
    Zc = centered(Z)
    got = rftca(Zc.T @ Zc, Z.T @ ELL, GAMMA, M)
    assert got.values == pytest.approx(whole.values, rel=1e-8)
    assert aligned(Z @ got.W, Z @ Z.T @ whole.W) < 1e-8
    assert np.abs(got.W.T @ Zc.T @ Zc @ got.W - np.eye(M)).max() < 1e-8


@pytest.mark.parametrize("n_frequencies", [12, 200])
def test_the_estimator_gathers_its_moments_over_several_blocks(
    monkeypatch: pytest.MonkeyPatch, n_frequencies: int
) -> None:
    monkeypatch.setattr("fdamed.classical.kernels.BLOCK", 7)
    X = samples()
    got = RFTCA(M, GAMMA, N=n_frequencies, precision="float64").fit(X, None, DOMAIN)
    Z = random_features(X, got.omega_, True)
    whole = rtca(Z @ Z.T, ELL, GAMMA, M)
    assert aligned(got.transform(X), Z @ Z.T @ whole.W) < 1e-8
    assert got.eigenvalues_ == pytest.approx(whole.values, rel=1e-8)


def test_rftca_converges_to_rtca() -> None:
    rng = stream(5, "convergence").numpy
    X = rng.normal(size=(90, 3)) * [2.0, 0.7, 0.2]
    X[50:] += 0.4
    ell = np.r_[np.full(50, 1 / 50), np.full(40, -1 / 40)]
    K = gram(X, X, "gaussian", 3.0)
    exact = K @ rtca(K, ell, 0.1, 2).W
    errors = []
    for n_frequencies in (100, 400, 1600, 6400):
        several = []
        for seed in range(4):
            Z = random_features(X, frequencies(3.0, n_frequencies, 3, seed), False)
            several.append(aligned(centered(Z @ Z.T @ rtca(Z @ Z.T, ell, 0.1, 2).W), centered(exact)))
        errors.append(np.mean(several))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.08


def test_a_large_gamma_gives_kernel_pca_and_a_small_one_no_discrepancy(K: np.ndarray) -> None:
    values, vectors = np.linalg.eigh(H @ K @ H)
    wide = centered(K @ rtca(K, ELL, 1e10, M).W)
    assert subspace_angles(wide, vectors[:, -M:]).max() < 1e-7
    narrow = tca(K, ELL, 1e-5, M)
    assert np.square(narrow.W.T @ K @ ELL).sum() < 1e-10
    assert np.square(tca(K, ELL, 1e5, M).W.T @ K @ ELL).sum() > 1e-6
    assert values[-1] > 0


def test_identical_domains_give_kernel_pca() -> None:
    X = np.repeat(samples()[:15], 2, axis=0)
    domain = np.tile([1, -1], 15)
    F = RTCA(3, gamma=0.3, sigma=1.0, normalize=False).fit_transform(X, None, sample_domain=domain)
    K = centered(gram(X, X, "gaussian", 1.0))
    assert subspace_angles(centered(F), np.linalg.eigh(K - K.mean(axis=1, keepdims=True))[1][:, -3:]).max() < 1e-7


def test_lanczos_is_dense_on_the_estimators(monkeypatch: pytest.MonkeyPatch) -> None:
    X = samples(6)
    for estimator in (TCA, RTCA):
        dense = estimator(M).fit(X, None, DOMAIN)
        with monkeypatch.context() as patched:
            patched.setattr("fdamed.classical.spectral.DENSE", 0)
            fast = estimator(M).fit(X, None, DOMAIN)
        assert (dense.W_ != fast.W_).any()
        assert np.abs(dense.transform(X) - fast.transform(X)).max() < 1e-8


def test_random_features_have_length_one_and_their_error_halves_with_four_times_as_many() -> None:
    X = stream(2, "gram").numpy.normal(size=(120, 8))
    K = gram(X, X, "gaussian", 0.7)
    errors = []
    for n_frequencies in (50, 200, 800, 3200):
        several = []
        for seed in range(3):
            Z = random_features(X, frequencies(0.7, n_frequencies, 8, seed), False)
            assert np.abs(np.diag(Z @ Z.T) - 1).max() < 1e-12
            several.append(np.linalg.norm(Z @ Z.T - K, 2) / np.linalg.norm(K, 2))
        errors.append(np.mean(several))
    ratios = np.array(errors[:-1]) / errors[1:]
    assert ((ratios > 1.4) & (ratios < 2.9)).all()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (LaplacianRFTCA, np.exp(-0.8 * 1.1)),  # 0.4148
        (CauchyRFTCA, 1 / (1 + 0.64 * 0.25) / (1 + 0.64 * 0.36)),
        (RFTCA, np.exp(-0.32 * 0.61)),
    ],
)
def test_each_kernel_has_its_own_frequencies(kind: type, expected: float) -> None:
    X = np.array([[0.5, -0.6], [0.0, 0.0]])
    model = kind(N=200_000, seed=1)
    model.sigma_ = 1 / 0.8
    Z = random_features(X, model.draw_frequencies(2), False)
    assert Z[0] @ Z[1] == pytest.approx(expected, abs=0.005)


def test_the_gaussian_kernel_is_that_of_its_width() -> None:
    X = np.array([[0.5, -0.6], [0.0, 0.0]])
    assert gram(X, X[1:], "gaussian", 1 / 0.8)[0, 0] == pytest.approx(np.exp(-0.32 * 0.61), abs=1e-12)


def test_coral_gives_the_source_the_targets_covariance() -> None:
    X = samples(5)
    moved = CORAL(ridge=0.3).fit(X, None, DOMAIN)
    A = moved.transform(np.eye(5), np.ones(5))
    C_s, C_t = (np.cov(part.T) + 0.3 * np.eye(5) for part in (X[:N_S], X[N_S:]))
    assert np.abs(A.T @ C_s @ A - C_t).max() < 1e-10
    together = CORAL(ridge=0.3).fit_transform(X, None, DOMAIN)
    assert np.abs(together[:N_S] - X[:N_S] @ A).max() < 1e-12
    assert (together[N_S:] == X[N_S:]).all()


def test_coral_of_few_samples_is_that_of_whole_covariances() -> None:
    X = samples(60)
    got = CORAL().fit_transform(X, None, DOMAIN)[:N_S]

    def power(part: np.ndarray, q: float) -> np.ndarray:
        values, vectors = np.linalg.eigh(np.cov(part.T) + np.eye(60))
        return (vectors * values**q) @ vectors.T

    assert np.abs(got - X[:N_S] @ power(X[:N_S], -0.5) @ power(X[N_S:], 0.5)).max() < 1e-10


def test_coral_of_one_sample_twice_changes_nothing_and_centering_subtracts_means() -> None:
    X = samples(4)
    same, domain = np.vstack([X, X]), np.repeat([1, -1], N)
    assert np.abs(CORAL().fit_transform(same, None, domain) - same).max() < 1e-12
    got = CORAL(center=True).fit_transform(X, None, DOMAIN)
    assert np.abs(got[:N_S].mean(axis=0)).max() < 1e-12
    assert np.abs(got[N_S:].mean(axis=0)).max() < 1e-12


def test_the_flow_kernel_is_the_integral_of_the_geodesic_and_its_ends_are_the_subspaces() -> None:
    X = samples(9)
    P_s, P_t = principal(X[:N_S])[:, :3], principal(X[N_S:])[:, :3]
    theta, a, b = geodesic(P_s, P_t)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    G = np.zeros((9, 9))
    for t, w in zip((nodes + 1) / 2, weights / 2, strict=True):
        point = a * np.cos(t * theta) + b * np.sin(t * theta)
        G += w * point @ point.T
    R = root(theta, a, b)
    assert np.abs(R @ R.T - G).max() < 1e-10
    end = a * np.cos(theta) + b * np.sin(theta)
    assert subspace_angles(a, P_s).max() < 1e-7
    assert subspace_angles(end, P_t).max() < 1e-7
    assert np.linalg.matrix_rank(R) <= 6
    fitted = GFK(3).fit(X, None, DOMAIN)
    assert np.abs(fitted.transform(X) @ fitted.transform(X).T - X @ G @ X.T).max() < 1e-10


def test_the_flow_between_equal_domains_is_their_projection_and_between_right_angles_a_known_matrix() -> None:
    X = samples(6)
    fitted = GFK(2).fit(np.vstack([X, X]), None, np.repeat([1, -1], N))
    P = principal(X)[:, :2]
    assert np.abs(fitted.root_ @ fitted.root_.T - P @ P.T).max() < 1e-10
    R = root(*geodesic(np.array([[1.0], [0.0]]), np.array([[0.0], [1.0]])))
    # theta = pi/2: l1 = l3 = 1/2 and l2 = 1/pi
    assert np.abs(R @ R.T - np.array([[0.5, 1 / np.pi], [1 / np.pi, 0.5]])).max() < 1e-12


def test_the_first_pass_of_jda_is_tca() -> None:
    X = samples()
    y = np.arange(N) % 3
    settings = {"n_components": M, "sigma": 1.0, "normalize": False}
    first = JDA(gamma=0.7, iterations=1, kernel="gaussian", scale="variance", **settings).fit(X, y, DOMAIN)
    other = TCA(gamma=0.7 * N / (N_S * N_T), **settings).fit(X, None, DOMAIN)
    K = gram(X, X, "gaussian", 1.0)
    assert np.abs(first.W_ - other.W_).max() < 1e-8 * np.abs(other.W_).max()
    assert np.abs(first.W_.T @ K @ H @ K @ first.W_ - np.eye(M)).max() < 1e-8


def test_every_pass_of_jda_solves_its_equation() -> None:
    X = samples()
    y = np.arange(N) % 3
    settings = {"kernel": "gaussian", "sigma": 1.0, "normalize": False}
    one = JDA(M, gamma=0.7, iterations=1, **settings).fit(X, y, DOMAIN)
    two = JDA(M, gamma=0.7, iterations=2, **settings).fit(X, y, DOMAIN)
    E = [np.sqrt(3) * ELL]
    for c in range(3):
        ours = np.r_[y[:N_S] == c, np.zeros(N_T, dtype=bool)]
        theirs = np.r_[np.zeros(N_S, dtype=bool), one.pseudo_labels_ == c]
        E.append(ours / ours.sum() - theirs / theirs.sum())
    L = np.stack(E, axis=1) @ np.stack(E)
    L /= np.linalg.norm(L)
    K = gram(X, X, "gaussian", 1.0)
    left, right = K @ H @ K, K @ L @ K + 0.7 * np.eye(N)
    tau = np.diag(two.W_.T @ left @ two.W_) / np.diag(two.W_.T @ right @ two.W_)
    assert np.abs(left @ two.W_ - right @ two.W_ * tau).max() < 1e-9 * np.abs(left @ two.W_).max()
    assert tau[0] == pytest.approx(np.linalg.eigvals(np.linalg.solve(right, left)).real.max(), rel=1e-9)


@pytest.mark.parametrize("estimator", [TCA, RTCA, JDA])
def test_at_the_scale_of_the_penalty_what_gamma_weighs_is_one_and_the_directions_stay(estimator: type) -> None:
    X = samples()
    y = np.arange(N) % 3
    settings = {"kernel": "gaussian", "sigma": 1.0, "normalize": False, "gamma": 0.05}
    if estimator is JDA:
        settings["iterations"] = 1  # later passes depend on the scale: other neighbors, other pseudo-labels
    equal = estimator(M, scale="variance", **settings).fit(X, y, DOMAIN)
    own = estimator(M, scale="penalty", **settings).fit(X, y, DOMAIN)
    K = gram(X, X, "gaussian", 1.0)
    weighed = own.W_.T @ (K if estimator is RTCA else np.eye(N)) @ own.W_
    assert np.abs(np.diag(weighed) - 1).max() < 1e-9
    cosines = (equal.W_ * own.W_).sum(axis=0) / np.linalg.norm(equal.W_, axis=0) / np.linalg.norm(own.W_, axis=0)
    assert np.abs(cosines - 1).max() < 1e-9
    variances = np.square(centered(K @ own.W_)).sum(axis=0)
    assert (np.diff(variances) < 0).all(), "the largest eigenvalue has the largest variance"


@pytest.mark.parametrize("n_frequencies", [12, 50])
def test_rf_tca_is_r_tca_of_its_gram_matrix_at_the_scale_of_the_penalty_too(n_frequencies: int) -> None:
    X = samples()
    model = RFTCA(M, GAMMA, N=n_frequencies, sigma=1.0, precision="float64", scale="penalty")
    features = model.fit_transform(X, None, sample_domain=DOMAIN)
    Z = random_features(X, model.omega_, True)
    exact = rtca(Z @ Z.T, ELL, GAMMA, M).scaled("penalty")
    assert aligned(features, Z @ Z.T @ exact) < 1e-8
    assert np.abs(np.square(model.W_).sum(axis=0) - 1).max() < 1e-9


def test_a_class_that_one_side_lacks_has_no_column() -> None:
    source, target = np.array([1, 1, 1, 0, 0], dtype=bool), np.array([0, 0, 0, 1, 1], dtype=bool)
    E = discrepancies(source, target, np.array([0, 0, 1]), np.array([0, 2]), np.array([0, 1, 2]))
    assert E.shape == (5, 2)
    domains = np.sqrt(3) * np.array([1 / 3, 1 / 3, 1 / 3, -1 / 2, -1 / 2])
    expected = np.stack([domains, [0.5, 0.5, 0, -1, 0]], axis=1)
    assert np.abs(E - expected / np.sqrt(np.linalg.norm(expected @ expected.T))).max() < 1e-15
    assert np.linalg.norm(E @ E.T) == pytest.approx(1.0)


def test_the_median_is_over_distances_of_unit_samples() -> None:
    X = np.array([[2.0, 0.0], [0.0, 3.0], [-5.0, 0.0]])
    assert width("median", "euclidean", X, True, "") == pytest.approx(np.sqrt(2))
    assert width("median", "cityblock", X, True, "") == pytest.approx(2.0)
    assert (unit_rows(np.zeros((1, 2))) == 0).all()
