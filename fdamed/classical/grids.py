"""Every classical method with the settings that are tried; the first candidate's first view is the default.

TCA, R-TCA and RF-TCA are fitted once at the scale `penalty`; the views turn it into `variance` (equal) and take fewer
components, for the components of a fit are nested.
"""

from __future__ import annotations

from sklearn.preprocessing import FunctionTransformer

from fdamed.classical.coral import CORAL
from fdamed.classical.dann import DaNN
from fdamed.classical.gfk import GFK
from fdamed.classical.inputs import Array
from fdamed.classical.jda import JDA
from fdamed.classical.rftca import RFTCA
from fdamed.classical.selection import Candidate, View
from fdamed.classical.tca import RTCA, TCA

SIZES = (100, 30)
GAMMAS = (1.0, 1e-3)
VIEWS = tuple(View(m, center, True, equal) for equal in (False, True) for center in (False, True) for m in SIZES)
"""The first is the default: m = 100, not centered, scale `penalty`, samples at length 1."""
SYMMETRIC = frozenset({
    "TCA", "R-TCA", "RF-TCA (gaussian)", "RF-TCA (N = 1000)", "RF-TCA (laplacian)", "RF-TCA (cauchy)", "GFK",
})  # fmt: skip
"""Methods that do not know which domain is the source: one fit serves both directions."""


class Unaligned(FunctionTransformer):  # type: ignore[misc]
    """The features as they are."""

    def fit_transform(self, X: Array, y: Array, sample_domain: Array) -> Array:
        return X


def methods() -> dict[str, list[Candidate]]:
    """Method -> its candidates."""
    return {
        "not aligned": [Candidate("as they are", Unaligned())],
        "TCA": [c for kernel in ("gaussian", "linear") for c in _spectral(TCA, f"{kernel} ", kernel=kernel)],
        "R-TCA": _spectral(RTCA),
        "RF-TCA (gaussian)": _spectral(RFTCA),
        "RF-TCA (N = 1000)": _spectral(RFTCA, N=1000),
        "RF-TCA (laplacian)": _spectral(RFTCA, kernel="laplacian"),
        "RF-TCA (cauchy)": _spectral(RFTCA, kernel="cauchy"),
        "CORAL": [
            Candidate(
                f"ridge={r:g}{' centered' if c else ''}", CORAL(ridge=r, center=c), (View(), View(unit_norm=True))
            )
            for c in (False, True)
            for r in (1.0, 10.0)
        ],
        "JDA": [
            Candidate(f"{kernel} kernel m={m}", JDA(m, kernel=kernel))
            for kernel in ("linear", "gaussian")
            for m in SIZES
        ],
        "GFK": [Candidate(f"k={k}", GFK(k)) for k in (20, 40)],
        "DaNN": [Candidate("weight=0.25", DaNN())],
    }


def _spectral(estimator: type, name: str = "", **settings: object) -> list[Candidate]:
    return [
        Candidate(f"{name}gamma={g:g}", estimator(gamma=g, n_components=SIZES[0], scale="penalty", **settings), VIEWS)
        for g in GAMMAS
    ]
